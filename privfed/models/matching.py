"""Names of parameters and modules, and the patterns that run files name them by."""

from __future__ import annotations

from fnmatch import fnmatchcase


def is_named(name: str, pattern: str) -> bool:
    """Whether `pattern` names it, or a module that holds it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
