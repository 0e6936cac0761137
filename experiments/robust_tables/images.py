"""MNIST as the published studies partition it: sorted by label over honest workers, or at
random.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from attacks.updates.simple import FreeRider
from privfed.client.byzantine import Attackers
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.pieces import Mapped
from privfed.data.sources.idx import Idx

_MEAN, _STD = 0.1307, 0.3081
_TEST = 5
"""Test interval in a folder with a single pair of files: every `_TEST`-th image is for testing."""


class Assigned(Idx):
    """MNIST over honest workers, partitioned by `similarity`.

    That fraction of the images is assigned at random. The rest is sorted by label and cut into as
    many equal pieces as there are honest workers (`gamma_similarity_niid` in ByzFL): 1 is IID, and
    0 gives each worker one or two labels. With a `concentration`, each label is instead spread over
    workers by its own Dirichlet sample. The `byzantine` clients hold as many images each, sampled
    from all, so that no label is lost with them. Of label i a fraction `tail`^i remains, in
    training and test images alike.

    A folder with MNIST's training images uses them, and its test images for testing. A folder with
    a single pair of files uses every fifth image for testing.
    """

    similarity: float = Field(1.0, ge=0, le=1)
    """Fraction of the images that is assigned at random."""
    concentration: float = Field(0.0, ge=0)
    """Concentration of the Dirichlet sample for each label; 0: `similarity` applies."""
    tail: float = Field(1.0, gt=0, le=1)
    """Frequency of each label relative to the one before."""
    byzantine: int = Field(0, ge=0)
    """Number of Byzantine clients, as `attack.fraction` states."""
    natural_partition: ClassVar[bool] = True

    def sources(self, seed: int) -> tuple[str, ...]:
        return (f"dealt/{seed}", "idx")

    def load(self, clients: int, streams: Streams) -> Examples:
        images = self._tailed(self._part(test=False))
        rng = streams.at("partition").generator()
        bad = self.byzantine_workers(clients, streams)
        pieces: list[Indices] = [np.empty(0, np.int64)] * clients
        honest = np.flatnonzero(~bad)
        for client, piece in zip(honest, self._assigned(images, len(honest), rng), strict=True):
            pieces[client] = piece
        for client in np.flatnonzero(bad):
            pieces[client] = rng.permutation(len(images))[: len(images) // len(honest)]
        owners = np.repeat(np.arange(clients), [len(piece) for piece in pieces])
        return replace(images.take(np.concatenate(pieces)), owners=owners)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._tailed(self._part(test=True))

    def _part(self, test: bool) -> Examples:
        """Returns the images for training, or for testing."""
        if list(Path(self.path).glob("train*images?idx3-ubyte*")):
            return self._load("t10k" if test else "train")
        every = self._load("")
        chosen = np.arange(len(every)) % _TEST == 0
        return every.take(np.flatnonzero(chosen == test))

    def _tailed(self, images: Examples) -> Examples:
        labels = images.y.numpy()
        pieces = [np.flatnonzero(labels == label) for label in range(self.classes)]
        left = [piece[: int(len(piece) * self.tail**i)] for i, piece in enumerate(pieces)]
        return images.take(np.sort(np.concatenate(left)))

    def byzantine_workers(self, clients: int, streams: Streams) -> np.ndarray:
        """Returns a mask `[clients]` of the clients that the run will make attackers."""
        if not self.byzantine:
            return np.zeros(clients, dtype=bool)
        share, everybody = self.byzantine / clients, np.arange(clients)
        return Attackers(FreeRider(), share, False, False, everybody, streams, clients).byzantine(0)

    def _assigned(self, images: Examples, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Returns the images of each honest worker, by position."""
        labels = images.y.numpy()
        if self.concentration:
            return self._by_dirichlet(labels, workers, rng)
        order = rng.permutation(len(labels))
        alike = round(self.similarity * len(labels))
        rest = order[alike:]
        by_label = rest[np.argsort(labels[rest], kind="stable")]
        parts = zip(
            np.array_split(order[:alike], workers), np.array_split(by_label, workers), strict=True
        )
        return [np.concatenate(part) for part in parts]

    def _by_dirichlet(
        self, labels: np.ndarray, workers: int, rng: np.random.Generator
    ) -> list[Indices]:
        pieces: list[list[Indices]] = [[] for _ in range(workers)]
        for label in range(self.classes):
            places = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(workers, self.concentration))
            ends = (np.cumsum(shares)[:-1] * len(places)).astype(np.int64)
            for piece, cut in zip(pieces, np.split(places, ends), strict=True):
                piece.append(cut)
        return [np.concatenate(piece) for piece in pieces]

    def _examples(self, x: np.ndarray, y: np.ndarray) -> Examples:
        """Returns pixels of mean 0 and standard deviation 1 over all of MNIST, as in both
        studies.
        """
        examples = super()._examples(x, y)
        if not isinstance(examples.x, Mapped):
            raise TypeError("images are mapped")
        onto = ((0.0 - _MEAN) / _STD, (1.0 - _MEAN) / _STD)
        store = examples.x[torch.arange(len(y))].sub_(_MEAN).div_(_STD)
        pixels = replace(examples.x, onto=onto)
        return replace(examples, x=store if len(y) <= 20_000 else pixels)
