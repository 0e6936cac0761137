"""The defaults over every table: `python -m experiments.first_run [TABLE ...]`.

The exit code is 1 if a run without privacy is worse than the baseline, on a table of more than a
few rows.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from experiments.first_run.study import SEEDS, Result, first_run, table
from experiments.first_run.tables import NAMES, TOO_SMALL

_RESULTS = Path(__file__).with_name("results.csv")


def main(names: list[str]) -> int:
    """Runs the requested tables, prints and stores each result, and checks all stored results."""
    known = _read()
    with tempfile.TemporaryDirectory() as folder:
        for name in names or NAMES:
            for private in (False, True):
                for seed in SEEDS:
                    result = first_run(name, private, seed, Path(folder))
                    known[result.table, result.private, result.seed] = result
                    _write(list(known.values()))
                    print(*result.cells(), flush=True)
    print(table(list(known.values())))
    worse = [
        result
        for result in known.values()
        if not result.private and result.worse and result.table not in TOO_SMALL
    ]
    for result in worse:
        print(f"worse than a constant: {result.table}, seed {result.seed}")
    return 1 if worse else 0


def _read() -> dict[tuple[str, bool, int], Result]:
    if not _RESULTS.exists():
        return {}
    rows = csv.DictReader(_RESULTS.read_text().splitlines())
    results = (Result.read(row) for row in rows)
    return {(result.table, result.private, result.seed): result for result in results}


def _write(results: list[Result]) -> None:
    place = {name: number for number, name in enumerate(NAMES)}
    with _RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Result.__dataclass_fields__)
        ordered = sorted(
            results, key=lambda result: (place[result.table], result.private, result.seed)
        )
        writer.writerows(result.cells() for result in ordered)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
