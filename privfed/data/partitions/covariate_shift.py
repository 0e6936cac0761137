"""Covariate shift: every client sees the world through a camera of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from privfed.data.federation import Examples, Federation
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.parts import Part
from privfed.streams import Keys, Streams, uniforms

if TYPE_CHECKING:
    from torch import Tensor

_AT_ONCE = 4096
"""How many images are turned at once."""


class Covariate(Part):
    """Covariate shift: each client's images are turned, and their contrast and brightness changed.

    A client draws an angle up to `rotation` degrees either way, a factor for its intensities in
    1 +- `contrast` and an offset up to `brightness` either way, from its own identity; labels stay.
    A test image draws its own, as of a client of its own. x is `[N, channels, height, width]`, or
    flat `[N, side * side]`; it is held in memory.
    """

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = True
    rotation: float = Field(30.0, ge=0, le=180)
    """The largest angle, in degrees, either way."""
    contrast: float = Field(0.3, ge=0, le=1)
    """Intensities are multiplied by 1, give or take so much."""
    brightness: float = Field(0.2, ge=0, le=1)
    """Intensities are moved by so much at most, either way."""

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
        """The angle (radians), contrast and brightness of each camera `[n, 3]`."""
        coins = torch.from_numpy(uniforms(keys.per_client(3))).float() * 2 - 1
        scale = torch.tensor([math.radians(self.rotation), self.contrast, self.brightness])
        return coins * scale + torch.tensor([0.0, 1.0, 0.0])

    def _photographed(self, examples: Examples, cameras: Tensor) -> Examples:
        """`examples`, each as seen through its camera `[N, 3]`.

        Raises `Refused` where an example is no image.
        """
        shape = examples.x.shape[1:]
        if examples.x.dtype != torch.float32 or not (image := _image_shape(tuple(shape))):
            raise Refused(
                f'data.shift is "covariate", but an example has the shape {tuple(shape)}; expected '
                'an image, [channels, height, width] or flat and square; use "none"'
            )
        pieces = [
            _through(examples.x[rows].reshape(len(rows), *image), cameras[rows]).reshape(-1, *shape)
            for rows in torch.split(torch.arange(len(examples)), _AT_ONCE)
        ]
        return replace(examples, x=torch.cat(pieces) if pieces else examples.x)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Channels, height and width of an example of `shape`; None where it is no image."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (1, side, side) if side > 1 and side * side == shape[0] else None


def _through(images: Tensor, cameras: Tensor) -> Tensor:
    """The `images` `[n, c, h, w]`, each through the camera of its row of `cameras` `[n, 3]`."""
    cos, sin, zero = cameras[:, 0].cos(), cameras[:, 0].sin(), torch.zeros(len(cameras))
    turn = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).reshape(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(turn, list(images.shape), align_corners=False)
    turned = torch.nn.functional.grid_sample(
        images, grid, padding_mode="border", align_corners=False
    )
    contrast, brightness = cameras[:, 1, None, None, None], cameras[:, 2, None, None, None]
    return turned * contrast + brightness
