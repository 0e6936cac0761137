"""Writes a Flower app that carries a run: four files, which contain paths and no secrets.

The app's two modules only import the privfed that is installed. Writing an app does not require
Flower.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from accounting.durable import make_folder
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.deploy.files.federation_file import FederationFile

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables that disable telemetry, the update check (which sends version and system),
and the installation of packages at the start of a run. None of them implies another.
"""


PACKAGE = "privfed_app"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
SECONDS, PATIENCE = 60.0, 120.0
"""Default seconds for each answer of a site, in addition to training, and for a round to wait for
enough sites.
"""


@dataclass(frozen=True)
class NewApp:
    """A Flower app in a new folder.

    Attributes:
      folder: folder of the app; must not exist.
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

    def write(self) -> None:
        """Writes pyproject.toml, and a package of three modules, into the new folder.

        Raises:
          Refused: if the folder exists or its name is invalid, the run file or federation file is
            invalid, or the key file does not exist; then nothing is written.
        """
        if not _NAME.fullmatch(self.folder.name):
            raise Refused(
                f"the folder's name is {self.folder.name!r}, but Flower expects at most 63 "
                "lower-case letters, digits and hyphens, with a letter first; choose another name"
            )
        if self.folder.exists():
            raise Refused(f"{self.folder} exists already; nothing was changed; name a new folder")
        load(self.run)
        FederationFile.read(self.federation)
        if not self.key.is_file():
            raise Refused(
                f"--key is {self.key}, but there is no such file; name the coordinator's key file"
            )
        package = self.folder / PACKAGE
        make_folder(package)
        (package / "__init__.py").write_text("", encoding="utf-8")
        for end in ("server", "client"):
            (package / f"{end}_app.py").write_text(_shim(end), encoding="utf-8")
        (self.folder / "pyproject.toml").write_text(self._pyproject(), encoding="utf-8")

    def _pyproject(self) -> str:
        stated = {"run": self.run, "federation": self.federation, "key": self.key, "out": self.out}
        lines = [f"{name} = {json.dumps(str(path.absolute()))}" for name, path in stated.items()]
        return _PYPROJECT.format(
            name=self.folder.name,
            package=PACKAGE,
            config="\n".join(lines),
            seconds=SECONDS,
            patience=PATIENCE,
        )


def _shim(end: str) -> str:
    return (
        f'"""The {end} app of the privfed that is installed on this machine."""\n\n'
        f"from privfed.deploy.carriers.flower.{end}_app import app\n\n"
        '__all__ = ["app"]\n'
    )


_PYPROJECT = """\
# Runs privfed over Flower: `flwr run . NAME`. This file holds no secret; every site may see it.
# Set FLWR_TELEMETRY_ENABLED=0, FLWR_DISABLE_UPDATE_CHECK=1 and
# FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 first; otherwise Flower contacts its own servers.
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0.0"
description = "Carries a run of privfed."
license = "Apache-2.0"
dependencies = []  # the machines have privfed[flower] installed

[tool.flwr.app]
publisher = "privfed"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]  # paths on the coordinator's machine, where SuperLink runs
{config}
seconds = {seconds}  # time for each answer of a site, in addition to training
patience = {patience}  # time that a round waits for enough sites
"""
