"""Distribution shifts between clients or rounds: none, covariate shift and concept shift."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np
from pydantic import Field

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Keys, Streams, uniforms
from privfed.data.federation import Examples, Federation

_BATCH_SIZE = 4096
"""Number of images transformed at once."""


class Covariate(Part):
    """Covariate shift: each client's images are rotated, and their contrast and brightness changed.

    A client draws an angle up to `rotation` degrees either way, a factor for its intensities in 1
    +- `contrast` and an offset up to `brightness` either way, by random numbers of its own stream;
    labels are unchanged. Each test image is transformed by a draw of its own. x is `[N, channels,
    height, width]`, or square images as `[N, side * side]`, and is loaded into memory.
    """

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = True
    rotation: float = Field(30.0, ge=0, le=180)
    """Largest rotation angle, in degrees, either way."""
    contrast: float = Field(0.3, ge=0, le=1)
    """Intensities are multiplied by a factor in 1 +- contrast."""
    brightness: float = Field(0.2, ge=0, le=1)
    """Largest offset of intensities, either way."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        ids = np.arange(federation.clients)
        cameras = federation.identify(federation.first_entries())
        clients = self._draw(streams.at("shift", 0, cameras))
        owners = np.repeat(ids, federation.sizes(ids))
        public = self._draw(streams.at("shift/public", 0, np.arange(len(federation.test))))
        return replace(
            federation,
            examples=self._photographed(federation.examples, clients[torch.from_numpy(owners)]),
            test=self._photographed(federation.test, public),
        )

    def _draw(self, keys: Keys) -> Tensor:
        """Returns an angle (radians), a factor and an offset `[n, 3]` for each client of `keys`."""
        uniform = torch.from_numpy(uniforms(keys.per_client(3))).float() * 2 - 1
        scale = torch.tensor([math.radians(self.rotation), self.contrast, self.brightness])
        return uniform * scale + torch.tensor([0.0, 1.0, 0.0])

    def _photographed(self, examples: Examples, cameras: Tensor) -> Examples:
        """Returns the examples, each transformed by its angle, factor and offset `[N, 3]`.

        Raises `Refused` if examples are not images.
        """
        shape = examples.x.shape[1:]
        if examples.x.dtype != torch.float32 or not (image := _image_shape(tuple(shape))):
            raise Refused(
                f'data.shift is "covariate", but an example has the shape {tuple(shape)}; expected '
                'an image, [channels, height, width] or a flattened square; use "none"'
            )
        pieces = [
            _through(examples.x[rows].reshape(len(rows), *image), cameras[rows]).reshape(-1, *shape)
            for rows in torch.split(torch.arange(len(examples)), _BATCH_SIZE)
        ]
        return replace(examples, x=torch.cat(pieces) if pieces else examples.x)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Returns channels, height and width of an image, or flattened square, of `shape`; or None."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (1, side, side) if side > 1 and side * side == shape[0] else None


def _through(images: Tensor, cameras: Tensor) -> Tensor:
    """Returns images `[n, c, h, w]`, each transformed by its angle, factor and offset."""
    cos, sin, zero = cameras[:, 0].cos(), cameras[:, 0].sin(), torch.zeros(len(cameras))
    turn = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).reshape(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(turn, list(images.shape), align_corners=False)
    turned = torch.nn.functional.grid_sample(
        images, grid, padding_mode="border", align_corners=False
    )
    contrast, brightness = cameras[:, 1, None, None, None], cameras[:, 2, None, None, None]
    return turned * contrast + brightness


class Concept(Part):
    """Concept shift: at random rounds two classes swap their labels permanently, for all clients.

    `swaps` rounds are drawn from 2 to `within`, and two classes for each. From that round on, train
    and test examples of one class carry the label of the other (the "concept shift" of Tian, Smith
    & Kira 2022, FedFOR). Swaps that would restore an earlier assignment of labels to classes are
    not drawn. The run's seed determines rounds and classes.
    """

    changes_labels: ClassVar[bool] = True
    moves_features: ClassVar[bool] = False
    swaps: int = Field(3, ge=1)
    """Number of swaps."""
    within: int = Field(100, ge=2, le=999_999)
    """Last round in which two classes may be swapped."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        y, classes = federation.examples.y, federation.examples.classes
        if y.dtype != torch.int64 or y.dim() != 1 or classes < 2:
            raise Refused(
                'data.shift is "concept", which swaps two classes, but these examples have no '
                'class labels; use "none"'
            )
        if self.swaps > self.within - 1:
            raise Refused(
                f"data.swaps is {self.swaps}, but from 2 to data.within = {self.within} there are "
                f"only {self.within - 1} rounds; lower data.swaps, or raise data.within"
            )
        rng = streams.at("shift").generator()
        rounds = np.sort(rng.choice(np.arange(2, self.within + 1), self.swaps, replace=False))
        labels, changes = np.arange(classes), []
        pairs = list(itertools.combinations(range(classes), 2))
        earlier = {tuple(labels)}
        for round in rounds.tolist():
            ahead = [labels.copy() for _ in pairs]
            for swapped, pair in zip(ahead, pairs, strict=True):
                swapped[list(pair)] = swapped[list(pair[::-1])]
            new = [swapped for swapped in ahead if tuple(swapped) not in earlier]
            if not new:
                raise Refused(
                    f"data.swaps is {self.swaps}, but with {classes} classes every further swap "
                    "restores an earlier labelling; lower data.swaps"
                )
            labels = new[int(rng.integers(len(new)))]
            earlier.add(tuple(labels))
            changes.append((round, torch.from_numpy(labels)))
        return replace(federation, relabelled=tuple(changes))


class Shift(Protocol):
    """A distribution shift that changes examples or labels after they are assigned to clients."""

    changes_labels: ClassVar[bool]
    """Whether labels are changed."""
    moves_features: ClassVar[bool]
    """Whether features are changed, in the same way for all of a client's examples."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        """Returns the population after the shift; random choices depend only on the run's seed.

        Args:
          federation: the population, after partitioning.
          streams: random streams of the run.
        """


class NoShift(Part):
    """No shift: the data are unchanged."""

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = False

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        return federation
