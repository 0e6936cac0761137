"""A convolutional network of more than 100,000 parameters for images of 28 x 28 pixels."""

from __future__ import annotations

from torch import nn

_CHANNELS, _HIDDEN = 16, 48
_SIDE = 12
"""Height and width of a 28 x 28 image after a 5 x 5 convolution of stride 2."""


def wide_cnn(features: tuple[int, ...], width: int) -> nn.Module:
    """Returns a convolution and two linear layers: 111,546 parameters for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, _CHANNELS, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_CHANNELS * _SIDE * _SIDE, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, width),
    )
