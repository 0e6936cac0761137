"""The files of a run directory, and the packages that privfed depends on."""

from __future__ import annotations

import re
import tomllib

from pages.markdown import ROOT, code, table
from privfed.store.run_files import FILES

DEPENDENCY = re.compile(r'^ +"([\w.-]+)[^"]*",(?:  # (.*))?$', re.MULTILINE)


def run_directory() -> str:
    """A table of what may lie there."""
    return table(["file", "content"], [(code(name), text) for name, text in FILES.items()])


def dependencies() -> str:
    """What is always installed, and for what, as `pyproject.toml` says; then the extras."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = text.partition("dependencies = [")[2].partition("\n]")[0]
    always = table(
        ["package", "purpose"], [(code(n), why) for n, why in DEPENDENCY.findall(listed)]
    )
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    why = dict(re.findall(r"^(\w+) = \[.*?  # (.*)$", text, re.MULTILINE))
    rows = [(code(name), _names(packages), why.get(name, "")) for name, packages in extras.items()]
    return f"{always}\n## Extras\n\n{table(['extra', 'packages', 'purpose'], rows)}"


def _names(packages: list[str]) -> str:
    return ", ".join(code(re.split(r"[<>=]", package)[0]) for package in packages)
