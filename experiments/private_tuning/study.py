"""Eight client rates on digits: a private choice, next to an uncharged choice on public data.

Every rate is trained once per seed at the noise of a tuning that spends the budget as a whole, and
at the noise of a single run with the same budget. Tunings are then simulated from the results of
these runs: the number of candidates from its distribution, each candidate's rate uniformly. (A rate
that is sampled twice would be trained with other noise, and is here the same run, so the results of
the choice are conservative.)
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from accounting.choosing.repetitions import BITS, Repetitions
from privfed.config.reading import load
from privfed.config.resolved import Chosen
from privfed.run.train import train

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SEEDS = tuple(range(10))
LAW = Repetitions.with_mean(1.0, 3.0 * len(RATES))
EPSILON = 4.0
_TUNINGS = 2_000
_COLUMNS = ("seed", "rate", "chosen", "noise_multiplier", "epsilon", "accuracy")


def accuracies(seeds: Sequence[int], clients: int) -> list[dict[str, float]]:
    """Returns one row for each seed, rate and noise: of a tuning (`chosen` 1) or a single run
    (0).
    """
    rows = []
    for seed in seeds:
        for rate in RATES:
            for chosen in (1, 0):
                config = load(
                    Path(__file__).with_name("run.toml"),
                    [f"run.seed={seed}", f"client.lr={rate}", f"data.clients={clients}"],
                )
                config = replace(config, chosen=Chosen(LAW) if chosen else None)
                with tempfile.TemporaryDirectory() as folder:
                    outcome = train(config, Path(folder) / "run")
                values = (
                    seed, rate, chosen, outcome.plan.noise_multiplier or 0.0,
                    outcome.guarantee.epsilon, outcome.accuracy,
                )  # fmt: skip
                rows.append(dict(zip(_COLUMNS, values, strict=True)))
    return rows


def write(rows: Sequence[dict[str, float]], path: Path) -> None:
    """Writes `rows` as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def summary(rows: Sequence[dict[str, float]], source: np.random.Generator) -> dict[str, float]:
    """Returns the results of simulated tunings, in points of accuracy, over the seeds of `rows`.

    "regret": the best of all rates at the same noise, minus the chosen one. "price": the best rate
    at the noise of a single run, chosen without charge, minus the chosen one. "any": the same best
    rate minus a uniformly sampled rate, at the noise of a single run.
    """
    regrets, prices, any_rate = [], [], []
    for seed in sorted({row["seed"] for row in rows}):
        tuned, single = (
            [row["accuracy"] for row in rows if (row["seed"], row["chosen"]) == (seed, chosen)]
            for chosen in (1, 0)
        )
        for _ in range(_TUNINGS):
            count = LAW.number(int.from_bytes(source.bytes(BITS // 8), "big"))
            best = max(tuned[place] for place in source.integers(len(RATES), size=count))
            regrets.append(100 * (max(tuned) - best))
            prices.append(100 * (max(single) - best))
        any_rate.append(100 * (max(single) - float(np.mean(single))))
    return {
        "regret": float(np.mean(regrets)),
        "regret_95": float(np.quantile(regrets, 0.95)),
        "within_1": float(np.mean(np.array(regrets) <= 1.0)),
        "price": float(np.mean(prices)),
        "price_95": float(np.quantile(prices, 0.95)),
        "any": float(np.mean(any_rate)),
    }
