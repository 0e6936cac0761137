"""Tables with a hospital for every row: scikit-learn's bundled ones, and synthetic ones by size.

Each is written as a first-time user would have it: the clients' rows in one CSV with a column for
the owner of a row, and public rows of the same form in another. Rows are assigned to hospitals at
random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv
from sklearn import datasets

Columns = dict[str, np.ndarray]
CLIENT = "hospital"
_PUBLIC = 5
"""One row in this many is public."""


@dataclass(frozen=True)
class Sample:
    """A table to learn from: `columns` `[rows]` by name, with `labels` to be predicted."""

    columns: Columns
    labels: tuple[str, ...]

    @property
    def rows(self) -> int:
        return len(self.columns[self.labels[0]])


@dataclass(frozen=True)
class Written:
    """The files of the clients' rows and of the public rows, and the declared number of
    hospitals.
    """

    private: Path
    public: Path
    labels: tuple[str, ...]
    hospitals: int


def hospitals_of(rows: int) -> int:
    """Returns the number of hospitals for `rows` rows: about ten rows each, from 10 to 500
    hospitals.
    """
    return min(max(rows // 10, 10), 500)


def write(name: str, folder: Path) -> Written:
    """Writes the table `name` of `TABLES` into `folder`, with its rows in random order."""
    sample = TABLES[name]()
    rng = np.random.default_rng(0)
    order = rng.permutation(sample.rows)
    count = hospitals_of(sample.rows)
    public = np.arange(sample.rows) % _PUBLIC == 0
    numbers = rng.integers(count, size=sample.rows).astype(str)
    hospital = np.char.add(np.where(public, "public ", "hospital "), numbers)
    columns = {CLIENT: hospital} | {key: of[order] for key, of in sample.columns.items()}
    files = Written(folder / f"{name}.csv", folder / f"{name}.public.csv", sample.labels, count)
    for path, chosen in ((files.private, ~public), (files.public, public)):
        csv.write_csv(pyarrow.table({key: of[chosen] for key, of in columns.items()}), path)
    return files


def _bundled(load: Callable[[], Any], label: int = 0) -> Sample:
    """Returns a bundled table; with several targets, the one at `label`."""
    bunch = load()
    target = np.atleast_2d(bunch.target.T)[label]
    return _sample(bunch.data, {"target": target})


def _regression(rows: int, features: int) -> Sample:
    x, y = datasets.make_regression(rows, features, noise=50.0, random_state=0)
    return _sample(x, {"target": y})


def _classes(rows: int, features: int, classes: int) -> Sample:
    x, y = datasets.make_classification(
        rows, features, n_informative=features // 2, n_classes=classes, random_state=0
    )
    return _sample(x, {"target": y})


def _several(rows: int, features: int, labels: int) -> Sample:
    x, y = datasets.make_multilabel_classification(rows, features, n_classes=labels, random_state=0)
    return _sample(x, {f"label{number}": column for number, column in enumerate(y.T)})


def _sample(x: np.ndarray, labels: Mapping[str, np.ndarray]) -> Sample:
    features = {f"x{number}": column for number, column in enumerate(x.T)}
    return Sample({**features, **labels}, tuple(labels))


TABLES: dict[str, Callable[[], Sample]] = {
    "diabetes": partial(_bundled, datasets.load_diabetes),
    **{
        f"linnerud {target}": partial(_bundled, datasets.load_linnerud, number)
        for number, target in enumerate(("weight", "waist", "pulse"))
    },
    "regression 300": partial(_regression, 300, 5),
    "regression 10,000": partial(_regression, 10_000, 50),
    "regression 100,000": partial(_regression, 100_000, 20),
    "breast cancer": partial(_bundled, datasets.load_breast_cancer),
    "two classes 300": partial(_classes, 300, 8, 2),
    "two classes 100,000": partial(_classes, 100_000, 20, 2),
    "iris": partial(_bundled, datasets.load_iris),
    "wine": partial(_bundled, datasets.load_wine),
    "digits": partial(_bundled, datasets.load_digits),
    "five classes 100,000": partial(_classes, 100_000, 20, 5),
    "labels 300": partial(_several, 300, 10, 5),
    "labels 100,000": partial(_several, 100_000, 20, 8),
}

SOURCES: dict[str, dict[str, Any]] = {
    "synthetic": {
        "data.source": "synthetic",
        "data.size_max": 500,
        "data.holdout": "examples",  # as in its paper: clients' true models differ
    },
    "synthetic, alike": {"data.source": "synthetic", "data.iid": True, "data.size_max": 500},
    "digits over 500 clients": {},
}
"""Synthetic clients, and the keys of a run file that select them."""

NAMES = (*TABLES, *SOURCES)

TOO_SMALL = frozenset(name for name in TABLES if name.startswith("linnerud"))
"""Tables of 20 rows: the baseline is chosen on the four public rows themselves."""
