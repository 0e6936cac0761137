"""A folder for a run that nobody keeps."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A folder at `path` that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="privfed-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
