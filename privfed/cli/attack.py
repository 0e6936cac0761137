"""The commands that attack what a server or a reader sees: `privfed attack ...`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.errors import Refused
from privfed.failures import answer, quotes_on_request
from privfed.json_text import dump

TARGET = click.Path(path_type=Path)
OUT = click.Path(path_type=Path)
_EPSILON = click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Noise to look through, a budget of all rounds. Default: 1e6, 1e5, 1000 and the run's.",
)


@click.group()
def attack() -> None:
    """Read clients' data out of updates and models: inversion, membership, property."""


@attack.command()
@click.argument("target", metavar="RUN_OR_TOML", type=TARGET)
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option("--client", "clients", multiple=True, type=click.IntRange(0), help="Whom to attack.")
@click.option(
    "--columns", type=click.IntRange(1, 64), default=3, show_default=True, help="Or how many."
)
@click.option(
    "--examples",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="On how many of its examples each client trains.",
)
@click.option(
    "--steps", type=click.IntRange(1, 100), default=1, show_default=True, help="Its local steps."
)
@_EPSILON
@click.option(
    "--method",
    type=click.Choice(["analytic", "cosine", "dlg"]),
    help="Default: analytic where the model's first layer is linear, else cosine.",
)
@click.option("--iterations", type=click.IntRange(1, 100_000), help="Of the search.")
@click.option("--out", type=OUT, help="Default: a new folder in runs/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quotes_on_request
def inversion(
    target: Path,
    overrides: tuple[str, ...],
    clients: tuple[int, ...],
    columns: int,
    examples: int,
    steps: int,
    epsilons: tuple[float, ...],
    method: str | None,
    iterations: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Reconstruct clients' examples from updates."""
    from typing import cast

    from privfed.cli.console import console
    from privfed.leakage.inversion import Question, invert
    from privfed.leakage.reconstruct import Method
    from privfed.leakage.subject import subject
    from privfed.leakage.views import usual
    from privfed.report.attacks.contact_sheet import contact_sheet
    from privfed.report.attacks.leakage import inversion_table
    from privfed.store.folders import new_folder, refuse_taken, write_private

    folder = out or new_folder("inversion")
    refuse_taken(folder)
    attacked = subject(target, overrides)
    levels = epsilons or usual(attacked.setup.plan)
    chosen = cast("Method | None", method)
    question = Question(
        tuple(dict.fromkeys(clients)), columns, examples, steps, levels, chosen, iterations
    )
    found = invert(attacked, question)
    sheet = contact_sheet(found)
    files = {"inversion.json": dump(found.to_json(), indent=2).encode()}
    write_private(folder, files if sheet is None else {**files, "contact_sheet.png": sheet})
    if as_json:
        answer({**found.to_json(), "out": str(folder)})
    else:
        console(False).print(inversion_table(found, folder))
    return 0


@attack.command("property")
@click.argument("target", metavar="RUN_OR_TOML", type=TARGET)
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option(
    "--clients", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many."
)
@_EPSILON
@click.option("--out", type=OUT, help="Default: a new folder in runs/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quotes_on_request
def properties(
    target: Path,
    overrides: tuple[str, ...],
    clients: int,
    epsilons: tuple[float, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Tell clients' label distributions from updates."""
    from privfed.cli.console import console
    from privfed.leakage.properties import infer
    from privfed.leakage.subject import subject
    from privfed.leakage.views import usual
    from privfed.report.attacks.leakage import property_table
    from privfed.store.folders import new_folder, refuse_taken, write_private

    folder = out or new_folder("property")
    refuse_taken(folder)
    attacked = subject(target, overrides)
    found = infer(attacked, clients, epsilons or usual(attacked.setup.plan))
    write_private(folder, {"property.json": dump(found.to_json(), indent=2).encode()})
    if as_json:
        answer({**found.to_json(), "out": str(folder)})
    else:
        console(False).print(property_table(found, folder))
    return 0


@attack.command()
@click.argument("of", metavar="RUN_OR_TOML", type=TARGET)
@click.option(
    "--level",
    type=click.Choice(["user", "example"]),
    default="user",
    show_default=True,
    help="Whose membership: all of a client's examples, or one of them.",
)
@click.option(
    "--shadows",
    type=click.IntRange(4, 1000),
    default=16,
    show_default=True,
    help="Further runs that LiRA compares with.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all coins.")
@click.option("--set", "overrides", multiple=True, metavar="section.key=value", help="Override.")
@click.option("--out", type=OUT, help="Default: a new folder in runs/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quotes_on_request
def membership(
    of: Path,
    level: str,
    shadows: int,
    seed: int,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Tell who was trained on from the final model, beside what ε allows: a simulation.

    A run file is run SHADOWS + 1 times, each time without a random half of the targets. A run
    directory is attacked as it is; its clients are the members, its public test set the others.
    """
    if of.is_dir() and overrides:
        raise Refused(f"--set changes a run file, and {of} is a run that was; leave it out")
    from privfed.cli.console import console
    from privfed.config.reading import load
    from privfed.leakage import membership as attacks
    from privfed.leakage.targets import Level
    from privfed.report.attacks.membership import exposure_json, exposure_table
    from privfed.report.attacks.roc_picture import exposure_files
    from privfed.store.folders import new_folder, refuse_taken, write_private

    folder = out or new_folder("membership")
    refuse_taken(folder)
    asked: Level = "user" if level == "user" else "example"
    screen = console(as_json)
    with screen.status("training shadow runs") as status:

        def told(done: int, of: int) -> None:
            status.update(f"training shadow runs: {done} of {of}")

        if of.is_dir():
            found = attacks.attack_run(of, asked, shadows, seed, told)
        else:
            config = load(of, overrides)
            found = attacks.attack_configuration(config, asked, shadows, seed, told, of)
    write_private(folder, exposure_files(found))
    screen.print(exposure_table(found, folder))
    if as_json:
        answer({**exposure_json(found), "out": str(folder)})
    return 0
