"""The commands that release statistics of a federation: `privfed declare` and `describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from privfed.cli.answering import (
    ANY_PATH,
    JSON,
    OVERRIDES,
    RELEASE_DELTA,
    RELEASE_EPSILON,
    RELEASE_RUN_FILE,
    print_json,
    quotes_on_request,
    refuse_new_options,
    resume_hint,
    write_release,
)
from privfed.core.errors import Refused
from privfed.core.failures import report_error
from privfed.core.text import visible_toml


@click.command("declare")
@click.argument("sample", metavar="[SAMPLE]", required=False, type=ANY_PATH)
@click.option("--from", "described", type=ANY_PATH, help="Statistics from `privfed describe`.")
@click.option("--label", required=True, help="The column to predict.")
@click.option("--client", default="", help="The column of client ids.")
@click.option("--site", default="", help="The column of sites.")
@click.option("--path", help="Path of the private table; default: that of the sample.")
@click.option("--delimiter", help="Delimiter of cells; default: detected.")
@click.option(
    "--encoding", help=("Encoding of the sample; default: the first common one that fits.")
)
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
        raise Refused(
            "SAMPLE and --from are both given or both missing, but exactly one is needed; name a "
            "public SAMPLE of the table, or --from STATISTICS"
        )
    if described is not None:
        if client or site or path or delimiter or encoding:
            raise Refused(
                "--from is given, but its statistics already state the clients and the format of "
                "the table; keep only --label in addition"
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
    """Returns the text of a run file for the table with the released statistics `described`.

    `described` is a statistics file or the directory of its run; `label` is the label column.
    """
    from privfed.analytics.declaration import declare_described
    from privfed.analytics.statistics_file import read_statistics

    statistics = read_statistics(described)
    return declare_described(statistics, label)


@click.command("describe")
@click.argument("run_file", metavar="RUN.toml", type=ANY_PATH)
@OVERRIDES
@RELEASE_EPSILON
@RELEASE_DELTA
@click.option(
    "--column", "columns", multiple=True, help="An undeclared column to describe; may be repeated."
)
@click.option(
    "--rows-per-client",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Largest number of counted rows per client.",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="Number of buckets for the words of undeclared columns.",
)
@click.option(
    "--letters",
    type=click.IntRange(1, 64),
    default=12,
    show_default=True,
    help="Number of leading bytes to recover of these words.",
)
@click.option("--out", type=ANY_PATH, help="New folder X; X.json also writes the statistics there.")
@RELEASE_RUN_FILE
@JSON
@quotes_on_request
def describe_command(
    run_file: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    new_file: Path | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Release statistics of the columns of all clients, charged once.

    If RUN.toml is a run directory, its statistics are only read again.
    """
    from privfed.analytics.describe import DescriptionRequest, describe, statistics_of
    from privfed.report.console import console
    from privfed.report.statistics import statistics_tables

    if run_file.is_dir():
        refuse_new_options()
        statistics = statistics_of(run_file)
    elif new_file is not None:
        return write_release(run_file, overrides, DescriptionRequest(**asked), new_file)
    else:
        folder, file = _places(out)
        try:
            statistics = describe(run_file, overrides, DescriptionRequest(**asked), folder)
        except (KeyboardInterrupt, OSError) as error:
            return report_error(error, resume_hint(folder))
        if file is not None:
            from privfed.analytics.statistics_file import write_statistics

            write_statistics(file, statistics)
    if as_json:
        return print_json(statistics.model_dump(mode="json"))
    console(False).print(*statistics_tables(statistics), sep="\n")
    return 0


def _places(out: Path | None) -> tuple[Path, Path | None]:
    """Returns the run's folder, and the .json file to write; None if `out` names no .json file.

    The folder is `out`, without its suffix if that is .json; for None, a new folder in runs/.
    Raises `Refused` if the .json file exists.
    """
    if out is None:
        from privfed.store.folders import new_folder

        return new_folder("statistics"), None
    if out.suffix.lower() != ".json":
        return out, None
    if out.exists():
        raise Refused(
            f"--out is {out}, but that exists already; nothing was changed; name a new file, or a "
            "new folder"
        )
    return out.with_suffix(""), out
