"""The commands that test a pipeline that is not privfed's: `privfed canary new` and `judge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from privfed.cli.answering import answers_errors, print_answer, print_json
from privfed.cli.options import ANYTHING, DIRECTORY, JSON
from privfed.errors import Refused
from privfed.failures import REFUTED

_LARGEST = 50
"""A claim above which no number of canaries would say anything."""


@click.group("canary")
def canary() -> None:
    """Test the ε of a pipeline that is not privfed's, by canary clients."""


@canary.command("new")
@click.argument("directory", metavar="DIR", type=ANYTHING)
@click.option("--count", type=click.IntRange(1), default=500, show_default=True, help="How many.")
@click.option(
    "--dimension", type=click.IntRange(1), required=True, help="The model's floating-point numbers."
)
@click.option(
    "--clip",
    type=float,
    default=1.0,
    show_default=True,
    help="The pipeline's clip: a canary sends a row a thousand times as long.",
)
@click.option(
    "--relation",
    default="add/remove",
    show_default=True,
    help="add/remove, zero-out or replace-one: the neighbours of the claim.",
)
@click.option(
    "--seed", type=click.IntRange(0), help="Coins that follow from a number, for simulations."
)
@answers_errors
def new_canaries_command(
    directory: Path, count: int, dimension: int, clip: float, relation: str, seed: int | None
) -> int:
    """Draw secret directions and coins into a new folder DIR, before the run.

    Keep DIR to yourself until the run has ended. Give its manifest.json, which holds no secret, to
    whoever should be able to check that coins and directions were fixed before.
    """
    from privfed.canary.drawing import Drawing

    folder = Drawing(count, dimension, clip, relation, seed).write(directory)
    meaning, heads = folder.manifest().meaning, int(folder.coins().sum())
    click.echo(
        f"{count} canaries for models of {dimension:,} numbers: {heads} {meaning.heads_name}, "
        f"{count - heads} {meaning.tails_name}"
    )
    click.echo(
        "privfed: start a client for each of privfed.canary.participants(DIR), which answers by "
        "privfed.canary.Client(DIR, number); save the initial model and all that are released. "
        f"Then: privfed canary judge {directory} --releases MODELS --claimed-epsilon ε --delta δ",
        err=True,
    )
    return 0


@canary.command("judge")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--releases",
    type=ANYTHING,
    required=True,
    metavar="MODELS",
    help="A folder of models, the initial one first: .npy, .npz, .pt or .safetensors, by number.",
)
@click.option(
    "--claimed-epsilon",
    "epsilons",
    type=float,
    required=True,
    multiple=True,
    help="What is claimed; several points of one claim are given with a δ each.",
)
@click.option("--delta", "deltas", type=float, required=True, multiple=True, help="At which δ.")
@click.option("--gaussian", is_flag=True, help="By Gaussian noise, with everybody in each round.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the bounds.")
@JSON
@answers_errors
def judge_command(
    directory: Path,
    releases: Path,
    epsilons: tuple[float, ...],
    deltas: tuple[float, ...],
    gaussian: bool,
    confidence: float,
    as_json: bool,
) -> int:
    """Hold released models against a claim; exit code 4 where the canaries in DIR refute it."""
    claims = _claims(epsilons, deltas)
    if gaussian and len(claims) > 1:
        raise Refused("--gaussian takes all other points of a claim from its first; give one")
    if not 0 < confidence < 1:
        raise Refused(f"--confidence is {confidence}; expected between 0 and 1")
    from privfed.auditing.elsewhere.judgement import judgement_rows
    from privfed.auditing.elsewhere.judging import judge_releases
    from privfed.canary.folder import Folder
    from privfed.report.tables import rows

    judgement = judge_releases(Folder(directory), releases, claims, gaussian, confidence)
    code = REFUTED if judgement.refuted else 0
    if as_json:
        return print_json(judgement.to_json(), code)
    print_answer(judgement, lambda: rows(judgement_rows(judgement)), as_json=False)
    return code


def _claims(epsilons: Sequence[float], deltas: Sequence[float]) -> list[tuple[float, float]]:
    """Points of one claim, from as many options of either kind."""
    if len(epsilons) != len(deltas):
        raise Refused(
            f"--claimed-epsilon is given {len(epsilons)} times and --delta {len(deltas)} times; "
            "expected pairs, points of one claim"
        )
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        if not (0 <= epsilon <= _LARGEST and 0 < delta < 1):
            raise Refused(
                f"the claim is ε = {epsilon:g} at δ = {delta:g}; expected an ε from 0 to "
                f"{_LARGEST}, and a δ between 0 and 1"
            )
    return list(zip(epsilons, deltas, strict=True))
