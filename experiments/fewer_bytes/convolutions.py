"""A convolutional network for scikit-learn's digits, whose source gives flat rows."""

from __future__ import annotations

from torch import nn

from privfed.models.networks import Cnn

_IMAGE = (1, 8, 8)


def small_cnn(features: tuple[int, ...], width: int) -> nn.Module:
    """Returns the part `cnn` of 16 and 32 channels for rows of `[64]`: 6,186 parameters for 10
    classes.
    """
    return nn.Sequential(nn.Unflatten(1, _IMAGE), Cnn(channels=[16, 32]).build(_IMAGE, width))
