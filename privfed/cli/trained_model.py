"""The commands that use a trained model: `privfed evaluate`, `predict` and `export`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import (
    DIRECTORY,
    FILE,
    JSON,
    RUN_DIRECTORY,
    data_overrides,
    print_answer,
    print_json,
    quoted,
    quotes_on_request,
)
from privfed.core.errors import Refused
from privfed.core.failures import report_error
from privfed.core.text import visible

if TYPE_CHECKING:
    from privfed.api.answer import Answer


@click.command("evaluate")
@RUN_DIRECTORY
@click.option("--data", metavar="PATH", help="Other data of the same form: --set data.path=PATH.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.key=value",
    help="data.key: other data; evaluation.key, with --federated: the metrics; privacy.disjoint, "
    "with --out: earlier runs that share no client with the new one.",
)
@click.option(
    "--predictions", type=FILE, help="File of predictions to write: .csv, .parquet or .npz."
)
@click.option(
    "--personalise",
    type=click.IntRange(0, 10_000),
    metavar="EPOCHS",
    help="Fine-tune on half of each client's examples, and score on the other half; 0: score the "
    "personal models that clients keep. A simulation.",
)
@click.option(
    "--federated",
    is_flag=True,
    help="The run's clients score the model in one round, which is charged.",
)
@click.option(
    "--out", type=DIRECTORY, help="With --federated: a new run, in which other clients score."
)
@click.option("--epsilon", type=float, help="With --federated: ε of that round alone.")
@click.option("--group", default="", metavar="COLUMN", help="Also score each group of this column.")
@JSON
@quotes_on_request
def evaluate_command(
    directory: Path,
    data: str | None,
    overrides: tuple[str, ...],
    predictions: Path | None,
    personalise: int | None,
    federated: bool,
    out: Path | None,
    epsilon: float | None,
    group: str,
    as_json: bool,
) -> int:
    """Evaluate a trained model on the run's own test examples, or on another data source."""
    from privfed.api.commands import opened

    if personalise is not None:
        others = (data, epsilon, overrides, predictions, federated, out, group)
        if any(other not in (None, (), False, "") for other in others):
            raise Refused(
                "--personalise is given with options other than --json, which then have no "
                "effect; leave the other options out"
            )
        return print_answer(_personal(directory, personalise), as_json)
    if not federated and (out or epsilon is not None):
        raise Refused(
            "--epsilon or --out is given, but an evaluation on test examples releases nothing "
            "about clients; add --federated, or leave the option out"
        )
    if federated:
        if predictions or group:
            raise Refused(
                "--federated is given, but clients reveal no predictions; leave --predictions and "
                "--group out (for metrics of groups use --set evaluation.group=COLUMN)"
            )
        return _by_clients(directory, epsilon, data, overrides, out, as_json)
    other_data = [*([f"data.path={quoted(data)}"] if data is not None else []), *overrides]
    answer = opened(directory).evaluate(predictions=predictions, group=group, keys=other_data)
    return print_answer(answer, as_json)


def _personal(directory: Path, epochs: int) -> Answer:
    """Evaluates personal models, fine-tuned for `epochs`; 0: those that clients keep."""
    from privfed.api.answer import Answer
    from privfed.report.trained_model import personal_table
    from privfed.trained.kept_models import score_kept_models
    from privfed.trained.personalise import personalise

    scored = personalise(directory, epochs) if epochs else score_kept_models(directory)
    return Answer.of(scored, personal_table)


def _by_clients(
    directory: Path,
    epsilon: float | None,
    data: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluates the model by an evaluation round; prints the result and returns the exit code.

    The run's own clients are used or, if `out` is given, those of `data` in a new run at `out`.
    """
    from privfed.api.answer import Answer
    from privfed.api.commands import opened
    from privfed.config.overrides import evaluation_keys

    about_population = ("data.", "privacy.disjoint") if out else ("data.",)
    of_data = [each for each in overrides if each.lstrip().startswith(about_population)]
    keys = evaluation_keys(each for each in overrides if each not in of_data)
    if data is not None:
        of_data.insert(0, f"data.path={quoted(data)}")
    if bool(of_data) != (out is not None):
        raise Refused(
            "--data (or --set data.KEY=VALUE) and --out name the data and the new run of other "
            "clients, but only one of the two is given; give both, or neither, to evaluate by the "
            "run's own clients"
        )
    try:
        if out is None:
            answer = opened(directory).evaluate_by_clients(epsilon, **keys)
        else:
            from privfed.report.trained_model import clients_table
            from privfed.run.evaluation.evaluate_by_clients import evaluate_by_further_clients

            scored = evaluate_by_further_clients(directory, of_data, out, epsilon, keys)
            answer = Answer.of(scored, clients_table)
    except (KeyboardInterrupt, OSError) as error:
        spent = (
            f"a charged round remains charged: privfed audit {shlex.quote(str(out or directory))}"
        )
        return report_error(error, spent)
    return print_answer(answer, as_json)


@click.command("predict")
@RUN_DIRECTORY
@click.option("--data", metavar="PATH", required=True, help="The rows: --set data.path=PATH.")
@data_overrides("Other keys of the rows' source.")
@click.option("--out", type=FILE, help=".csv, .parquet or .npz; default: CSV to standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; needs --out.")
@quotes_on_request
def predict_command(
    directory: Path, data: str, overrides: tuple[str, ...], out: Path | None, as_json: bool
) -> int:
    """Predict rows with a trained model; rows with labels are also evaluated."""
    from privfed.report.console import console
    from privfed.report.trained_model import prediction_table
    from privfed.trained.evaluate import as_csv
    from privfed.trained.predict import predict

    if as_json and out is None:
        raise Refused(
            "--json is given without --out, but standard output cannot hold both the object and "
            "the predictions; add --out FILE"
        )
    predicted = predict(directory, [f"data.path={quoted(data)}", *overrides], out)
    if out is None:
        _to_standard_output(as_csv(predicted.table))
    if as_json:
        return print_json(predicted.to_json())
    console(out is None).print(prediction_table(predicted))
    return 0


@click.command("export")
@RUN_DIRECTORY
@click.option("--to", type=FILE, required=True, help=".safetensors, .pt2 or .onnx.")
@click.option(
    "--adapters",
    is_flag=True,
    help="Only the adapters of [model.lora]: .safetensors, or a folder for peft.",
)
@JSON
@quotes_on_request
def export_command(directory: Path, to: Path, adapters: bool, as_json: bool) -> int:
    """Export a trained model, with its preprocessing, for programs without privfed."""
    from privfed.api.commands import export

    return print_answer(export(directory, to, adapters), as_json)


def _to_standard_output(content: bytes) -> None:
    """Prints `content`; ignores that the output pipe is closed (`privfed predict … | head`).

    On a terminal, control characters are escaped; a file or pipe receives the content unchanged.
    """
    shown = visible(content.decode()).encode() if sys.stdout.isatty() else content
    try:
        click.echo(shown, nl=False)
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.close(silence)
