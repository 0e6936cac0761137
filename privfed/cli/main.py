"""The command line. Slow imports are deferred until a command is executed."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from privfed.cli.answering import JSON, answers_errors, print_json
from privfed.cli.attack import attack
from privfed.cli.audit import audit_command
from privfed.cli.calibrate import calibrate_command
from privfed.cli.canaries import canary
from privfed.cli.carriers import flower, nvflare
from privfed.cli.check import check_command
from privfed.cli.describe import declare_command, describe_command
from privfed.cli.experiment import experiment_command
from privfed.cli.federation import federation
from privfed.cli.regress import regress_command
from privfed.cli.runs import (
    claim_group,
    compare_command,
    report_command,
    runs_command,
    verify_command,
)
from privfed.cli.site import site
from privfed.cli.survive import survive_command
from privfed.cli.train import train_command
from privfed.cli.trained_model import evaluate_command, export_command, predict_command
from privfed.core import __version__
from privfed.core.failures import (
    INTERRUPTED,
    print_failure,
    report_error,
    report_failure,
    reporting,
)
from privfed.core.text import dump, visible


class CommandLine(click.Group):
    """The group of all commands, which reports wrong usage of the command line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Executes a command like `click.Group.main`; in `standalone_mode`, ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        words = sys.argv[1:] if args is None else list(args)
        with reporting(quotes=None, as_json="--json" in words):
            try:
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
            except click.ClickException as error:
                code = _report_misuse(error)
            except OSError as error:  # standard output cannot be written
                code = report_error(error)
            except click.Abort:
                code = report_failure("interrupted", INTERRUPTED, "interrupted")
        sys.exit(code if isinstance(code, int) else 0)


def _report_misuse(error: click.ClickException) -> int:
    """Reports wrong usage as click does, and as JSON with --json; returns the exit code."""
    if isinstance(error, click.NoSuchOption) and error.ctx:
        error = _with_key(error, error.ctx.command)
    usage = io.StringIO()
    error.show(usage)
    click.echo(visible(usage.getvalue()), err=True, nl=False)
    print_failure(error.format_message(), error.exit_code, "usage")
    return error.exit_code


def _with_key(error: click.NoSuchOption, command: click.Command) -> click.UsageError:
    """Returns an error that suggests --set, if the unknown option is named like a run file's key.

    Otherwise, and for a command without the option --set, returns `error` itself.
    """
    if all(option.name != "overrides" for option in command.params):
        return error
    from privfed.config.assembly import keys_meant

    keys = keys_meant(error.option_name.lstrip("-"))
    settings = " or ".join(f"--set {key}=…" for key in keys)
    named = f"No such option {error.option_name!r}; it is a key of the run file: {settings}"
    return click.UsageError(named, error.ctx) if keys else error


@click.command("list")
@JSON
@click.option("--schema", is_flag=True, help="Print the JSON schema of run files, for editors.")
@answers_errors
def list_command(as_json: bool, schema: bool) -> int:
    """List every part by kind, with a one-line description."""
    from privfed.config import catalog
    from privfed.report.console import console

    if schema:
        click.echo(dump(catalog.schema(), indent=2))
    elif as_json:
        print_json(catalog.catalog())
    else:
        console(False).print(_catalog_table(catalog.catalog()))
    return 0


def _catalog_table(catalog: Mapping[str, Mapping[str, str]]) -> Any:
    """Returns a printable table of all parts by key of the run file.

    `catalog` holds the parts' descriptions by kind and name.
    """
    from rich.table import Table
    from rich.text import Text

    from privfed.config.catalog import key_of

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for kind, parts in catalog.items():
        table.add_row(Text(_placed(key_of(kind)), style="bold"), "")
        for name, line in parts.items():
            table.add_row(Text(f"  {name}", style="cyan"), Text(line))
    return table


def _placed(key: str) -> str:
    """Formats a dotted `key` as in a run file: "client.privacy.x" as "[client.privacy] x"."""
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}"


@click.group("new")
def new() -> None:
    """Write the first files of your own part: the part and its test."""


@new.command("part")
@click.argument("kind", metavar="KIND")
@click.argument("name", metavar="NAME")
@click.option("--like", metavar="PART", default="", help="The built-in part to extend.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The folder of the files; default: the working folder.",
)
@answers_errors
def new_part_command(kind: str, name: str, like: str, out: Path) -> int:
    """Write NAME.py, a part of the given KIND with the hooks to override, and test_NAME.py.

    The part behaves like a built-in part until you change its hooks. The test checks the contract
    of the KIND, and a small run.
    """
    from privfed.config.catalog import key_of, written_part
    from privfed.core.errors import Refused

    files = [out / f"{name}.py", out / f"test_{name}.py"]
    texts = written_part(kind, name, like)
    for path in files:
        if path.exists():
            raise Refused(f"{path} exists already; choose another name, or remove that file")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in zip(files, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    test = shlex.join(["pytest", str(files[1])])
    click.echo(f"privfed: wrote {files[0]}, for {key_of(kind)}; test it: {test}", err=True)
    return 0


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="privfed")
def main() -> None:
    """Private and robust federated learning, with a provable epsilon."""


for command in (
    attack,
    audit_command,
    calibrate_command,
    canary,
    check_command,
    claim_group,
    compare_command,
    declare_command,
    describe_command,
    evaluate_command,
    experiment_command,
    export_command,
    federation,
    flower,
    nvflare,
    list_command,
    new,
    predict_command,
    regress_command,
    runs_command,
    report_command,
    site,
    survive_command,
    train_command,
    verify_command,
):
    main.add_command(command)
