"""MNIST's images at a quarter of their size, and clients with two labellings of the digits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import torch

from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.sources.idx import Idx

_SIDE = 4
_MEAN, _STD = 0.131, 0.25
"""Approximate constants of MNIST's small images, public."""
_FURTHER = 5
"""Number of classes by which every second client shifts its labels."""


class SmallImages(Idx):
    """MNIST-format images at a quarter of their height and width.

    x `[N, 49]` for images of 28 x 28: means of 4 x 4 pixels, with about mean 0 and standard
    deviation 1.
    """

    def _load(self, prefix: str) -> Examples:
        return _small(Idx(path=self.path, classes=self.classes), prefix)


class TwoReadings(SmallImages):
    """The same images, partitioned evenly at random over clients with two labellings.

    For a client k with odd k, the label is (digit + 5) mod 10: no model of an image alone is right
    for both halves.
    """

    natural_partition: ClassVar[bool] = True

    def load(self, clients: int, streams: Streams) -> Examples:
        images = super().load(clients, streams)
        order = streams.at("partition").generator().permutation(len(images))
        owners = np.empty(len(images), np.int64)
        owners[order] = np.arange(len(images)) % clients
        further = torch.from_numpy(owners % 2 * _FURTHER)
        labels = (images.y + further) % images.classes
        return replace(images, y=labels, owners=owners, clients=tuple(map(str, range(clients))))


@cache
def _small(source: Idx, prefix: str) -> Examples:
    """Returns the images of `source`, unpacked once in each process."""
    whole = source._load(prefix)
    images = torch.nn.functional.avg_pool2d(whole.x[torch.arange(len(whole))], _SIDE)
    scaled = (images.flatten(1) - _MEAN) / _STD
    return replace(whole, x=scaled, preprocessing=None)
