"""Commands as a user types them, run in this process."""

from click.testing import CliRunner

from privfed.cli.main import main


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])
