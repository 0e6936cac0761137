"""Personal models by nine methods, at three epsilons, each tuned on a separate seed.

    python -m experiments.personalisation.study          # in a folder that holds mnist/
    python -m experiments.personalisation.study --draw   # tables and picture from the results

Writes tuning.csv, results.csv and accuracy.svg into this folder, and prints the tables of its page.
After an interruption, it resumes with the unfinished run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from math import inf
from pathlib import Path

import torch

from accounting.durable import write_atomically
from experiments.personalisation.cases import (
    AFTERWARDS,
    ARMS,
    BY_ITSELF,
    EPSILONS,
    FINE_TUNED,
    HERE,
    METHODS,
    SEEDS,
    SETTINGS,
    SINGLE_PROCESS,
    TUNING_SEED,
    Adaptation,
    Changes,
    configured,
    method_of,
)
from experiments.personalisation.models import ended, untrained
from experiments.personalisation.picture import picture
from experiments.personalisation.records import Record, append, read
from experiments.personalisation.tables import tables


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--draw", action="store_true", help="from the results alone")
    words.add_argument("--out", type=Path, default=HERE)
    asked = words.parse_args()
    tuning, results = asked.out / "tuning.csv", asked.out / "results.csv"
    if not asked.draw:
        torch.set_num_threads(1)
        for setting in SETTINGS:
            tune(setting, tuning)
            measure(setting, read(tuning), results)
    write_atomically(asked.out / "accuracy.svg", picture(read(results)))
    print(tables(read(tuning), read(results)))


def tune(setting: str, path: Path) -> None:
    """Tries all combinations on a separate tuning seed; of adaptations the best is recorded."""
    done = {(*record.key[:3], record.chosen) for record in read(path)}
    if (setting, SINGLE_PROCESS, inf, "") not in done:
        append(path, [alone(setting, TUNING_SEED, BY_ITSELF)])
    for epsilon, method in itertools.product(EPSILONS, METHODS):
        for chosen in METHODS[method].combinations(epsilon):
            if (setting, method, epsilon, "; ".join(chosen)) not in done:
                append(path, tried(setting, method, epsilon, chosen))


def measure(setting: str, tuning: list[Record], path: Path) -> None:
    """Trains with the best tuned settings, on other seeds."""
    done = {record.key[:4] for record in read(path)}
    for seed in SEEDS:
        if (setting, SINGLE_PROCESS, inf, seed) not in done:
            way = Adaptation.read(best(tuning, setting, SINGLE_PROCESS, inf).adaptation)
            append(path, [alone(setting, seed, (way,))])
        for epsilon, arm in itertools.product(EPSILONS, ARMS[1:]):
            if (setting, arm, epsilon, seed) not in done:
                append(path, [scored(best(tuning, setting, arm, epsilon), seed)])


def alone(setting: str, seed: int, ways: tuple[Adaptation, ...]) -> Record:
    """Scores clients that train the initial model separately, in the best of these ways."""
    start, key = (
        untrained(configured(setting, SINGLE_PROCESS, inf, seed)),
        (setting, SINGLE_PROCESS, inf, seed),
    )
    return _best(Record.of(key, (), way, start.adapted(way)) for way in ways)


def tried(setting: str, method: str, epsilon: float, chosen: Changes) -> Iterator[Record]:
    """Runs one combination on the tuning seed, scored as each arm that uses such training."""
    run = ended(configured(setting, method, epsilon, TUNING_SEED, chosen))
    rest, means = (epsilon, TUNING_SEED), METHODS[method]
    if means.shared:
        yield Record.of((setting, method, *rest), chosen, "", run.shared())
    if means.adapts:
        key = (setting, FINE_TUNED if means.shared else method, *rest)
        yield _best(Record.of(key, chosen, way, run.adapted(way)) for way in AFTERWARDS)
    else:
        yield Record.of((setting, method, *rest), chosen, "", run.personal())


def scored(chosen: Record, seed: int) -> Record:
    """Runs the settings of `chosen` on another seed."""
    arm, key = chosen.arm, (chosen.setting, chosen.arm, chosen.epsilon, seed)
    run = ended(configured(*key, chosen.changes))
    if chosen.adaptation:
        scores = run.adapted(Adaptation.read(chosen.adaptation))
    else:
        scores = run.shared() if METHODS[method_of(arm)].shared else run.personal()
    return Record.of(key, chosen.changes, chosen.adaptation, scores)


def best(tuning: list[Record], setting: str, arm: str, epsilon: float) -> Record:
    """Returns the record that the tuning seed selected."""
    return _best(record for record in tuning if record.key[:3] == (setting, arm, epsilon))


def _best(records: Iterator[Record]) -> Record:
    return max(records, key=lambda record: record.mean)


if __name__ == "__main__":
    main()
