"""The commands that attack what a server or a reader sees: `privfed attack ...`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from privfed.answers import answers_errors
from privfed.errors import Refused
from privfed.jsons import dump


@click.group()
def attack() -> None:
    """Read clients' data out of updates and models: inversion, membership, property."""


@attack.command()
@click.argument("of", metavar="RUN_OR_TOML", type=click.Path(path_type=Path))
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
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the picture and the numbers go; default: a new folder in runs/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@answers_errors
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
    folder = _new_folder(out, "membership")
    from privfed import membership as attacks
    from privfed.config import load
    from privfed.membership_report import exposure_table, to_json, write
    from privfed.targets import Level
    from privfed.terminal import console

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
    write(found, folder)
    screen.print(exposure_table(found, folder))
    if as_json:
        click.echo(dump({**to_json(found), "out": str(folder)}))
    return 0


def _new_folder(out: Path | None, kind: str) -> Path:
    """`out`, or runs/<time>-<kind>, with a number behind it where that is taken.

    Raises `Refused` where anything lies in it.
    """
    if out is not None:
        if out.is_dir() and any(out.iterdir()):
            raise Refused(f"--out {out} holds files; name a new or empty directory")
        return out
    stamp = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{kind}"
    path, taken = stamp, 0
    while path.exists():
        taken += 1
        path = stamp.with_name(f"{stamp.name}-{taken}")
    return path
