"""scikit-learn's bundled handwritten digits: 1,797 real images of 8 x 8 pixels, 10 classes.

Source: E. Alpaydin & C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar

import numpy as np

from privfed.core.deferred import torch
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.preprocessing import Preprocessing


class Digits(Part):
    """scikit-learn's handwritten digits.

    x `[1797, 64]`: intensities, scaled by public constants from 0 … 16 to [-0.5, 0.5].
    """

    natural_partition: ClassVar[bool] = False
    holds_real_clients: ClassVar[bool] = False
    picture: ClassVar[tuple[int, ...]] = (1, 8, 8)
    """The shape `[channels, height, width]` of an example as an image."""

    @property
    def squared_norm(self) -> float:
        """Bound on the squared norm of 64 numbers of magnitude at most 0.5."""
        return 16.0

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("digits",)

    def load(self, clients: int, streams: Streams) -> Examples:
        rows = _rows()
        x = torch.from_numpy(rows[:, :-1]).float() / 16 - 0.5
        y = torch.from_numpy(rows[:, -1]).long()
        scaled = Preprocessing.of_array("intensity", (64,), (0.0, 16.0), (-0.5, 0.5))
        return Examples(x, y, classes=10, preprocessing=scaled)

    def load_test(self, clients: int, streams: Streams) -> None:
        return None


def _rows() -> np.ndarray:
    """Returns 64 intensities and the label of each image: `[1797, 65]`.

    They are read from scikit-learn's own file if it is found: importing `sklearn.datasets`, and
    pandas with it, takes tens of times as long.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
