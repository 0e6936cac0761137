"""A person's approvals of runs at a site, for a policy with `approve = "by_hand"`.

The folder `approvals` holds up to two files for each run, named by the run's digest. The agent
writes `<digest>.toml`, the run file as the site understands it. Only `privfed site approve` and
`privfed site decline` write `<digest>.json`, the decision.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accounting import regular
from accounting.documents import Encoded, from_toml
from accounting.durable import create, make_folder, write_atomically
from accounting.errors import Misplaced
from privfed.core.errors import Refused
from privfed.core.text import utc

_DIGEST = re.compile("[0-9a-f]{64}")
_SHORTEST = 8
"""Digits of a recorded run's digest that suffice on the command line."""
_MOST = 100
"""Largest number of recorded runs without a decision: declarations cannot fill the disk."""


class _Decision(BaseModel):
    """The content of `<digest>.json`; an approval ends at `until`, in seconds since 1970."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision: Literal["approved", "declined"]
    until: float = Field(0.0, ge=0, le=1e11)


@dataclass(frozen=True)
class Approval(Encoded):
    """The decision about a run.

    Attributes:
      digest: the run's digest (`approval_digest`), 64 hexadecimal digits.
      decision: "pending", "approved", "declined", "expired" (an approval that has ended), or
        "damaged" (its file is invalid).
      declared: time of the first declaration to this site; empty before. Times are ISO 8601, UTC.
      until: end of the approval; empty if the run is pending or declined.
      run_file: path of the run file; there is no such file before the run was declared.
    """

    digest: str
    decision: str
    declared: str
    until: str
    run_file: str


@dataclass(frozen=True)
class Approvals:
    """The decisions about runs in the directory `folder`; none if there is no such directory."""

    folder: Path

    def of(self, digest: str) -> Approval:
        """Returns the decision about a run; a run without a recorded one is pending.

        If the file of the decision is invalid or cannot be read, the decision is "damaged", so that
        this run alone is not answered.
        """
        path, text = self._paths(digest)
        stored, decision = None, "pending"
        try:
            stored = _Decision.model_validate_json(regular.read_bytes(path))
            ended = stored.decision == "approved" and time.time() >= stored.until
            decision = "expired" if ended else stored.decision
        except FileNotFoundError:
            pass
        except (OSError, Misplaced, ValidationError):
            decision = "damaged"
        return Approval(
            digest,
            decision,
            utc(text.stat().st_mtime if text.exists() else 0.0),
            utc(stored.until if stored else 0.0),
            str(text),
        )

    def record(self, digest: str, run_file: str) -> None:
        """Stores the text `run_file` of a declared run for the person who decides.

        Stores nothing if it is stored already, or if 100 declared runs are without a decision.
        """
        pending = [
            text for text in self.folder.glob("*.toml") if not text.with_suffix(".json").exists()
        ]
        if len(pending) < _MOST:
            make_folder(self.folder, 0o700)
            with suppress(FileExistsError):
                create(self._paths(digest)[1], run_file.encode())

    def all(self) -> Iterator[Approval]:
        """Yields the decisions about all declared or decided runs, the latest declaration first."""
        names = {path.stem for path in self.folder.glob("*.*") if _DIGEST.fullmatch(path.stem)}
        yield from sorted(map(self.of, names), key=lambda each: each.declared, reverse=True)

    def decide(self, digest: str, decision: Literal["approved", "declined"], days: float) -> str:
        """Records a decision, and returns the digest of its run.

        Args:
          digest: all 64 digits of a run's digest (the run need not be recorded), or at least the
            first 8 of one that `all` yields.
          decision: the decision.
          days: days until an approval ends; an approval of 0 days has ended. 0 for a declined run.

        Raises:
          Refused: if `digest` identifies no run, or several runs, or if this user does not own the
            site's folder, so that its agent could not read the decision.
        """
        owner = self.folder.parent.stat().st_uid
        if owner != os.geteuid():
            raise Refused(
                f"{self.folder.parent} belongs to the user {owner}, but you are {os.geteuid()}; "
                f"run the command as that user, for example by: sudo -u '#{owner}'"
            )
        matches = [each.digest for each in self.all() if each.digest.startswith(digest)]
        if _DIGEST.fullmatch(digest):
            matches = [digest]
        if len(digest) < _SHORTEST or len(matches) != 1:
            raise Refused(
                f"{digest!r} does not identify a run; pass the 64 digits of a digest, or at least "
                f"the first {_SHORTEST} of one that privfed site pending lists"
            )
        until = time.time() + days * 86_400 if days else 0.0
        make_folder(self.folder, 0o700)
        content = _Decision(decision=decision, until=until).model_dump_json()
        write_atomically(self._paths(matches[0])[0], f"{content}\n".encode())
        return matches[0]

    def _paths(self, digest: str) -> tuple[Path, Path]:
        """Returns the path of the decision (JSON), then that of the run file (TOML)."""
        return self.folder / f"{digest}.json", self.folder / f"{digest}.toml"


def approval_digest(
    federation: str, run_file: str, local_keys: Mapping[str, Iterable[str]], model_file: str
) -> str:
    """Returns the digest of a run that a person approves; it is the same at all sites.

    Args:
      federation: digest of the federation file, which names the coordinator and all sites.
      run_file: the run file, as the site resolves it.
      local_keys: the keys that each site sets for itself, by section; they are left out.
      model_file: digest of the file of an external model; empty for a built-in model.
    """
    document = from_toml(run_file)
    for section, keys in local_keys.items():
        for key in keys:
            document[section].pop(key, None)
    text = json.dumps([federation, model_file, document], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
