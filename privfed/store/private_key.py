"""The secret that a run keeps for itself, where draws of different rounds follow from one key."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from accounting import durable, regular
from privfed.errors import Broken


@dataclass(frozen=True)
class PrivateKey:
    """The file `private/key` at `path`: the run's id and 32 secret bytes, which nobody else reads.

    Whoever has it can compute who takes part when, and the noise that rounds share.
    """

    path: Path

    def read_or_draw(self, run: str, fresh: bool) -> bytes:
        """The 32 secret bytes of `run` that a resume needs; drawn now where it is `fresh`.

        Raises `Broken` where they are missing, or another run's.
        """
        if fresh and not self.path.exists():
            durable.make_folder(self.path.parent, 0o700)
            durable.write_atomically(self.path, f"{run} {os.urandom(32).hex()}\n".encode())
        text = regular.read_text(self.path, "ascii", "replace") if self.path.is_file() else ""
        owner, _, key = text.strip().partition(" ")
        if owner != run or not re.fullmatch("[0-9a-f]{64}", key):
            raise Broken(
                f"{self.path} is missing, or not this run's: who takes part when, and the noise "
                "that rounds share, follow from it. Restore it, or start a new run"
            )
        self.path.parent.chmod(0o700)
        self.path.chmod(0o600)
        return bytes.fromhex(key)
