"""The commands of carriers: `privfed flower new` and `executor`, and `privfed nvflare new`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfed.cli.answering import DIRECTORY, FILE, SITE_FOLDER, answers_errors

if TYPE_CHECKING:
    from privfed.deploy.carriers.new_job import NewJob


@click.group("flower")
def flower() -> None:
    """Run a federation with Flower as the transport of messages (privfed[flower])."""


@click.group("nvflare")
def nvflare() -> None:
    """Run a federation with NVIDIA FLARE as the transport of messages (privfed[nvflare])."""


_RUN = click.option("--run", type=FILE, required=True, metavar="RUN.toml", help="The run file.")
_FEDERATION = click.option(
    "--federation", type=FILE, required=True, metavar="FILE", help="The federation file."
)
_KEY = click.option(
    "--key", type=FILE, metavar="FILE", help="The coordinator's key; default: next to the file."
)
_OUT = click.option(
    "--out", type=DIRECTORY, metavar="DIR", help="The run's folder; default: next to its file."
)


def _job(folder: Path, run: Path, federation: Path, key: Path | None, out: Path | None) -> NewJob:
    """Returns the job in a new `folder`, with the defaults of `--key` and `--out`."""
    from privfed.deploy.carriers.new_job import NewJob

    secret = key if key is not None else federation.absolute().parent / "key"
    run_folder = out if out is not None else run.absolute().parent / "runs" / run.stem
    return NewJob(folder, run, federation, secret, run_folder)


@flower.command("new")
@click.argument("app", metavar="APP", type=DIRECTORY)
@_RUN
@_FEDERATION
@_KEY
@_OUT
@answers_errors
def new_app_command(
    app: Path, run: Path, federation: Path, key: Path | None, out: Path | None
) -> int:
    """Write an app for `flwr run`, which names the run's files and copies none of them.

    Writing the app does not need Flower; running it needs Flower on the machine of SuperLink and at
    every site. The paths are those on the machine of SuperLink.
    """
    from privfed.deploy.carriers.flower.new_app import app_files

    _job(app, run, federation, key, out).write(app_files)
    click.echo(f"privfed: start the app by: flwr run {app}", err=True)
    return 0


@nvflare.command("new")
@click.argument("job", metavar="JOB", type=DIRECTORY)
@_RUN
@_FEDERATION
@_KEY
@_OUT
@answers_errors
def new_nvflare_command(
    job: Path, run: Path, federation: Path, key: Path | None, out: Path | None
) -> int:
    """Write a job for `nvflare job submit`, which names the run's files and copies none of them.

    Writing the job does not need NVIDIA FLARE; running it needs NVIDIA FLARE and privfed at its
    server and at every site. The paths are those on the machine of the server.
    """
    from privfed.deploy.carriers.nvflare.new_job import job_files

    _job(job, run, federation, key, out).write(job_files)
    click.echo(f"privfed: start the job by: nvflare job submit -j {job}", err=True)
    return 0


@flower.command("executor")
@SITE_FOLDER
@click.option("--runtime", required=True, metavar="HOST:PORT", help="The SuperNode's Runtime API.")
@click.option(
    "--secret-file", type=FILE, required=True, help="The same secret file as the SuperNode's."
)
@click.option(
    "--root-certificates", type=FILE, help="TLS certificates of a SuperNode on another machine."
)
@answers_errors
def executor_command(
    directory: Path, runtime: str, secret_file: Path, root_certificates: Path | None
) -> int:
    """Run a site's tasks with the installed privfed, never with code that came with the tasks.

    Start the SuperNode with --isolation process --superexec-auth-secret-file F, and this command
    with the same file F, which only its owner may read. Ctrl-C ends the command.
    """
    import os
    import threading

    from privfed.core.errors import Refused
    from privfed.deploy.carriers.flower.new_app import QUIET
    from privfed.deploy.files.site_folder import SiteFolder

    os.environ.update(QUIET)
    try:
        from privfed.deploy.carriers.flower.site_executor import SiteExecutor, read_secret
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "flwr":
            raise
        raise Refused("Flower is not installed here; run: pip install 'privfed[flower]'") from None
    certificates = root_certificates.read_bytes() if root_certificates else None
    socket, secret = SiteFolder(directory).path / "socket", read_secret(secret_file)
    executor = SiteExecutor(runtime, socket, secret, certificates)
    click.echo(f"privfed: runs the tasks of {runtime} for {directory}", err=True)
    executor.serve(threading.Event())
    return 0
