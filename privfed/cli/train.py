"""The command that trains: `privfed train`."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accounting.errors import LedgerBroken
from privfed.cli.answering import (
    DIRECTORY,
    JSON_AT_THE_END,
    OPTIONAL_RUN_FILE,
    OVERRIDES,
    print_json,
    quotes_on_request,
    resume_hint,
)
from privfed.core.errors import Broken, RankLost, Refused, resume_command
from privfed.core.failures import STOPPED_AT_BUDGET, report_error

if TYPE_CHECKING:
    from privfed.config.config import Config
    from privfed.run.outcome import Outcome


@click.command("train")
@OPTIONAL_RUN_FILE
@OVERRIDES
@click.option("--out", type=DIRECTORY, help="The run directory; default: a new folder in runs/.")
@click.option("--resume", type=DIRECTORY, help="Resume the run in this folder.")
@click.option(
    "--workers", type=click.IntRange(1, 256), help=("Number of processes that share each cohort.")
)
@JSON_AT_THE_END
@quotes_on_request
def train_command(
    run_file: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Train within a privacy budget. The default run: digits, 500 clients, epsilon 4."""
    if out and resume:
        raise Refused(
            "--out and --resume are both given, but a resumed run stays in its folder; leave "
            "--out out"
        )
    if out:
        _refuse_taken(out)
    from privfed.store.folders import new_folder

    directory = resume or out or new_folder()
    try:
        from privfed.report.console import console
        from privfed.report.outcome import outcome_table

        screen = console(as_json)
        outcome = _outcome(run_file, overrides, directory, bool(resume), workers, screen)
    except (KeyboardInterrupt, OSError, RankLost) as error:
        return report_error(error, resume_hint(directory))
    except (LedgerBroken, Broken) as error:
        claim: dict[str, Any] = {"epsilon": math.inf, "ledger_ok": False, "run": str(directory)}
        return report_error(error, problems=[str(error)], **claim)
    if outcome is None:
        return 0
    screen.print("", outcome_table(outcome), sep="\n")
    code = STOPPED_AT_BUDGET if outcome.stopped_at_budget else 0
    return print_json(outcome.to_json(), code) if as_json else code


def _outcome(
    run_file: Path | None,
    overrides: tuple[str, ...],
    directory: Path,
    resumes: bool,
    workers: int | None,
    screen: Any,
) -> Outcome | None:
    """Trains or resumes the run in `directory`; returns its outcome, or None if not in rank 0."""
    from privfed.config.reading import load
    from privfed.report.progress import progress
    from privfed.run.process_group import follow, joined, refuse_ranks
    from privfed.run.train import resume, train

    config = None if resumes else load(run_file, overrides)
    processes = workers or (config.run.workers if config else 1)
    if config:
        refuse_ranks(config, processes)
    with joined(processes) as ranks:
        if ranks.rank:
            follow(ranks)
            return None
        with progress(screen) as observer:
            if config:
                return train(config, directory, [observer], ranks)
            change = functools.partial(_changed, run_file, overrides)
            return resume(directory, change, [observer], ranks)


def _changed(run_file: Path | None, overrides: tuple[str, ...], stored: Config) -> Config:
    """Returns the configuration `stored`, changed by `run_file` (if given), then by `overrides`."""
    from privfed.config.reading import overridden, restated

    if run_file is None:
        return overridden(stored, overrides)
    return restated(stored, run_file, overrides)


def _refuse_taken(out: Path) -> None:
    """Raises `Refused` if `out` contains a run already (its ledger).

    This is checked before training, so that no later message proposes to resume that run.
    """
    if (out / "ledger.jsonl").exists():
        raise Refused(
            f"--out is {out}, but that contains another run; nothing was changed; name a new "
            f"directory, or resume that run: {resume_command(out)}"
        )
