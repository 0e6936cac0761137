"""Accuracy per simulated hour: synchronous rounds against ticks, at equal epsilon and updates.

    python -m experiments.asynchronous.study          # minutes on one core
    python -m experiments.asynchronous.study --print  # from results.csv alone

One of five tiers of clients works ten times as long as the others. A tick lasts as long as a fast
client works, one minute here. A synchronous round lasts as long as its slowest client: ten minutes,
since almost every cohort has a slow client. Both have as many rounds and updates, and so the same
epsilon.

The same for one of five sites, in rounds amplified by sampling: the slow site then has rows in
every tenth tick, so 244 ticks have as many updates as 200 synchronous rounds.
Writes results.csv into this folder, and prints the table of its page.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.federated_evaluation.tables import interval
from experiments.less_noise.tables import read, write
from privfed.config.reading import load
from privfed.run.train import train

HERE = Path(__file__).parent
SLOWEST, SEEDS, TARGET = 10, 10, 0.75
"""Minutes of work of the slow tier, number of seeds, and the accuracy that is to be reached."""
_LATE = ("cohort.sampler=asynchronous", f"cohort.delays=[0, 0, 0, 0, {SLOWEST - 1}]")
METHODS = {
    "synchronous": ("cohort.sampler=cyclic",),
    "ticks": _LATE,
    "ticks, damping 0.5": (*_LATE, "cohort.damping=0.5"),
}
MECHANISMS = ("gaussian", "banded")
_LATE_SITE = f"data.site_delays=[0, 0, 0, 0, {SLOWEST - 1}]"
AT_SITES = {
    "synchronous": (),
    "ticks": (_LATE_SITE, "run.rounds=244"),
    "ticks, as many rounds": (_LATE_SITE,),
}


@dataclass(frozen=True)
class Result:
    """One run: its last accuracy, and the minutes to `TARGET` (infinite if never reached)."""

    mechanism: str
    method: str
    seed: int
    accuracy: float
    minutes: float


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--print", action="store_true", help="from results.csv alone")
    if not words.parse_args().print:
        write(results(SEEDS), HERE / "results.csv")
    print(table(read(HERE / "results.csv")))


def results(seeds: int, *overrides: str) -> Iterator[Result]:
    """Yields the result of every mechanism, method and seed; `overrides` are keys of all runs."""
    for mechanism in MECHANISMS:
        for method in METHODS:
            for seed in range(seeds):
                keys = (*METHODS[method], f"privacy.mechanism={mechanism}", *overrides)
                yield _result("run.toml", mechanism, method, seed, keys)
    for method, keys in AT_SITES.items():
        for seed in range(seeds):
            yield _result("sites.run.toml", "skellam, sites", method, seed, (*keys, *overrides))


def _result(file: str, mechanism: str, method: str, seed: int, keys: Sequence[str]) -> Result:
    with tempfile.TemporaryDirectory(prefix="privfed-") as folder:
        out = Path(folder) / "run"
        train(load(HERE / file, [*keys, f"run.seed={seed}"]), out)
        lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    measured = [(each["round"], each["accuracy"]) for each in map(json.loads, lines)]
    minutes_per_round = SLOWEST if method == "synchronous" else 1
    reached = [round for round, accuracy in measured if accuracy >= TARGET]
    minutes = min(reached, default=float("inf")) * minutes_per_round
    return Result(mechanism, method, seed, measured[-1][1], float(minutes))


def table(rows: Sequence[dict[str, str]]) -> str:
    """Returns the results as Markdown: means over seeds, with minimum and maximum.

    Differences to synchronous rounds are of equal seeds, with the half-width of a 95 % interval.
    """
    lines = [
        f"| mechanism | method | minutes to {100 * TARGET:.0f} % | times faster | accuracy (%) | "
        "difference from synchronous (points) |",
        "|---|---|---|---|---|---|",
    ]
    methods = {**dict.fromkeys(MECHANISMS, METHODS), "skellam, sites": AT_SITES}
    for mechanism, each in methods.items():
        slow = _of(rows, mechanism, "synchronous", "minutes")
        best = _of(rows, mechanism, "synchronous", "accuracy")
        for method in each:
            minutes = _of(rows, mechanism, method, "minutes")
            accuracy = _of(rows, mechanism, method, "accuracy")
            apart = [""] * 2
            if method != "synchronous":
                apart = [_spread(slow / minutes, 1), interval((100 * (accuracy - best)).tolist())]
            cells = [mechanism, method, _spread(minutes, 0), apart[0]]
            lines.append("| " + " | ".join([*cells, _spread(100 * accuracy, 1), apart[1]]) + " |")
    return "\n".join(lines)


def _of(
    rows: Sequence[dict[str, str]], mechanism: str, method: str, key: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns `key` of each seed `[n]`."""
    these = [row for row in rows if (row["mechanism"], row["method"]) == (mechanism, method)]
    return np.array([float(row[key]) for row in sorted(these, key=lambda row: int(row["seed"]))])


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]], digits: int) -> str:
    mean, low, high = (f"{of(values):,.{digits}f}" for of in (np.mean, np.min, np.max))
    return f"{mean} ({low}–{high})"


if __name__ == "__main__":
    main()
