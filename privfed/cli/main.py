"""The command line. Heavy imports wait until a command runs."""

from __future__ import annotations

import click

from privfed.cli.attack import attack
from privfed.cli.audit import audit_command
from privfed.cli.calibrate import calibrate_command
from privfed.cli.canary.commands import canary
from privfed.cli.check import check_command
from privfed.cli.declare import declare_command
from privfed.cli.describe import describe_command
from privfed.cli.experiment import experiment_command
from privfed.cli.federation import federation
from privfed.cli.flower import flower
from privfed.cli.parts import list_command
from privfed.cli.program import CommandLine
from privfed.cli.report import report_command
from privfed.cli.runs import compare_command, runs_command
from privfed.cli.site import site
from privfed.cli.train import train_command
from privfed.cli.trained_model import evaluate_command, export_command, predict_command
from privfed.version import __version__


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="privfed")
def main() -> None:
    """Private and robust federated learning, with an epsilon that can be proved."""


for command in (
    attack,
    audit_command,
    calibrate_command,
    canary,
    check_command,
    compare_command,
    declare_command,
    describe_command,
    evaluate_command,
    experiment_command,
    export_command,
    federation,
    flower,
    list_command,
    predict_command,
    runs_command,
    report_command,
    site,
    train_command,
):
    main.add_command(command)
