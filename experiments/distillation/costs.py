"""Bytes and processor seconds of a round: whole updates, a mask, secure sums, and soft labels.

    python -m experiments.distillation.costs > experiments/distillation/costs.csv

The rounds are those of `run.toml` at ε = 8. Seconds are for a cohort of about 100 clients, local
training, distillation, all parties of a secure sum, and the server together, on a single core.
"""

from __future__ import annotations

import csv
import itertools
import sys
import tempfile
import time
from pathlib import Path

from privfed.config.config import Config
from privfed.config.reading import load
from privfed.run.check import check
from privfed.run.train import train

HERE = Path(__file__).parent
FEW, MANY = 1, 6
"""Rounds of two runs, whose difference in seconds excludes the start and the end of a run."""
NUMBERS = 1000
"""Numbers sent by the mask, and by soft labels for 100 examples of 10 classes."""
NETWORKS = {"MLP of 64": "model.hidden=[64]", "MLP of 1,500": "model.hidden=[1500]"}
COMMON = (
    "run.simulation_metrics=false",
    "run.evaluate_every=1000",
    "run.trainer=stacked",
    "run.chunk=200",
    "privacy.clip=10.0",
)
"""All clients of a round train together, so that seconds do not depend on the chosen chunks."""
LABELS = (
    "compression.name=soft_labels",
    "compression.classes=10",
    "compression.examples=100",
    "server.optimizer=fedavg",
    "server.lr=1.0",
)
METHODS = {
    "whole updates": (),
    "random mask": ("compression.name=random_mask", "compression.fraction={fraction}"),
    "masked sum": ("secure.protocol=masks",),
    "sum over 4 regions": ("secure.protocol=regions", "secure.regions=4"),
    "soft labels": LABELS,
    "soft labels, own models": (*LABELS, 'compression.models=["mlp"]'),
    "soft labels, models kept": (
        *LABELS,
        "compression.keep_models=true",
        "data.setting=cross_silo",
    ),
}


ROWS = [*itertools.product(NETWORKS, METHODS)][:-1]
"""Networks and methods, without kept models of the larger network, which take long to distil."""


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["network", "method", "parameters", "numbers", "up", "down", "seconds"])
    for network, method in ROWS:
        parameters = check(_config(NETWORKS[network])).forecast.parameters
        keys = (key.format(fraction=NUMBERS / parameters) for key in METHODS[method])
        changes = (NETWORKS[network], *keys)
        forecast = check(_config(*changes)).forecast
        up, down = (round(sent / forecast.cohort) for sent in (forecast.up, forecast.down))
        taken = f"{seconds(*changes):.2f}"
        writer.writerow([network, method, parameters, forecast.message, up, down, taken])


def seconds(*changes: str) -> float:
    """Returns the processor seconds of a round."""
    taken = []
    for rounds in (FEW, FEW, MANY):  # the first run also loads modules
        config = _config(*changes, f"run.rounds={rounds}")
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            train(config, Path(folder) / "run")
        taken.append(time.process_time() - start)
    return (taken[2] - taken[1]) / (MANY - FEW)


def _config(*changes: str) -> Config:
    """Returns the configuration of `run.toml`, evaluated at the end only."""
    return load(HERE / "run.toml", (*COMMON, *changes))


if __name__ == "__main__":
    main()
