"""Private tunings of runs that take milliseconds, and their publicly visible files."""

from grids import BASE

from privfed.grid import private_tuning as tuning
from privfed.grid.load import load_grid
from privfed.grid.process_pool import Ended, Started
from privfed.grid.results import DONE, Files
from privfed.grid.tuning_proposal import propose

BUDGET = BASE.replace("noise_multiplier = 2.0", "epsilon = 4.0")
TUNED = """
base = "base.toml"
[tune]
private = true
candidates = 4
[tune.over]
"client.lr" = [0.03, 0.1, 0.3]
"""


def proposed(path):
    files = Files(path, path.parent)
    return files, propose(files, load_grid(path))


def tuned(path, processes=1):
    files, proposal = proposed(path)
    return tuning.tune(files, proposal, processes)


def number(monkeypatch, count):
    """Sets the secret number of candidates to `count`."""
    monkeypatch.setattr(
        "accounting.choosing.repetitions.Repetitions.number", lambda law, bits: count
    )


def scored(*outcomes):
    """Returns a replacement of training: candidates end with these scores or results, in order."""
    left = iter(outcomes)

    def do(jobs):
        for job in jobs:
            yield Started(job)
            ended = next(left)
            if isinstance(ended, float):
                ended = {"status": DONE, "outcome": {"accuracy": ended}}
            yield Ended(job, ended)

    return lambda do_job, jobs, count: do(jobs)


def public(folder):
    """Returns all files that are not under a private/ folder of the tuning."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder) for path in files if not _under_private(folder, path)}


def _under_private(folder, path):
    return "private" in path.relative_to(folder).parts
