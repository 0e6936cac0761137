"""The commands that test other pipelines than privfed's: `privfed canary new` and `judge`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import (
    ANY_PATH,
    DIRECTORY,
    JSON,
    ROUNDS,
    SAMPLING_RATE,
    answers_errors,
    print_answer,
)
from privfed.core.errors import Refused
from privfed.core.failures import REFUTED

if TYPE_CHECKING:
    from privfed.auditing.judged_canaries import PipelineClaim


_LARGEST = 50
"""Largest claimed ε that canaries could refute."""
_SMALLEST_DELTA = 1e-300


@click.group("canary")
def canary() -> None:
    """Test the ε of a pipeline that is not privfed's, by canary clients."""


@canary.command("new")
@click.argument("directory", metavar="DIR", type=ANY_PATH)
@click.option(
    "--count", type=click.IntRange(1), default=500, show_default=True, help=("Number of canaries.")
)
@click.option(
    "--dimension",
    type=click.IntRange(1),
    required=True,
    help="Number of floating-point numbers in the model.",
)
@click.option(
    "--clip",
    type=float,
    default=1.0,
    show_default=True,
    help="Clipping norm of the pipeline; a canary sends an update of 1000 times this norm.",
)
@click.option(
    "--relation",
    default="add/remove",
    show_default=True,
    help="Adjacency relation of the claim: add/remove, zero-out or replace-one.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the inclusion bits, for simulations.")
@answers_errors
def new_canaries_command(
    directory: Path, count: int, dimension: int, clip: float, relation: str, seed: int | None
) -> int:
    """Draw secret directions and secret bits into a new folder DIR, before the run.

    Keep DIR secret until the run has ended. Publish its manifest.json, which holds no secret: with
    it, others can verify that bits and directions were fixed before the run.
    """
    from privfed.canary.drawing import CanaryRequest

    folder = CanaryRequest(count, dimension, clip, relation, seed).write(directory)
    meaning, heads = folder.manifest().meaning, int(folder.inclusion().sum())
    click.echo(
        f"{count} canaries for models of {dimension:,} numbers: {heads} {meaning.heads_name}, "
        f"{count - heads} {meaning.tails_name}"
    )
    click.echo(
        "privfed: start a client for each number in privfed.canary.participants(DIR); it answers "
        "by privfed.canary.Client(DIR, number). Save the initial model and every released model. "
        f"Then: privfed canary judge {shlex.quote(str(directory))} --releases MODELS "
        "--claimed-epsilon ε --delta δ",
        err=True,
    )
    return 0


@canary.command("judge")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--releases",
    type=ANY_PATH,
    required=True,
    metavar="MODELS",
    help="A folder of numbered models (.npy, .npz, .pt or .safetensors), the initial one first.",
)
@click.option(
    "--claimed-epsilon",
    "epsilons",
    type=float,
    multiple=True,
    help="The claimed ε; for several points of one claim repeat it, with a --delta for each.",
)
@click.option(
    "--delta", "deltas", type=float, required=True, multiple=True, help=("δ of the claim.")
)
@click.option(
    "--gaussian",
    is_flag=True,
    help="The claim is one of Gaussian noise, with every client in each round.",
)
@click.option(
    "--noise-multiplier",
    type=click.FloatRange(0, min_open=True),
    help="Instead of ε: standard deviation of Gaussian noise over the sensitivity.",
)
@SAMPLING_RATE
@ROUNDS
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help=("Confidence of the bounds.")
)
@JSON
@answers_errors
def judge_command(
    directory: Path,
    releases: Path,
    epsilons: tuple[float, ...],
    deltas: tuple[float, ...],
    gaussian: bool,
    noise_multiplier: float | None,
    sampling_rate: float | None,
    rounds: int | None,
    confidence: float,
    as_json: bool,
) -> int:
    """Test a claim on released models; exit code 4 if the canaries in DIR refute it."""
    if noise_multiplier is None:
        if sampling_rate is not None or rounds is not None:
            raise Refused(
                "--sampling-rate or --rounds is given, but has an effect only with "
                "--noise-multiplier; add --noise-multiplier"
            )
        claim = _claim_at_points(epsilons, deltas, gaussian)
    else:
        if epsilons or gaussian or len(deltas) != 1:
            raise Refused(
                "--noise-multiplier is given, but needs exactly one --delta, and neither "
                "--claimed-epsilon nor --gaussian; change these options"
            )
        claim = _claim_of_rounds(noise_multiplier, sampling_rate or 1.0, rounds or 1, deltas[0])
    if not 0 < confidence < 1:
        raise Refused(f"--confidence is {confidence}; expected a number above 0 and below 1")
    from privfed.api.answer import Answer
    from privfed.auditing.judged_canaries import judge_releases, judgement_rows
    from privfed.canary.folder import Folder
    from privfed.report.tables import rows

    judgement = judge_releases(Folder(directory), releases, claim, confidence)
    answer = Answer.of(judgement, lambda judged: rows(judgement_rows(judged)))
    return print_answer(answer, as_json, REFUTED if judgement.refuted else 0)


def _claim_at_points(
    epsilons: Sequence[float], deltas: Sequence[float], gaussian: bool
) -> PipelineClaim:
    """Returns the claim of the points (ε, δ).

    If `gaussian` is true, it is the claim of the Gaussian profile through the single point.

    Raises `Refused` for no point, unequal numbers of ε and δ, a value out of range, or several
    points with `gaussian`.
    """
    if len(epsilons) != len(deltas) or not epsilons:
        raise Refused(
            f"--claimed-epsilon is given {len(epsilons)} times and --delta {len(deltas)} times, "
            "but each ε of a claim needs its δ; give both options equally often, at least once"
        )
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        _refuse_delta(delta)
        if not 0 <= epsilon <= _LARGEST:
            raise Refused(
                f"--claimed-epsilon is {epsilon:g}; expected a number from 0 to {_LARGEST}"
            )
    if gaussian and len(epsilons) > 1:
        raise Refused(
            "--gaussian is given, but needs a single point of the claim; give one "
            "--claimed-epsilon and one --delta"
        )
    from privfed.auditing.judged_canaries import PipelineClaim

    points = list(zip(epsilons, deltas, strict=True))
    return PipelineClaim.of_gaussian(points[0]) if gaussian else PipelineClaim.at(points)


def _claim_of_rounds(
    noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
) -> PipelineClaim:
    _refuse_delta(delta)
    from privfed.auditing.judged_canaries import PipelineClaim

    return PipelineClaim.of_rounds(noise_multiplier, sampling_rate, rounds, delta)


def _refuse_delta(delta: float) -> None:
    if not _SMALLEST_DELTA <= delta < 1:
        raise Refused(
            f"--delta is {delta:g}; expected a number from {_SMALLEST_DELTA:g} to below 1"
        )
