"""`python -m experiments.private_tuning`: trains, writes `results.csv`, and prints the summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.private_tuning.study import SEEDS, accuracies, summary, write

if __name__ == "__main__":
    rows = accuracies(SEEDS, 500)
    write(rows, Path(__file__).with_name("results.csv"))
    for name, value in summary(rows, np.random.default_rng(0)).items():
        print(f"{name:>10}  {value:.3g}")
