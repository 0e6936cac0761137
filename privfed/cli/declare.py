"""The command that drafts a run file for a user's table: `privfed declare`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import ANYTHING, quotes_on_request
from privfed.errors import Refused
from privfed.text import visible_toml


@click.command("declare")
@click.argument("sample", metavar="[SAMPLE]", required=False, type=ANYTHING)
@click.option("--from", "described", type=ANYTHING, help="What `privfed describe` released.")
@click.option("--label", required=True, help="The column to predict.")
@click.option("--client", default="", help="The column that says whose a row is.")
@click.option("--site", default="", help="The column that says at which site a row is.")
@click.option("--path", help="Where the private table lies; default: the sample.")
@click.option("--delimiter", help="What divides cells; default: what seems to.")
@click.option("--encoding", help="Of the sample's text; default: the first common one that fits.")
@quotes_on_request
def declare_command(
    sample: Path | None,
    described: Path | None,
    label: str,
    client: str,
    site: str,
    path: str | None,
    delimiter: str | None,
    encoding: str | None,
) -> int:
    """Write a run file for your table, from a PUBLIC sample of it or released statistics."""
    if (sample is None) == (described is None):
        raise Refused("expected a public SAMPLE of the table, or --from STATISTICS: one of them")
    if described is not None:
        if client or site or path or delimiter or encoding:
            raise Refused(
                "--from states whose rows there are and how they are written; only add --label"
            )
        declared, open_keys = _of_statistics(described, label), "cohort.size"
    else:
        from privfed.data.declaring.declare import declare

        assert sample is not None
        declared = declare(sample, label, client, path or str(sample), delimiter, encoding, site)
        open_keys = "data.clients and cohort.size"
    click.echo(visible_toml(declared), nl=False)
    click.echo(f"privfed: fill in {open_keys}, then: privfed check RUN.toml", err=True)
    return 0


def _of_statistics(described: Path, label: str) -> str:
    """The run file that follows from the statistics in a file, or in the folder of their run."""
    from privfed.statistics.declaration import declare_described
    from privfed.statistics.statistics_file import read_statistics

    statistics = read_statistics(described)
    return declare_described(statistics, label)
