"""The command that lists the parts that a run is made of: `privfed list`."""

from __future__ import annotations

import click

from privfed.cli.answering import answers_errors, print_json
from privfed.cli.options import JSON
from privfed.json_text import dump


@click.command("list")
@JSON
@click.option("--schema", is_flag=True, help="Print the JSON schema of run files, for editors.")
@answers_errors
def list_command(as_json: bool, schema: bool) -> int:
    """List every part by kind, with its one line."""
    from privfed.config import catalog
    from privfed.report.console import console

    if schema:
        click.echo(dump(catalog.schema(), indent=2))
    elif as_json:
        print_json(catalog.catalog())
    else:
        from privfed.report.catalog import catalog_table

        console(False).print(catalog_table(catalog.catalog()))
    return 0
