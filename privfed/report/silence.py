"""A console that shows nothing."""

from __future__ import annotations

import io

from rich.console import Console


def silent() -> Console:
    """A console that shows nothing."""
    return Console(file=io.StringIO(), quiet=True)
