"""The commands that attack the view of a server or a reader: `privfed attack ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from privfed.cli.answering import (
    ANY_PATH,
    JSON,
    OVERRIDES,
    print_answer,
    print_json,
    quotes_on_request,
)
from privfed.core.errors import Refused
from privfed.core.text import dump

if TYPE_CHECKING:
    from rich.console import RenderableType

    from privfed.privacy_attacks.inversion import Inverted
    from privfed.privacy_attacks.membership import Exposure, Level
    from privfed.privacy_attacks.properties import Properties

TARGET = click.argument("target", metavar="RUN_OR_TOML", type=ANY_PATH)
OUT = click.option("--out", type=ANY_PATH, help="Default: a new folder in runs/.")
EPSILONS = click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    type=click.FloatRange(0, 1e6, min_open=True),
    help="ε over all rounds, whose noise is added to the attacked updates; may be repeated. "
    "Default: 1e6, 1e5, 1000 and the run's.",
)


@click.group()
def attack() -> None:
    """Attack clients' privacy by updates and models: inversion, membership, property."""


@attack.command("inversion")
@TARGET
@OVERRIDES
@click.option(
    "--client",
    "clients",
    multiple=True,
    type=click.IntRange(0),
    help="Number of a client to attack; may be repeated.",
)
@click.option(
    "--columns",
    type=click.IntRange(1, 64),
    default=3,
    show_default=True,
    help="How many clients to attack, without --client.",
)
@click.option(
    "--examples",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of examples on which each client trains.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Number of local steps of each client.",
)
@EPSILONS
@click.option(
    "--method",
    type=click.Choice(["analytic", "cosine", "dlg"]),
    help="Default: analytic where the model's first layer is linear, else cosine.",
)
@click.option("--iterations", type=click.IntRange(1, 100_000), help="Iterations of the search.")
@OUT
@JSON
@quotes_on_request
def inversion_command(
    target: Path,
    overrides: tuple[str, ...],
    clients: tuple[int, ...],
    epsilons: tuple[float, ...],
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Reconstruct clients' examples from updates."""
    from privfed.privacy_attacks.inversion import InversionOptions, invert
    from privfed.privacy_attacks.subject import default_epsilons, subject
    from privfed.report.leakage import contact_sheet, inversion_table

    folder = _new_folder(out, "inversion")
    attacked = subject(target, overrides)
    budgets = epsilons or default_epsilons(attacked.setup.plan)
    each = tuple(dict.fromkeys(clients))
    inverted = invert(attacked, InversionOptions(clients=each, epsilons=budgets, **options))
    sheet = contact_sheet(inverted)
    files = _json_file("inversion.json", inverted)
    if sheet is not None:
        files["contact_sheet.png"] = sheet
    return _report(inverted, folder, files, lambda: inversion_table(inverted, folder), as_json)


@attack.command("property")
@TARGET
@OVERRIDES
@click.option(
    "--clients",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Number of attacked clients.",
)
@EPSILONS
@OUT
@JSON
@quotes_on_request
def property_command(
    target: Path,
    overrides: tuple[str, ...],
    clients: int,
    epsilons: tuple[float, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Infer clients' label distributions from updates."""
    from privfed.privacy_attacks.properties import infer
    from privfed.privacy_attacks.subject import default_epsilons, subject
    from privfed.report.leakage import property_table

    folder = _new_folder(out, "property")
    attacked = subject(target, overrides)
    inferred = infer(attacked, clients, epsilons or default_epsilons(attacked.setup.plan))
    files = _json_file("property.json", inferred)
    return _report(inferred, folder, files, lambda: property_table(inferred, folder), as_json)


@attack.command("membership")
@TARGET
@click.option(
    "--level",
    type=click.Choice(["user", "example"]),
    default="user",
    show_default=True,
    help="Attack the membership of a client (all its examples) or of one example.",
)
@click.option(
    "--shadows",
    type=click.IntRange(4, 1000),
    default=16,
    show_default=True,
    help="Number of shadow runs of LiRA.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of all random draws.",
)
@OVERRIDES
@OUT
@JSON
@quotes_on_request
def membership_command(
    target: Path,
    level: str,
    shadows: int,
    seed: int,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Infer membership from the final model, and compare with the bound by ε: a simulation.

    A run file is trained SHADOWS + 1 times, each time without a random half of the targets. A run
    directory is attacked as it is: its clients are the members, and its public test set the
    non-members.
    """
    if target.is_dir() and overrides:
        raise Refused(f"--set is given, but {target} is a trained run; remove --set")
    from privfed.report.console import console
    from privfed.report.membership import exposure_files, exposure_json, exposure_table
    from privfed.store.folders import write_private

    folder = _new_folder(out, "membership")
    screen = console(as_json)
    with screen.status("training shadow runs") as status:

        def show(done: int, runs: int) -> None:
            status.update(f"training shadow runs: {done} of {runs}")

        exposure = _exposure(target, overrides, cast("Level", level), shadows, seed, show)
    write_private(folder, exposure_files(exposure))
    screen.print(exposure_table(exposure, folder))
    return print_json({**exposure_json(exposure), "out": str(folder)}) if as_json else 0


def _exposure(
    target: Path,
    overrides: tuple[str, ...],
    level: Level,
    shadows: int,
    seed: int,
    show: Callable[[int, int], None],
) -> Exposure:
    from privfed.config.reading import load
    from privfed.privacy_attacks.membership import attack_configuration, attack_run

    if target.is_dir():
        return attack_run(target, level, shadows, seed, show)
    return attack_configuration(load(target, overrides), level, shadows, seed, show, target)


def _new_folder(out: Path | None, attack_name: str) -> Path:
    """Returns `out`, or a new path in runs/ for None. Raises `Refused` if it is not empty."""
    from privfed.store.folders import new_folder, refuse_taken

    folder = out or new_folder(attack_name)
    refuse_taken(folder)
    return folder


def _json_file(name: str, answer: Inverted | Properties) -> dict[str, bytes]:
    return {name: dump(answer.to_json(), indent=2).encode()}


def _report(
    answer: Inverted | Properties,
    folder: Path,
    files: Mapping[str, bytes],
    table: Callable[[], RenderableType],
    as_json: bool,
) -> int:
    """Writes `files` (content by name) into `folder`, and prints `answer`; returns 0."""
    from privfed.api.answer import Answer
    from privfed.store.folders import write_private

    write_private(folder, files)
    return print_answer(Answer({**answer.to_json(), "out": str(folder)}, table), as_json)
