"""Bundled tables whose rows are assigned to synthetic patients of 1 to 10 rows each."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples

MOST = 10
"""Largest number of rows of a patient."""
TESTED = 5
"""One row in this many is public, and used for scoring only."""
BREAST = np.array(
    [
        *(30, 40, 200, 2600, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1),  # means
        *(3, 5, 25, 600, 0.04, 0.15, 0.4, 0.06, 0.08, 0.03),  # standard errors
        *(40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21),  # the worst three
    ]
)
"""Public upper bounds of the measurements of a cell nucleus; the lower bounds are 0."""


class Patients(Part):
    """scikit-learn's digits or breast cancer (Wolberg, Street & Mangasarian 1995), by patient.

    x `[N, 64]` or `[N, 30]`, scaled by public bounds to [-0.5, 0.5]. A patient has one row, and up
    to nine more at random, so `data.clients` is between a tenth of the rows and all of them. If the
    client is a hospital, it has an equal share of the same rows.
    """

    rows: Literal["images", "nuclei"] = "images"
    """The data set."""
    client: Literal["patient", "hospital"] = "patient"
    """The entity that a client represents."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = False

    @property
    def squared_norm(self) -> float:
        """The bound for numbers of at most 0.5 in magnitude."""
        return (64 if self.rows == "images" else 30) / 4

    def sources(self, seed: int) -> tuple[str, ...]:
        return (f"{self.rows}, by patients made up from seed {seed}",)

    def load(self, clients: int, streams: Streams) -> Examples:
        x, y = self._rows()
        rng = streams.at("outside/patients").generator()
        mine = rng.permutation(len(y))[len(y) // TESTED :]
        if self.client == "hospital":
            return self._examples(x[mine], y[mine], np.arange(len(mine)) % clients)
        return self._examples(x[mine], y[mine], assigned(len(mine), clients, rng))

    def load_test(self, clients: int, streams: Streams) -> Examples:
        x, y = self._rows()
        order = streams.at("outside/patients").generator().permutation(len(y))
        public = order[: len(y) // TESTED]
        return self._examples(x[public], y[public], None)

    def _rows(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        from sklearn.datasets import load_breast_cancer, load_digits

        digits = self.rows == "images"
        bunch = load_digits() if digits else load_breast_cancer()
        most = 16.0 if digits else BREAST
        x = np.clip(bunch.data / most, 0, 1) - 0.5
        return x.astype(np.float32), bunch.target.astype(np.int64)

    def _examples(
        self, x: NDArray[np.float32], y: NDArray[np.int64], owners: Indices | None
    ) -> Examples:
        classes = 10 if self.rows == "images" else 2
        return Examples(torch.from_numpy(x), torch.from_numpy(y), classes, owners=owners)


def assigned(rows: int, patients: int, rng: np.random.Generator) -> Indices:
    """Returns the owner of each row `[rows]`: one row for each of `patients`, the others at random.

    Raises `ValueError` if the rows do not permit 1 to `MOST` rows for each patient.
    """
    if not patients <= rows <= MOST * patients:
        raise ValueError(f"{rows} rows for {patients} patients of 1 to {MOST}")
    places = rng.permutation(np.repeat(np.arange(patients), MOST - 1))
    return np.concatenate([np.arange(patients), places[: rows - patients]])
