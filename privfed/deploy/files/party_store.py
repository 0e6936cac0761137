"""What a site keeps of the sum that it takes part in, so that it survives a crash: in `state/`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from accounting import regular
from accounting.durable import make_folder, write_atomically


@dataclass(frozen=True)
class PartyStore:
    """The question of the sum in hand, and its party's state, in a folder that nobody else reads.

    The question is durable before the first state of its party, and a state that is of another
    question is none. It holds secrets: no copy of it is kept, and none is ever restored.
    """

    folder: Path

    def begin(self, question: bytes) -> None:
        """Keep the `question` of a new sum in the place of the last one and its state."""
        make_folder(self.folder, 0o700)
        self._state.unlink(missing_ok=True)
        self._write(self._question, question)

    def commit(self, state: bytes) -> None:
        """Make a party's `state` durable in the place of the one before."""
        self._write(self._state, state)

    def read(self) -> tuple[bytes, bytes] | None:
        """The question in hand and the last state of its party; None where there is no state."""
        if not self._state.exists() or not self._question.exists():
            return None
        return regular.read_bytes(self._question), regular.read_bytes(self._state)

    @property
    def _question(self) -> Path:
        return self.folder / "question"

    @property
    def _state(self) -> Path:
        return self.folder / "party"

    def _write(self, path: Path, content: bytes) -> None:
        before = os.umask(0o077)
        try:
            write_atomically(path, content)
        finally:
            os.umask(before)
