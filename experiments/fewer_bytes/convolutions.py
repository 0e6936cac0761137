"""A network with convolutions for scikit-learn's digits, whose source gives flat rows."""

from __future__ import annotations

from torch import nn

from privfed.models.networks import Cnn

_IMAGE = (1, 8, 8)


def small_cnn(features: tuple[int, ...], width: int) -> nn.Module:
    """The part `cnn` of 16 and 32 channels behind rows of `[64]`: 6,186 numbers for 10 classes."""
    return nn.Sequential(nn.Unflatten(1, _IMAGE), Cnn(channels=[16, 32]).build(_IMAGE, width))
