"""Options, output and error handling that the commands share."""

from __future__ import annotations

import functools
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from accounting.errors import AccountingError
from privfed.core.errors import Refused, resume_command
from privfed.core.failures import SHOW_VALUES, ends_silently, guarded, report_error, reporting
from privfed.core.text import dump

if TYPE_CHECKING:
    from privfed.analytics.release import Request
    from privfed.api.answer import Answer

Command = Callable[..., Any]

ANY_PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)

OPTIONAL_RUN_FILE = click.argument("run_file", metavar="[RUN.toml]", required=False, type=ANY_PATH)
SITE_FOLDER = click.argument("directory", metavar="DIR", type=DIRECTORY)
RUN_DIRECTORY = click.argument("directory", metavar="RUN_DIR", type=DIRECTORY)
OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="section.key=value",
    help="Override a key of the run file.",
)
_REPEATED = 5.0
"""Seconds in which a repeated SIGTERM counts as the same one."""
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
JSON_AT_THE_END = click.option(
    "--json", "as_json", is_flag=True, help="End with one JSON object on stdout."
)

SAMPLING_RATE = click.option(
    "--sampling-rate",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --noise-multiplier: sampling rate of Poisson cohorts; default: 1.",
)
ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1, 10**6),
    help="With --noise-multiplier: number of rounds; default: 1.",
)
PROMISES = click.option(
    "--promises",
    help="With --advise: the assumptions that hold in your deployment: a comma-separated list of "
    "secret, attendance and separation, or nothing; default: all three.",
)

RELEASE_EPSILON = click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    help="ε of the release; default: the share budget.statistics.",
)
RELEASE_DELTA = click.option(
    "--delta", type=click.FloatRange(0, 1, True, True), help="Default: privacy.delta."
)
NEW_RUN = click.option(
    "--out", type=ANY_PATH, help="The run directory; default: a new folder in runs/."
)

RELEASE_RUN_FILE = click.option(
    "--run-file",
    "new_file",
    type=FILE,
    metavar="FILE",
    help="Make no release, but write its run file, for sites on their own machines.",
)


def refuse_new_options(*reading: str) -> None:
    """Raises `Refused` if an option that only a new release has is given on the command line.

    Call it if RUN.toml is the run directory of an earlier release. `reading` has the names of
    parameters that also apply to an earlier release.
    """
    context = click.get_current_context()
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if given - {"run_file", "run_files", "as_json", "show_values", *reading}:
        raise Refused(
            "RUN.toml is a run directory, so its release is only read again, but options of a new "
            "release are given; leave the options out, or name a run file"
        )


def print_release(
    release: Callable[..., Answer],
    request: Callable[..., Request],
    name: str,
    asked: dict[str, Any],
    *reading: str,
) -> int:
    """Makes a release, or reads an earlier one, and prints its estimates; or writes a run file.

    Args:
      release: makes a release from a run file, or reads the earlier release in a run directory.
      request: returns the request of the release, from the parameters except those in `reading`.
      name: the end of the name of a new folder in runs/.
      asked: the values of the command's parameters, by name; `run_file`, `out`, `as_json`,
        `overrides` and `new_file` are removed from it.
      reading: names of parameters that also apply to an earlier release.

    Returns:
      The exit code.
    """
    from privfed.store.folders import new_folder

    run_file, out, as_json = (asked.pop(key) for key in ("run_file", "out", "as_json"))
    keys, new_file = asked.pop("overrides"), asked.pop("new_file")
    if run_file.is_dir():
        refuse_new_options(*reading)
        return print_answer(release(run_file, **{key: asked[key] for key in reading}), as_json)
    if new_file is not None:
        asking = request(**{key: asked[key] for key in asked if key not in reading})
        return write_release(run_file, keys, asking, new_file)
    folder = out or new_folder(name)
    try:
        return print_answer(release(run_file, out=folder, keys=keys, **asked), as_json)
    except (KeyboardInterrupt, OSError) as error:
        return report_error(error, resume_hint(folder))


def resume_hint(directory: Path) -> str:
    """Returns a message with the command that resumes the interrupted run in `directory`.

    If the run has no ledger yet, the message only states that nothing was released.
    """
    if (directory / "ledger.jsonl").exists():
        command = resume_command(directory).strip("`")
        return f"all releases are kept{_ledger_head(directory)}. Resume by: {command}"
    return "nothing was released: the run had not begun"


def _ledger_head(directory: Path) -> str:
    """Returns the part of a message that states the ledger's head and its number of charges.

    The head reveals a later truncation. Returns "" if the ledger cannot be read.
    """
    from accounting.ledger import Ledger

    try:
        ledger = Ledger.load(directory / "ledger.jsonl")
    except (OSError, AccountingError):
        return ""
    return f", and the ledger's head is {ledger.head().hex()} at {len(ledger.charges)} charges"


def write_release(run_file: Path, keys: Sequence[str], asking: Request, new_file: Path) -> int:
    """Writes the run file of the release `asking` to `new_file`, and prints the next commands.

    `keys` are settings "section.key=value" that replace those of `run_file`. Returns 0.
    """
    from privfed.analytics.release import write_run_file

    write_run_file(run_file, keys, asking, new_file)
    click.echo(f"run file  {new_file}; nothing was released or charged")
    click.echo(f"sites     privfed site check DIR {new_file}")
    click.echo(
        f"release   privfed federation run {new_file} --federation FILE --key FILE --out RUN_DIR "
        "--site NAME SOCKET …"
    )
    click.echo(f"read      privfed {click.get_current_context().info_name} RUN_DIR")
    return 0


def data_overrides(help_text: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the option `--set data.key=value` to a command."""
    return click.option(
        "--set", "overrides", multiple=True, metavar="data.key=value", help=help_text
    )


def quoted(text: str) -> str:
    """Returns `text` as a quoted TOML string, which is never read as a number."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def print_json(answer: Mapping[str, Any], code: int = 0) -> int:
    """Prints `answer` as JSON, with the key "exit" if `code` is not 0; returns `code`."""
    click.echo(dump({**answer, "exit": code} if code else answer))
    return code


def print_answer(answer: Answer, as_json: bool, code: int = 0) -> int:
    """Prints `answer` on standard output, as a JSON object or as a table; returns `code`."""
    if as_json:
        return print_json(answer, code)
    from privfed.report.console import console

    console(False).print(answer.as_table())
    return code


def answers_errors(command: Callable[..., int]) -> Callable[..., None]:
    """Decorates a command that reads no private data.

    An exception is converted to a message, which may quote values from files, and an exit code.
    """
    return _answering(command, lambda arguments: True)


def quotes_on_request(command: Callable[..., int]) -> Callable[..., None]:
    """Decorates a command that reads private data; messages quote them only with --show-values."""
    option = click.option(
        SHOW_VALUES,
        is_flag=True,
        help="Quote the data in messages; the data are private.",
    )
    return option(_answering(command, lambda arguments: bool(arguments.pop("show_values"))))


def never_quotes(command: Callable[..., int]) -> Callable[..., None]:
    """Decorates a command whose messages may become public: they never quote private data."""
    return _answering(command, lambda arguments: None)


def _answering(
    command: Callable[..., int], quotes: Callable[[dict[str, Any]], bool | None]
) -> Callable[..., None]:
    """Wraps `command`: the returned function ends the process with the exit code of `command`.

    `quotes` maps the keyword arguments of `command` to whether messages quote data; if it returns
    None, they never do, and do not mention --show-values.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        # SIGTERM, by which a service manager stops a run, acts as Ctrl-C: the run can be resumed.
        signal.signal(signal.SIGTERM, _interrupter())
        with reporting(quotes(kwargs), bool(kwargs.get("as_json"))), guarded():
            code = _exit_code(functools.partial(command, *args, **kwargs))
        sys.exit(code)

    return run


def _exit_code(command: Callable[[], int]) -> int:
    try:
        return command()
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and ends_silently(error):
            raise
        return report_error(error)


def _interrupter() -> Callable[..., None]:
    """Returns a signal handler that raises `KeyboardInterrupt` at most once in `_REPEATED` seconds.

    Slurm signals every process of a job, and torchrun those that it started. A process may
    therefore receive two signals; the second would interrupt the report on the first.
    """
    last = -math.inf

    def interrupt(*_: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _REPEATED:
            last = now
            raise KeyboardInterrupt

    return interrupt
