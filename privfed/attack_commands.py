"""The commands that attack what a server or a reader sees: `privfed attack ...`."""

from __future__ import annotations

import click


@click.group()
def attack() -> None:
    """Read clients' data out of updates and models: inversion, membership, property."""
