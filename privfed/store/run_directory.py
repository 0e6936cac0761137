"""The files of a run directory, each written such that a crash loses no stored data.

`privfed.store.run_files.FILES` describes every file. The folder `private/` has mode 0700 and must
never be published. Files are replaced atomically (temporary file, fsync, rename), except that lines
are appended to the ledger and the logs.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting import durable, regular
from accounting.documents import from_json
from privfed.client.client_states import STATES_FILE
from privfed.core.errors import Broken, Busy, Refused, resume_command
from privfed.core.text import dump
from privfed.models.pretrained import CHECKPOINT, CONSTANTS
from privfed.store.config_file import ConfigFile
from privfed.store.folders import held_alone
from privfed.store.round_logs import AbortLog, ExclusionLog, MetricsLog, RanksLog, Releases
from privfed.store.run_files import (
    CheckpointFile,
    ConstantsFile,
    PopulationDigest,
    PrivateKey,
    PublicClientsFile,
)

Given = Mapping[str, type[Any]]


class RunDirectory:
    """A run directory, with one attribute for each file or folder of the run.

    Use `create` for a new run, and `open` for an existing one. `given` has the classes of parts
    that were passed as Python objects and are in no file, by kind.
    """

    def __init__(self, path: Path, given: Given | None = None) -> None:
        self.path = path
        self.given = given or {}
        self.ledger = path / "ledger.jsonl"
        self.config = ConfigFile.in_folder(path, self.given)
        self.checkpoint = CheckpointFile(path / CHECKPOINT, self.ledger)
        self.constants = ConstantsFile(path / CONSTANTS)
        self.releases = Releases(path / "releases")
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.aborts = AbortLog(path / "aborts.jsonl")
        self.exclusions = ExclusionLog(path / "excluded.jsonl", path / "private" / "proofs")
        self.summary = path / "report" / "summary.json"
        self.ranks = RanksLog(path / "report" / "simulation_only_ranks.jsonl")
        self.clients = path / "report" / "simulation_only_clients.csv"
        self.public_clients = PublicClientsFile(path / "report" / "public_clients.json")
        self.private = path / "private"
        self.key = PrivateKey(self.private / "key")
        self.states = self.private / STATES_FILE
        self.histories = self.private / "histories" / STATES_FILE
        self.canaries = self.private / "canaries.f64"
        self.canary_examples = self.private / "canaries.safetensors"
        self.silos = self.private / "silos"
        self.population = PopulationDigest(self.private / "population")
        self._attackers = path / "report" / "attackers.json"
        self._counted = path / "counted_by.txt"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Creates a run directory at `path`, where an empty directory may exist.

        Raises:
          Refused: if `path` is a file, or a directory that has more than hidden files and empty
            folders `releases` and `report`, which an interrupted start may leave.
        """
        if path.exists() and not path.is_dir():
            raise Refused(f"--out is {path}, but that is a file; name a new or empty directory")
        if path.is_dir() and not _is_untouched(path):
            another = "another run" if (path / "ledger.jsonl").exists() else "other files"
            raise Refused(
                f"--out is {path}, but that contains {another}; nothing was changed; name a new "
                f"directory, or resume a run: {resume_command(path)}"
            )
        directory = cls(path)
        directory.make_folders()
        return directory

    @classmethod
    def open(cls, path: Path | RunDirectory) -> RunDirectory:
        """Returns the run directory at `path`; a `RunDirectory` is returned unchanged.

        Raises:
          Refused: if there is no run at `path`.
          Broken: if there is a ledger, but no configuration.
        """
        if isinstance(path, RunDirectory):
            return path
        if not (path / "config.toml").is_file():
            if (path / "ledger.jsonl").exists():
                raise Broken(
                    f"{path} has a ledger, but config.toml is missing; restore config.toml"
                )
            raise Refused(
                f"{path} is not a run directory, since it has no config.toml; name a run directory"
            )
        return cls(path)

    def with_given(self, given: Given) -> RunDirectory:
        """Returns the same run, with the classes in `given` added to its own, or in their place."""
        return RunDirectory(self.path, {**self.given, **given})

    def locked(self, reads: bool = False) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which this process holds the lock of the directory.

        Args:
          reads: whether this process only reads the directory, and so needs no write access.

        Raises:
          Busy: if another process holds the lock.
        """
        taken = Busy(f"{self.path} is in use by another process; wait for that process to end")
        return held_alone(self.path, taken, reads)

    def make_folders(self) -> None:
        """Creates the folders releases and report if missing (copying may have lost empty ones)."""
        durable.make_folder(self.releases.folder)
        durable.make_folder(self.summary.parent)
        # The directory may be left over from an interrupted start.
        durable.sync_folder(self.path.resolve().parent)

    def recover(self) -> None:
        """Restores the directory after a crash.

        Afterwards the folders releases and report exist, no file is half written, and all names of
        files are durable. The folder private gets mode 0700.
        """
        self.make_folders()
        if self.private.is_dir():
            self.private.chmod(0o700)  # an older version, or a copy, may have left it open
        folders = (
            *(self.path, self.releases.folder, self.summary.parent, self.private, self.silos),
            self.exclusions.proofs,
        )
        for folder in filter(Path.is_dir, folders):
            durable.recover_folder(folder)

    def began(self) -> bool:
        """Whether files exist that a run writes only after it has opened its ledger.

        These are a checkpoint, metrics, a summary or stored releases.
        """
        later = (self.checkpoint.path, self.metrics.path, self.summary)
        return any(path.exists() for path in later) or bool(self.releases.rounds())

    def companions(self) -> dict[str, str]:
        """Returns SHA-256 digests, by file name, of files that never change once a ledger exists.

        These are `constants.safetensors` and `public_clients.json`, if they exist.
        """
        return {
            path.name: hashlib.sha256(regular.read_bytes(path)).hexdigest()
            for path in (self.constants.path, self.public_clients.path)
            if path.exists()
        }

    def mark_counted_by(self, run: Path) -> None:
        """Records that the run at `run` counts this run's charges; see `refuse_if_counted`.

        Does nothing if the record cannot be written.
        """
        # A directory that cannot be written to cannot be resumed either.
        with contextlib.suppress(OSError):
            durable.append(self._counted, f"{run}\n".encode())

    def refuse_if_counted(self) -> None:
        """Raises `Refused` if a later run was recorded that counts this run's charges."""
        if self._counted.exists():
            runs = regular.read_text(self._counted, errors="replace").splitlines()
            by = runs[0] if runs else "another run"
            raise Refused(
                f"{self.path} was counted as an earlier run by {by}, but no run would count its "
                "further rounds; start a new run instead, with both runs in privacy.prior and this "
                "run in model.init"
            )

    def write_attackers(self, attackers: Mapping[str, Any]) -> None:
        """Writes `report/attackers.json`, which describes the attackers of a simulation."""
        durable.write_atomically(self._attackers, (dump(dict(attackers), indent=1) + "\n").encode())

    def write_clients(self, table: str) -> None:
        """Writes `report/simulation_only_clients.csv`, with the content `table` (CSV).

        It has a line for each client that took part in a simulation, with evidence against it.
        """
        durable.write_atomically(self.clients, table.encode())

    def stopped_at_budget(self) -> bool:
        """Whether the summary states that the run stopped at its budget.

        False if there is no summary, or it is not a JSON object.
        """
        if not self.summary.exists():
            return False
        with contextlib.suppress(ValueError, AttributeError):
            return from_json(regular.read_text(self.summary)).get("stopped_at_budget") is True
        return False

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `report/summary.json`, the outcome of the run."""
        durable.write_atomically(self.summary, (dump(summary, indent=2) + "\n").encode())


def _is_untouched(folder: Path) -> bool:
    """Whether `folder` is empty except for files that an interrupted start may have left.

    These are hidden files, and the empty folders `releases` and `report`.
    """
    made = {"releases", "report"}
    return all(
        item.name.startswith(".")
        or (item.name in made and item.is_dir() and not any(item.iterdir()))
        for item in folder.iterdir()
    )
