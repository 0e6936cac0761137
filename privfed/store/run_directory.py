"""A run directory: everything a run leaves, each file written so that a crash loses nothing.

`config.toml`, `ledger.jsonl`, `releases/NNNNNN.safetensors`, `checkpoint.safetensors`,
`metrics.jsonl`, `aborts.jsonl`, `report/summary.json`; `constants.safetensors` where the model has
frozen parts and `report/public_clients.json` where clients were declared public; `private/` where
clients remember something between rounds: mode 0700, never to be published. Files are replaced
atomically (temporary file, fsync, rename); the ledger and the metrics are appended to.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import filelock
import tomli_w

from accounting.documents import from_json, from_toml
from accounting.durable import (
    append,
    make_folder,
    recover_folder,
    sync_folder,
    write_atomically,
)
from accounting.ledger import Charge, terms_at
from privfed.config.config import Config
from privfed.errors import Broken, Busy, Refused, unreadable
from privfed.json_text import dump
from privfed.local.client_states import SETTLED as STATES
from privfed.models.form import Form
from privfed.models.pretrained import CHECKPOINT, CONSTANTS
from privfed.store.lineage import Lineage
from privfed.store.stored_config import stored_config, stored_digest
from privfed.store.tensorfile import CPU, facts, fitting, pack, under, unpack

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privfed.models.network import Network
    from privfed.round.algorithm import TrainingState

Value = TypeVar("Value")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `round`, `updates` of whose rounds moved the model, and the ledger's head."""

    round: int
    updates: int
    state: TrainingState
    head: bytes


@dataclass(frozen=True)
class StoredRelease:
    """What one charged round released, exchange by exchange, and the hash of its charge."""

    released: list[Tensor]
    mechanism: dict[str, Tensor]
    charge: str


class RunDirectory:
    """The files at `path`. Use `create` for a new run and `open` for one that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger.jsonl"
        self.metrics = path / "metrics.jsonl"
        self._aborts = path / "aborts.jsonl"
        self.summary = path / "report" / "summary.json"
        self.private = path / "private"
        self.silos = self.private / "silos"
        self._config = path / "config.toml"
        self._checkpoint = path / CHECKPOINT
        self._constants = path / CONSTANTS
        self._public = path / "report" / "public_clients.json"
        self._attackers = path / "report" / "attackers.json"
        self._counted = path / "counted_by.txt"
        self._releases = path / "releases"
        self.key = self.private / "key"
        self.states = self.private / STATES
        self.canaries = self.private / "canaries.f64"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """A new directory, or an empty one. Raises `Refused` where anything lies there."""
        if path.exists() and not path.is_dir():
            raise Refused(f"--out {path} is a file; expected a new or empty directory")
        if path.is_dir() and not _is_untouched(path):
            another = "another run" if (path / "ledger.jsonl").exists() else "other files"
            raise Refused(
                f"--out {path} holds {another}; nothing was changed. Name a new directory, or use "
                f"--resume {path} to go on with a run"
            )
        directory = cls(path)
        directory.make_folders()
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. Raises `Refused` where there is none."""
        if not (path / "config.toml").is_file():
            if (path / "ledger.jsonl").exists():
                raise Broken(f"{path} has a ledger, but its config.toml is missing")
            raise Refused(f"{path} is not a run directory (it has no config.toml)")
        return cls(path)

    def make_folders(self) -> None:
        """Make the folders of a run where they are missing (an empty one is easily lost)."""
        make_folder(self._releases)
        make_folder(self.summary.parent)
        sync_folder(self.path.resolve().parent)  # it may have been there, of an interrupted start

    def recover(self) -> None:
        """After a crash: its folders, with no file half written, and every name in them durable."""
        self.make_folders()
        own = (self.path, self._releases, self.summary.parent, self.private, self.silos)
        for folder in filter(Path.is_dir, own):
            recover_folder(folder)

    def kept_key(self, run: str, fresh: bool) -> bytes:
        """The 32 secret bytes of `run` that a resume needs; drawn now where it is `fresh`.

        Raises `Broken` where they are missing, or another run's.
        """
        path = self.key
        if fresh and not path.exists():
            make_folder(self.private, 0o700)
            write_atomically(path, f"{run} {os.urandom(32).hex()}\n".encode())
        text = path.read_bytes().decode("ascii", "replace") if path.is_file() else ""
        owner, _, key = text.strip().partition(" ")
        if owner != run or not re.fullmatch("[0-9a-f]{64}", key):
            raise Broken(
                f"{path} is missing, or not this run's: who takes part when, and the noise that "
                "rounds share, follow from it. Restore it, or start a new run"
            )
        self.private.chmod(0o700)
        path.chmod(0o600)
        return bytes.fromhex(key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process alone. Raises `Refused` where another has it."""
        lock = filelock.FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise Busy(f"{self.path} is in use by another process; wait for it to end") from error
        try:
            yield
        finally:
            lock.release()

    def read_config(self) -> Config:
        """The configuration that the ledger was opened for: see `privfed.store.stored_config`."""
        return stored_config(self._config, self.ledger)

    def change_config(self, rounds: int, epsilon: float | None) -> None:
        """Set the two keys that may change, and leave the others as they are written."""
        document = from_toml(self._config.read_text(encoding="utf-8"))
        document["run"]["rounds"] = rounds
        if epsilon is not None:
            document["privacy"]["epsilon"] = epsilon
        write_atomically(self._config, tomli_w.dumps(document).encode())

    def config_digest(self) -> str:
        """The digest of config.toml as it is written. Raises `Broken` where it is no run file."""
        return stored_digest(self._config)

    def heads(self) -> str:
        """Where the ledger's heads are kept, as the configuration says; nothing is built."""
        return str(from_toml(self._config.read_text(encoding="utf-8"))["run"].get("heads", ""))

    def write_config(self, config: Config) -> None:
        write_atomically(self._config, config.toml().encode())

    def write_public(self, clients: Sequence[str], earlier: Collection[str]) -> None:
        """Name the clients whom no guarantee covers: those of this run, and of `earlier` ones."""
        if clients or earlier:
            named = {"clients": list(clients), "earlier": sorted(earlier)}
            write_atomically(self._public, (dump(named, indent=1) + "\n").encode())

    def write_attackers(self, found: Mapping[str, Any]) -> None:
        """Say of a simulation who attacks."""
        write_atomically(self._attackers, (dump(dict(found), indent=1) + "\n").encode())

    def public_now(self) -> list[str]:
        """The clients whom this run is scored on, as it declared them. Raises `Broken`."""
        return self._named("clients")

    def read_public(self) -> list[str]:
        """All clients whom no guarantee covers, earlier runs' included. Raises `Broken`."""
        return [*self._named("clients"), *self._named("earlier")]

    def _named(self, key: str) -> list[str]:
        if not self._public.exists():
            return []
        try:
            return [str(name) for name in from_json(self._public.read_text("utf-8"))[key]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(self._public, error) from None

    def counted_by(self, run: Path) -> None:
        """Note that `run` counts what this one spent; this one may then not spend more unseen."""
        # A directory that cannot be written to cannot be resumed either.
        with contextlib.suppress(OSError):
            append(self._counted, f"{run}\n".encode())

    def refuse_if_counted(self) -> None:
        """Raises `Refused` where another run has counted what this one spent."""
        if self._counted.exists():
            by, *_ = self._counted.read_text("utf-8", "replace").splitlines() or ["another run"]
            raise Refused(
                f"{self.path} was counted as an earlier run by {by}; more rounds here would be in "
                "nobody's sum. Start a new run instead, with privacy.prior naming both, and "
                "model.init this one"
            )

    def write_constants(self, constants: Mapping[str, Tensor], lineage: Lineage) -> None:
        """Keep what the model computes with and training does not change, where there is any.

        They are as they came: `lineage` is that of the model's start.
        """
        if constants:
            tensors = {f"model/{name}": tensor for name, tensor in constants.items()}
            write_atomically(self._constants, pack(tensors, {"lineage": lineage.to_json()}))

    def read_constants(self) -> dict[str, Tensor]:
        """What `write_constants` wrote. Raises `Broken`."""
        if not self._constants.exists():
            return {}
        return under(unpack(self._constants, finite=False)[0], "model/")

    def companions(self) -> dict[str, str]:
        """SHA-256 of the files that never change once the ledger cites them."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (self._constants, self._public)
            if path.exists()
        }

    def write(self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]) -> None:
        """Make the charged round's releases so far durable: before they are used or shown."""
        tensors = {f"released/{n}": tensor for n, tensor in enumerate(released)}
        tensors |= {f"mechanism/{name}": tensor for name, tensor in state.items()}
        about = {"round": charge.round, "charge": charge.hash, "exchanges": len(released)}
        write_atomically(self._release_path(charge.round), pack(tensors, about))

    def release(self, round: int, device: torch.device | str = CPU) -> StoredRelease | None:
        """What `round` released, None where nothing is kept of it. Raises `Broken`."""
        path = self._release_path(round)
        if not path.exists():
            return None
        try:
            tensors, about = unpack(path, device)
        except Broken:
            if path.exists():
                raise
            return None  # a later checkpoint took it up just now
        with fitting(path):
            count = int(about["exchanges"])
            released = [tensors[f"released/{n}"] for n in range(count)]
            return StoredRelease(released, under(tensors, "mechanism/"), str(about["charge"]))

    def released_for(self, round: int) -> str | None:
        """The hash of the charge that `round`'s kept release cites. Raises `Broken`."""
        path = self._release_path(round)
        try:
            with fitting(path):
                return str(facts(path)["charge"])
        except Broken:
            if path.exists():
                raise
            return None  # a later checkpoint took it up just now

    def stored_rounds(self) -> list[int]:
        """Rounds whose releases are kept: those after the last checkpoint."""
        stems = (path.stem for path in self._releases.glob("*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def save_checkpoint(self, checkpoint: Checkpoint, network: Network) -> None:
        """Make the checkpoint durable, then drop the releases that it contains."""
        state = checkpoint.state
        tensors = {f"model/{k}": v for k, v in network.shapes.views(state.params).items()}
        tensors |= {f"server/{name}": tensor for name, tensor in state.server.items()}
        tensors |= {f"mechanism/{name}": tensor for name, tensor in state.mechanism.items()}
        tensors |= {f"objective/{name}": tensor for name, tensor in state.objective.items()}
        tensors |= {f"rule/{name}": tensor for name, tensor in state.rule.items()}
        tensors |= {f"attack/{name}": tensor for name, tensor in state.attack.items()}
        about = {
            "round": checkpoint.round,
            "updates": checkpoint.updates,
            "ledger_head": checkpoint.head.hex(),
            "fingerprint": list(network.fingerprint),
            **({"form": network.form.model_dump(mode="json")} if network.form else {}),
            **({"lineage": lineage} if (lineage := self._lineage(checkpoint.head)) else {}),
        }
        write_atomically(self._checkpoint, pack(tensors, about))
        for round in self.stored_rounds():
            if round <= checkpoint.round:
                self._release_path(round).unlink()
        sync_folder(self._releases)

    def _lineage(self, head: bytes) -> dict[str, Any]:
        """What made the model, this run included, as the ledger states it; with which a copy of the
        checkpoint is recognised wherever it lies.
        """
        terms = terms_at(self.ledger)
        return Lineage.of_run(terms, head.hex()).to_json() if terms else {}

    def began(self) -> bool:
        """Whether anything lies here that is only written once the ledger is open."""
        later = (self._checkpoint, self.metrics, self.summary)
        return any(path.exists() for path in later) or bool(self.stored_rounds())

    def has_checkpoint(self) -> bool:
        return self._checkpoint.exists()

    def round(self) -> int:
        """The round that the checkpoint stands at; 0 where there is none. Raises `Broken`."""
        if not self.has_checkpoint():
            return 0
        with fitting(self._checkpoint):
            return int(facts(self._checkpoint)["round"])

    def head(self) -> bytes:
        """The ledger's head that the checkpoint carries. Raises `Broken` where there is none."""
        with fitting(self._checkpoint):
            return bytes.fromhex(str(facts(self._checkpoint)["ledger_head"]))

    def form(self) -> Form | None:
        """What an example looks like, by the checkpoint; None where an older version wrote it."""
        stated = unpack(self._checkpoint)[1].get("form")
        with fitting(self._checkpoint):  # which pydantic's errors are, too
            return None if stated is None else Form.model_validate(stated, strict=False)

    def lineage(self) -> dict[str, Any]:
        """What made the model of the checkpoint: see `privfed.store.lineage`."""
        stated = unpack(self._checkpoint)[1].get("lineage")
        return dict(stated) if stated else self._lineage(self.head())

    def load_checkpoint(self, network: Network, device: torch.device | str = CPU) -> Checkpoint:
        """The last durable checkpoint. Raises `Broken` where it is not one of `network`'s."""
        from privfed.round.algorithm import TrainingState  # a ledger is audited without what trains

        tensors, about = unpack(self._checkpoint, device)
        with fitting(self._checkpoint):
            if not network.same_code([float(number) for number in about["fingerprint"]]):
                raise Broken(
                    f"{self.path}: the model's code gives other outputs than when this run was "
                    "trained (or draws where it is built from elsewhere than torch); restore it"
                )
            state = TrainingState(
                network.shapes.flatten_exactly(under(tensors, "model/")),
                under(tensors, "server/"),
                under(tensors, "mechanism/"),
                under(tensors, "objective/"),
                under(tensors, "rule/"),
                under(tensors, "attack/"),
            )
            if state.params.dtype != network.start.dtype:
                raise ValueError("parameters are of another type")
            head = bytes.fromhex(str(about["ledger_head"]))
            return Checkpoint(int(about["round"]), int(about["updates"]), state, head)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        append(self.metrics, (dump(line) + "\n").encode())

    def cut_aborts(self) -> None:
        """Forget a torn last line, or the next one would be lost with it."""
        if self._aborts.exists():
            lines = [dump({"round": at, "reason": why}) for at, why in self.aborts().items()]
            write_atomically(self._aborts, "".join(f"{line}\n" for line in lines).encode())

    def cut_metrics(self, after: int) -> None:
        """Forget the lines of rounds after `after` (and a torn one): they will be written again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if from_json(line)["round"] <= after:
                    kept.append(line + "\n")
        write_atomically(self.metrics, "".join(kept).encode())

    def losses(self) -> dict[int, float]:
        """The loss at each round that was evaluated, on public examples."""
        return _by_round(
            self.metrics,
            lambda line: math.nan if line["loss"] is None else float(line["loss"]),
        )

    def aborted(self, round: int, reason: str) -> None:
        """Note that the secure sum of `round` was aborted, for all to see."""
        append(self._aborts, (dump({"round": round, "reason": reason}) + "\n").encode())

    def aborts(self) -> dict[int, str]:
        """The rounds that were aborted, and why."""
        return _by_round(self._aborts, lambda line: str(line["reason"]))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.summary, (dump(summary, indent=2) + "\n").encode())

    def _release_path(self, round: int) -> Path:
        return self._releases / f"{round:06d}.safetensors"


def _by_round(path: Path, read: Callable[[dict[str, Any]], Value]) -> dict[int, Value]:
    """What `read` takes out of each line of a file, by its round; a torn line is left out."""
    values: dict[int, Value] = {}
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                line = from_json(text)
                values[int(line["round"])] = read(line)
    return values


def _is_untouched(folder: Path) -> bool:
    """Empty but for hidden files and the empty folders that an interrupted start leaves."""
    ours = {"releases", "report"}
    return all(
        item.name.startswith(".")
        or (item.name in ours and item.is_dir() and not any(item.iterdir()))
        for item in folder.iterdir()
    )
