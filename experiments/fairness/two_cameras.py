"""Digits from two cameras: some of the clients hold images rotated by a quarter turn.

The camera of a client is a declared column of two words, which the model receives in addition to
the image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.preprocessing import Category, Numbers, Preprocessing
from privfed.data.sources.digits import Digits

_PUBLIC = 359
"""Number of public images."""


class TwoCameras(Part):
    """scikit-learn's digits, partitioned evenly over clients; the first clients have the second
    camera.

    x `[N, 66]`: 64 intensities in [-0.5, 0.5], and a 1 for the camera "upright" or "turned". The
    test set holds every public image from both cameras, so that it scores both groups alike.
    """

    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = False
    minority: float = Field(0.1, ge=0, le=1)
    """Fraction of clients whose images are rotated."""

    @property
    def squared_norm(self) -> float:
        """The bound for 64 numbers of at most 0.5 in magnitude, and a 1."""
        return 17.0

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("digits",)

    def load(self, clients: int, streams: Streams) -> Examples:
        images, order = self._images(streams)
        order = order[_PUBLIC:]
        owners = np.arange(len(order)) % clients
        turned = owners < round(self.minority * clients)
        return replace(
            _through(images.take(order), turned),
            owners=owners,
            clients=tuple(map(str, range(clients))),
        )

    def load_test(self, clients: int, streams: Streams) -> Examples:
        images, order = self._images(streams)
        public = images.take(np.tile(order[:_PUBLIC], 2))
        return _through(public, np.arange(2 * _PUBLIC) < _PUBLIC)

    def _images(self, streams: Streams) -> tuple[Examples, Indices]:
        """Returns all images, and the order in which they are public or assigned to clients."""
        order = streams.at("outside/cameras").generator().permutation(1797)
        return Digits().load(0, streams), order


def _through(images: Examples, turned: np.ndarray) -> Examples:
    """Returns the images, those `turned` `[N]` rotated by a quarter turn, each with its camera."""
    second = torch.from_numpy(turned)
    squares = images.x[torch.arange(len(images))].view(-1, 8, 8)
    squares = torch.where(second[:, None, None], squares.rot90(1, (1, 2)), squares)
    camera = torch.stack([~second, second], dim=1).float()
    return replace(
        images,
        x=torch.cat([squares.reshape(-1, 64), camera], dim=1),
        preprocessing=Preprocessing(
            numbers=(Numbers(column="intensity", count=64, bounds=(0.0, 16.0)),),
            categories=(Category(column="camera", values=("upright", "turned")),),
            onto=(-0.5, 0.5),
            shape=(66,),
        ),
    )
