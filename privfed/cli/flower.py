"""The commands that have Flower carry a run: `privfed flower new` and `executor`."""

from __future__ import annotations

from pathlib import Path

import click

from privfed.cli.answering import DIRECTORY, FILE, answers_errors
from privfed.cli.site import SITE_FOLDER


@click.group("flower")
def flower() -> None:
    """A federation whose bytes Flower carries (privfed[flower])."""


@flower.command("new")
@click.argument("app", metavar="APP", type=DIRECTORY)
@click.option("--run", type=FILE, required=True, metavar="RUN.toml", help="What is trained.")
@click.option("--federation", type=FILE, required=True, metavar="FILE", help="Who takes part.")
@click.option("--key", type=FILE, metavar="FILE", help="The coordinator's key; beside the file.")
@click.option("--out", type=DIRECTORY, metavar="DIR", help="The run's folder; beside its file.")
@answers_errors
def new_app_command(
    app: Path, run: Path, federation: Path, key: Path | None, out: Path | None
) -> int:
    """Write an app for `flwr run`: it names the run's files here, and copies none of them.

    Flower need not be installed to write it; where it runs, and at every site, it has to be. The
    paths are those of the machine where SuperLink runs.
    """
    from privfed.deploy.carriers.flower.new_app import NewApp

    secret = key if key is not None else federation.absolute().parent / "key"
    folder = out if out is not None else run.absolute().parent / "runs" / run.stem
    NewApp(app, run, federation, secret, folder).write()
    click.echo(f"privfed: start it by: flwr run {app}", err=True)
    return 0


@flower.command("executor")
@SITE_FOLDER
@click.option("--runtime", required=True, metavar="HOST:PORT", help="The SuperNode's Runtime API.")
@click.option("--secret-file", type=FILE, required=True, help="What the SuperNode was given.")
@click.option("--root-certificates", type=FILE, help="Of a SuperNode on another machine.")
@answers_errors
def executor_command(
    directory: Path, runtime: str, secret_file: Path, root_certificates: Path | None
) -> int:
    """Run a site's tasks by privfed as it is installed here, never by code that came with them.

    The SuperNode is started with --isolation process --superexec-auth-secret-file F, and this
    command with the same file, which nobody else may read. It ends by Ctrl-C.
    """
    import os
    import threading

    from privfed.deploy.carriers.flower.new_app import QUIET
    from privfed.deploy.files.site_folder import SiteFolder
    from privfed.errors import Refused

    os.environ.update(QUIET)
    try:
        from privfed.deploy.carriers.flower.site_executor import SiteExecutor, read_secret
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "flwr":
            raise
        raise Refused("Flower is not installed here: pip install 'privfed[flower]'") from None
    certificates = root_certificates.read_bytes() if root_certificates else None
    socket, secret = SiteFolder(directory).path / "socket", read_secret(secret_file)
    executor = SiteExecutor(runtime, socket, secret, certificates)
    click.echo(f"privfed: takes the tasks of {runtime} for {directory}", err=True)
    executor.serve(threading.Event())
    return 0
