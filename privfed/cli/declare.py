"""The command that drafts a run file for a user's table: `privfed declare`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import quotes_on_request
from privfed.cli.options import ANYTHING
from privfed.visible import visible_toml


@click.command("declare")
@click.argument("sample", metavar="SAMPLE", type=ANYTHING)
@click.option("--label", required=True, help="The column to predict.")
@click.option("--client", default="", help="The column that says whose a row is.")
@click.option("--site", default="", help="The column that says at which site a row is.")
@click.option("--path", help="Where the private table lies; default: the sample.")
@click.option("--delimiter", help="What divides cells; default: what seems to.")
@click.option("--encoding", help="Of the sample's text; default: the first common one that fits.")
@quotes_on_request
def declare_command(
    sample: Path,
    label: str,
    client: str,
    site: str,
    path: str | None,
    delimiter: str | None,
    encoding: str | None,
) -> int:
    """Write a run file for your table from a PUBLIC sample of it, to standard output."""
    from privfed.data.declaring.declare import declare

    declared = declare(sample, label, client, path or str(sample), delimiter, encoding, site)
    click.echo(visible_toml(declared), nl=False)
    click.echo(
        "privfed: fill in data.clients and cohort.size, then: privfed check RUN.toml", err=True
    )
    return 0
