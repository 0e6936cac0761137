"""A grid of runs that take milliseconds, with its cells run in this process."""

import csv

from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.grid.process_pool import Ended, Started

BASE = """
[data]
source = "synthetic"
features = 6
classes = 3
size_min = 2
size_mean = 1.0
size_std = 0.5
clients = 12
[cohort]
size = 4
[client]
batch_size = 4
[privacy]
noise_multiplier = 2.0
delta = 1e-3
[run]
rounds = 4
evaluate_every = 2
trainer = "stacked"
chunk = 5
"""
GRID = """
base = "base.toml"
seeds = [0, 1]
[grid]
"client.lr" = [0.1, 0.5]
"server.optimizer" = ["fedavg", "fedavgm"]
[[exclude]]
"client.lr" = 0.1
"server.optimizer" = "fedavgm"
"""


def write(folder, grid=GRID, base=BASE):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.toml").write_text(base)
    path = folder / "grid.toml"
    path.write_text(grid)
    return path


def of(path):
    return cells(path, load_grid(path))


def table(path):
    return list(csv.DictReader(path.with_suffix(".csv").read_text().splitlines()))


def in_process(do, jobs, count):
    """Runs `workers.work` without processes, for tests of everything around them."""
    for job in jobs:
        yield Started(job)
        yield Ended(job, do(job))
