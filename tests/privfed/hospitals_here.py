"""Three hospitals whose agents serve in this process, for runs of an engine's coordinator."""

import contextlib

from waiting import LONG

from experiments.federation.agreement import compare
from experiments.federation.hospitals import NAMES, write_tables
from experiments.federation.journal import Journal
from experiments.federation.sites import Hospitals
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.site.agent import serving


class Here:
    """Runs privfed's commands in this process, as the loop-back federation does in others."""

    def call(self, command, seconds=60.0):
        from commands import run

        answer = run(*command[3:])
        assert answer.exit_code == 0, answer.output
        return answer.stdout


def agreed(folder):
    """Returns hospitals that have agreed on a federation, with a policy that allows simulations."""
    write_tables(folder, patients=60, seed=3)
    hospitals = Hospitals(folder, Here())
    hospitals.agree()
    for name in NAMES:  # the time at which rows leave is for real programs to show
        policy = hospitals.site(name) / "policy.toml"
        policy.write_text(policy.read_text().replace("simulation = false", "simulation = true"))
    return hospitals


def stated(hospitals, **changed):
    """Returns the engine's configuration of the hospitals' run."""
    folder = hospitals.coordinator
    paths = {
        "run": folder / "run.toml",
        "federation": hospitals.federation,
        "key": folder / "key",
        "out": hospitals.run,
    }
    config = {name: str(path) for name, path in paths.items()}
    return config | {"seconds": LONG, "patience": LONG} | changed


def journal(hospitals):
    """Returns the coordinator's log."""
    return Journal.read(hospitals.log.read_text() if hospitals.log.exists() else "")


def agreement(hospitals):
    """Returns the comparison of the ledger with the receipts of all sites."""
    sites = {name: hospitals.site(name) for name in NAMES}
    return compare(hospitals.run / "ledger.jsonl", sites, set(journal(hospitals).over))


@contextlib.contextmanager
def agents(hospitals, *names):
    """Serves the agents of these sites until the block ends."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(serving(SiteFolder(hospitals.site(name))))
        yield
