"""Writes what an engine needs to start a run: a folder with paths in it, and no secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from accounting.durable import make_folder
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.deploy.files.federation_file import FederationFile

SECONDS, PATIENCE = 60.0, 120.0
"""Default seconds for each answer of a site, in addition to training, and for a round to wait for
enough sites.
"""


@dataclass(frozen=True)
class NewJob:
    """A new folder that starts a run over an engine.

    Attributes:
      folder: the folder; must not exist.
      run: the run file.
      federation: the federation file.
      key: file of the coordinator's key.
      out: the run directory.
    """

    folder: Path
    run: Path
    federation: Path
    key: Path
    out: Path

    def config(self) -> dict[str, str | float]:
        """Returns the configuration that `engine_run.Settings.of` reads."""
        stated = {"run": self.run, "federation": self.federation, "key": self.key, "out": self.out}
        paths = {name: str(path.absolute()) for name, path in stated.items()}
        return {**paths, "seconds": SECONDS, "patience": PATIENCE}

    def write(self, files: Callable[[NewJob], Mapping[str, str]]) -> None:
        """Writes `files` of this job into the new folder: contents by relative path.

        Raises:
          Refused: if the folder exists, the run file or federation file is invalid, or the key file
            does not exist, and what `files` raises; then nothing is written.
        """
        if self.folder.exists():
            raise Refused(f"{self.folder} exists already; nothing was changed; name a new folder")
        load(self.run)
        FederationFile.read(self.federation)
        if not self.key.is_file():
            raise Refused(
                f"--key is {self.key}, but there is no such file; name the coordinator's key file"
            )
        for name, text in files(self).items():
            make_folder((self.folder / name).parent)
            (self.folder / name).write_text(text, encoding="utf-8")
