"""The templates that are shipped: grid files, whose base is a run file of the user's."""

from __future__ import annotations

from importlib.resources import files

TEMPLATES = {"field-guide": "field_guide.toml"}
"""Name on the command line -> file beside this module."""


def template(name: str) -> str:
    """The text of a grid file, as TOML. Raises `KeyError` for a name that no template has."""
    return (files("privfed.grid.templates") / TEMPLATES[name]).read_text(encoding="utf-8")
