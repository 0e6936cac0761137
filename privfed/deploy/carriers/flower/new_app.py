"""The files of a Flower app that carries a run; the app contains paths and no secrets.

The app's two modules only import the privfed that is installed. Writing an app does not require
Flower.
"""

from __future__ import annotations

import json
import re

from privfed.core.errors import Refused
from privfed.deploy.carriers.new_job import NewJob

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


def app_files(job: NewJob) -> dict[str, str]:
    """Returns the contents of an app's four files by path. Raises `Refused` for an invalid name."""
    name = job.folder.name
    if not _NAME.fullmatch(name):
        raise Refused(
            f"the folder's name is {name!r}, but Flower expects at most 63 lower-case letters, "
            "digits and hyphens, with a letter first; choose another name"
        )
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in job.config().items())
    return {
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/server_app.py": _shim("server"),
        f"{PACKAGE}/client_app.py": _shim("client"),
        "pyproject.toml": _PYPROJECT.format(name=name, package=PACKAGE, config=config),
    }


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

# Paths on the coordinator's machine, where SuperLink runs; seconds for each answer of a site, in
# addition to training; and seconds that a round waits for enough sites (patience).
[tool.flwr.app.config]
{config}
"""
