"""Charged evaluation by clients and early stopping, against a public test set.

    python -m experiments.federated_evaluation.study          # under 20 minutes on one core
    python -m experiments.federated_evaluation.study --draw   # tables and picture from results.csv

Writes results.csv and evaluations.svg into this folder, and prints the tables of its page.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from accounting.durable import write_atomically
from experiments.federated_evaluation.cases import ARMS, CASES, HERE, configured
from experiments.federated_evaluation.picture import picture
from experiments.federated_evaluation.scored import Scored, scored_rounds
from experiments.federated_evaluation.tables import tables


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--draw", action="store_true", help="from results.csv alone")
    words.add_argument("--seeds", type=int, default=0, help="at most so many")
    words.add_argument("--out", type=Path, default=HERE)
    asked = words.parse_args()
    results = asked.out / "results.csv"
    if not asked.draw:
        asked.out.mkdir(parents=True, exist_ok=True)
        rows = list(every_run(asked.seeds))
        write_atomically(results, written(rows).encode())
    rows = read(results)
    write_atomically(asked.out / "evaluations.svg", picture(rows))
    print(tables(rows))


def every_run(seeds: int = 0) -> Iterator[Scored]:
    """Yields all scored models, of at most `seeds` seeds (0: of all)."""
    screen = Console(stderr=True)
    for case in CASES:
        for name, arm in ARMS.items():
            for seed in range(min(arm.seeds, seeds or arm.seeds)):
                with screen.status(f"{case}, {name}, seed {seed}"):
                    run = list(
                        scored_rounds(configured(case, name, seed), case, name, arm.held_back)
                    )
                yield from run if arm.stops else run[-1:]
            screen.print(f"{case}, {name}", highlight=False)


def written(rows: list[Scored]) -> str:
    """Returns CSV with a line for each scored model."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(Scored.__annotations__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in rows)
    return out.getvalue()


def read(path: Path) -> list[Scored]:
    """Reads the output of `written`."""
    return [Scored.read(row) for row in csv.DictReader(path.read_text("utf-8").splitlines())]


if __name__ == "__main__":
    main()
