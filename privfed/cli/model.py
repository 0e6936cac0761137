"""The commands that use a trained model: predict and export."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from privfed.errors import Refused
from privfed.failures import quotes_on_request
from privfed.json_text import dump
from privfed.visible import visible

RUN = click.argument(
    "directory", metavar="RUN_DIR", type=click.Path(file_okay=False, path_type=Path)
)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@RUN
@click.option("--data", metavar="PATH", required=True, help="The rows: short for data.path.")
@click.option("--set", "overrides", multiple=True, metavar="data.key=value", help="How to read it.")
@click.option("--out", type=FILE, help=".csv, .parquet or .npz; default: CSV to standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; takes --out.")
@quotes_on_request
def predict(
    directory: Path, data: str, overrides: tuple[str, ...], out: Path | None, as_json: bool
) -> int:
    """Predict rows with a trained model: with labels (then it is scored, too) or without."""
    from privfed.cli.console import console
    from privfed.report.trained_model import prediction_table
    from privfed.trained.predict import predict as predict_rows
    from privfed.trained.predictions import as_csv

    if as_json and out is None:
        raise Refused("--json takes --out FILE: standard output cannot hold both")
    predicted = predict_rows(directory, [f"data.path={quoted(data)}", *overrides], out)
    if out is None:
        _to_standard_output(as_csv(predicted.table))
    if as_json:
        click.echo(dump(predicted.to_json()))
    else:
        console(out is None).print(prediction_table(predicted))
    return 0


@click.command()
@RUN
@click.option("--to", type=FILE, required=True, help=".safetensors, .pt2 or .onnx.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quotes_on_request
def export(directory: Path, to: Path, as_json: bool) -> int:
    """Write a trained model, with its preprocessing, for programs that have no privfed."""
    from privfed.cli.console import console
    from privfed.report.trained_model import export_table
    from privfed.trained.export import export as export_run

    exported = export_run(directory, to)
    if as_json:
        click.echo(dump(exported.to_json()))
    else:
        console(False).print(export_table(exported))
    return 0


def quoted(text: str) -> str:
    """As a TOML string: a path is never taken for a number."""
    import json

    return json.dumps(text)


def _to_standard_output(content: bytes) -> None:
    """Falls silent where nobody reads on (`privfed predict … | head`).

    A terminal is shown what clients' and columns' names would make it do; a file gets them as is.
    """
    shown = visible(content.decode()).encode() if sys.stdout.isatty() else content
    try:
        click.echo(shown, nl=False)
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.close(silence)
