"""Reads and writes small files of a run: constants, public clients, the private key, canaries.

`CheckpointFile` reads a checkpoint's round and ledger head without torch;
`privfed.store.checkpoint` loads the state of training. `CanaryFile` is under private/.

Clients that were passed as Python objects are stored in no file of a run. `PopulationDigest` checks
that a resumed run gets the same clients. A public digest would be a release: anyone could use it to
confirm a guess of all clients' data. The digest is therefore keyed, and stored with its key under
private/.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import durable, regular
from accounting.documents import from_json
from accounting.ledger import terms_at
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Broken, Refused, unreadable
from privfed.core.text import dump
from privfed.data.federation import Examples
from privfed.models.form import Form
from privfed.models.pretrained import CHECKPOINT, CONSTANTS
from privfed.store.lineage import Lineage
from privfed.store.tensorfile import checked_facts, misfits_are_broken, under, unpack, write

FILES = {
    "config.toml": "the whole configuration, resolved",
    "ledger.jsonl": "all charges in order, as a hash chain that is safe to publish",
    "metrics.jsonl": "test measures, loss and ε of each evaluated round",
    CHECKPOINT: "the model under `model/…`, the server's state, and the ledger's head",
    "releases/": "noised releases since the last checkpoint, a file for each round",
    CONSTANTS: "frozen layers and buffers, if the model has any",
    "aborts.jsonl": "rounds whose secure sum aborted, and why",
    "excluded.jsonl": (
        "clients proved Byzantine in a secure sum and excluded since, with round and kind"
    ),
    "report/summary.json": "the outcome of the run",
    "report/public_clients.json": "clients that no guarantee covers (declared public), if any",
    "report/attackers.json": "the attackers of a simulation of attacks",
    "report/simulation_only_ranks.jsonl": "ranks of rows, if a simulation opted in",
    "report/simulation_only_clients.csv": "the summary of these ranks for each client",
    "report/metrics.csv": 'metrics.jsonl as columns, if `run.watch` has "csv"',
    "report/simulation.csv": "measures that no ε covers, if a simulation opted in",
    "report/tensorboard/": 'the same metrics as events, if `run.watch` has "tensorboard"',
    "report/mlflow.json": "MLflow's id of the run and the last logged round, if `run.watch` has it",
    "report/mlflow.db": "MLflow's log, unless a tracking server is configured",
    "report/wandb.json": "the id and last round in Weights & Biases, if `run.watch` has it",
    "report/wandb/": "files of Weights & Biases; `wandb sync` sends those written offline",
    "report/page.html": "a page about the run, by `privfed report`",
    "report/claim.html": "a page about the run's claim, by `privfed report --claim-page`",
    "statistics.json": "statistics that `privfed describe` released",
    "regression.json": "odds ratios that `privfed regress` released",
    "survival.json": "survival curves and tests that `privfed survive` released",
    "counted_by.txt": "runs that count this run's charges; this run may then charge no more",
    "private/": "secret files, mode 0700: never publish them, or copy them for a second run",
    "private/key": "the secret from which participation, correlated noise and canaries are derived",
    "private/settled.f32": "client state between rounds, with its journal in the same folder",
    "private/histories/settled.f32": (
        "a rule's state for each client, with its journal in the same folder"
    ),
    "private/population": "a keyed digest of clients that were passed in Python, for a resume",
    "private/canaries.f64": "the canaries' observations of each release",
    "private/canaries.safetensors": "the initial model, and the examples of canaries that train",
    "private/simulation.html": "a page of values that no ε covers: `privfed report --simulation`",
    "private/proofs/": (
        "proofs that clients were Byzantine in secure sums, with the other participants"
    ),
    "private/silos/": "a ledger for each silo, for the privacy of its examples",
}
"""Descriptions of the files and folders of a run directory, by path. Most runs have the first
five and the summary."""


_BATCH_SIZE = 4096
"""Number of examples that are hashed at once."""


@dataclass(frozen=True)
class PopulationDigest:
    """The file `private/population` at `path`, with a key and the keyed digest of all examples."""

    path: Path

    def write(self, examples: Iterable[Examples]) -> None:
        """Writes the digest of the clients' examples."""
        key = os.urandom(32)
        durable.make_folder(self.path.parent, 0o700)
        durable.write_atomically(self.path, f"{key.hex()} {_digest(key, examples)}\n".encode())
        self.path.chmod(0o600)

    def refuse_others(self, examples: Iterable[Examples]) -> None:
        """Raises `Refused` if `examples` do not have the stored digest, or none is stored."""
        text = regular.read_text(self.path, "ascii", "replace") if self.path.is_file() else ""
        key, _, digest = text.strip().partition(" ")
        try:
            same = hmac.compare_digest(digest, _digest(bytes.fromhex(key), examples))
        except ValueError:
            same = False
        if not (key and same):
            raise Refused(
                f"{self.path.parent.parent}: the passed clients are not those with which the run "
                "began (or its private/, which identifies them, is missing); pass the same "
                "table, or start a new run with this one in privacy.prior"
            )


def _digest(key: bytes, examples: Iterable[Examples]) -> str:
    """Returns the HMAC-SHA-256, in hexadecimal digits, of all examples, in their order.

    It covers features, labels, number of classes, each example's client, and clients' names.
    """
    code = hmac.new(key, digestmod=hashlib.sha256)
    for each in examples:
        code.update(f"{tuple(each.x.shape)} {tuple(each.y.shape)} {each.classes}\n".encode())
        code.update("\n".join(each.clients).encode())
        code.update(b"" if each.owners is None else each.owners.tobytes())
        for start in range(0, len(each), _BATCH_SIZE):
            rows = torch.arange(start, min(start + _BATCH_SIZE, len(each)))
            for tensor in (each.x[rows], each.y[rows]):
                code.update(tensor.cpu().contiguous().numpy().tobytes())
    return code.hexdigest()


@dataclass(frozen=True)
class ConstantsFile:
    """The file `constants.safetensors` at `path`, with the model's untrained tensors.

    The file does not exist if the model has none.
    """

    path: Path

    def write(self, constants: Mapping[str, Tensor], lineage: Lineage) -> None:
        """Stores the model's untrained tensors, if there are any.

        The tensors are unchanged from the model's start, so `lineage` is the start's lineage.
        """
        if constants:
            tensors = {f"model/{name}": tensor for name, tensor in constants.items()}
            write(self.path, tensors, {"lineage": lineage.to_json()})

    def read(self) -> dict[str, Tensor]:
        """Returns the model's untrained tensors by name; empty if the file is missing.

        Raises `Broken` for a damaged file.
        """
        if not self.path.exists():
            return {}
        return under(unpack(self.path, finite=False)[0], "model/")


@dataclass(frozen=True)
class PublicClientsFile:
    """The file `report/public_clients.json` at `path`.

    It is absent if neither this run nor an earlier one that it counts has public clients.
    """

    path: Path

    def write(self, clients: Sequence[str], earlier: Collection[str]) -> None:
        """Writes the names of the `clients` that this run declares public, and those of `earlier`.

        `earlier` are the public clients of counted earlier runs. Without any, no file is written.
        """
        if clients or earlier:
            named = {"clients": list(clients), "earlier": sorted(earlier)}
            durable.write_atomically(self.path, (dump(named, indent=1) + "\n").encode())

    def of_this_run(self) -> list[str]:
        """Returns the names of this run's public clients. Raises `Broken` for a damaged file."""
        return self._listed("clients")

    def of_all_runs(self) -> list[str]:
        """Returns the names of the public clients of this run and of the earlier runs it counts.

        No guarantee covers these clients. Raises `Broken` for a damaged file.
        """
        return [*self._listed("clients"), *self._listed("earlier")]

    def _listed(self, key: str) -> list[str]:
        if not self.path.exists():
            return []
        try:
            return [str(name) for name in from_json(regular.read_text(self.path))[key]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(self.path, error) from None


@dataclass(frozen=True)
class PrivateKey:
    """The file `private/key` at `path`, with a run's id and secret key; only its owner can read it.

    From the key, 32 random bytes, the run derives the random numbers that it draws again after a
    resume (`privfed.core.streams.SAVED_STREAMS`), such as correlated noise.
    """

    path: Path

    def read_or_draw(self, run: str, fresh: bool) -> bytes:
        """Returns the 32 secret bytes of `run`.

        Args:
          run: id of the run.
          fresh: whether to draw and store the bytes if there is no file.

        Raises:
          Broken: if the file is missing and `fresh` is not set, has another form, or belongs to
            another run.
        """
        if fresh and not self.path.exists():
            durable.make_folder(self.path.parent, 0o700)
            durable.write_atomically(self.path, f"{run} {os.urandom(32).hex()}\n".encode())
        text = regular.read_text(self.path, "ascii", "replace") if self.path.is_file() else ""
        owner, _, key = text.strip().partition(" ")
        if owner != run or not re.fullmatch("[0-9a-f]{64}", key):
            raise Broken(
                f"{self.path} is missing, or belongs to another run, but the participation of "
                "clients and the correlated noise are derived from this file. Restore the file, or "
                "start a new run"
            )
        self.path.parent.chmod(0o700)
        self.path.chmod(0o600)
        return bytes.fromhex(key)


@dataclass(frozen=True)
class CheckpointFile:
    """The file `checkpoint.safetensors` at `path`, of the run with the ledger at `ledger`."""

    path: Path
    ledger: Path

    def exists(self) -> bool:
        """Whether the run has written a checkpoint."""
        return self.path.exists()

    def round(self) -> int:
        """Returns the last round that the checkpoint includes; 0 without a checkpoint.

        Raises `Broken` for a damaged file.
        """
        if not self.exists():
            return 0
        with misfits_are_broken(self.path):
            return int(checked_facts(self.path)["round"])

    def head(self) -> bytes:
        """Returns the ledger's head that the checkpoint states.

        Raises `Broken` if the file is missing or damaged.
        """
        with misfits_are_broken(self.path):
            return bytes.fromhex(str(checked_facts(self.path)["ledger_head"]))

    def form(self) -> Form | None:
        """Returns the form of the model's examples; None if an older version wrote the file.

        Raises `Broken` if the file is missing or damaged.
        """
        stated = unpack(self.path)[1].get("form")
        with misfits_are_broken(self.path):  # pydantic's errors included
            return None if stated is None else Form.model_validate(stated, strict=False)

    def lineage(self) -> dict[str, Any]:
        """Returns the lineage of the checkpoint's model as JSON: see `privfed.store.lineage`.

        Raises `Broken` if the file is missing or damaged.
        """
        stated = unpack(self.path)[1].get("lineage")
        with misfits_are_broken(self.path):
            if stated is not None:
                return Lineage.from_json(stated).to_json()
        return self.lineage_at(self.head())

    def lineage_at(self, head: bytes) -> dict[str, Any]:
        """Returns, as JSON, the lineage of this run's model when the ledger's head was `head`.

        It is computed from the ledger's terms; an empty object if there is no ledger.
        """
        terms = terms_at(self.ledger)
        return Lineage.of_run(terms, head.hex()).to_json() if terms else {}


@dataclass(frozen=True)
class CanaryFile:
    """The file `private/canaries.safetensors` at `path`, written once when a run begins.

    It contains the run's initial model, and the examples of canaries that train.
    """

    path: Path

    def exists(self) -> bool:
        """Whether the file exists."""
        return self.path.is_file()

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Stores the named `tensors` durably."""
        durable.make_folder(self.path.parent, 0o700)
        write(self.path, tensors, {})
        self.path.chmod(0o600)

    def read(self, device: torch.device) -> dict[str, Tensor]:
        """Returns the tensors by name. Raises `Broken` for a missing or damaged file."""
        return unpack(self.path, device)[0]
