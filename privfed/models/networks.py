"""A small CNN with group normalisation, and an LSTM for text.

Neither has batch normalisation, which mixes a batch's examples, keeps statistics outside of the
flat vector, and performs badly for clients with few examples (Hsieh et al. 2020, "The Non-IID Data
Quagmire").
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.parts import Part


class Lstm(Part):
    """Embedding, LSTM layers and a linear layer, which predict the next character per position.

    x `[B, T]` are int64 tokens, which are also the classes; outputs are `[B, T, classes]`. Defaults
    are the Shakespeare model of Reddi et al. 2021 (appendix C): embedding 8, two layers of 256.
    """

    embedding: int = Field(8, ge=1, le=65_536)
    """Width of the embedding."""
    hidden: int = Field(256, ge=1, le=65_536)
    """Width of an LSTM layer."""
    layers: int = Field(2, ge=1, le=16)
    """Number of LSTM layers."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if len(features) != 1:
            raise Refused(
                f"model.name is 'lstm', but an example has shape {features} instead of a sequence "
                'of tokens [T]; use data.source = "text" or "leaf", or another model'
            )
        return _NextCharacter(width, self.embedding, self.hidden, self.layers)


class _NextCharacter(nn.Module):
    """The module of `Lstm`: maps tokens `[B, T]` to outputs `[B, T, tokens]`."""

    def __init__(self, tokens: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        out: Tensor = self.output(states)
        return out


_SMALLEST = 2
"""Smallest height and width to which images are pooled."""


class Cnn(Part):
    """Blocks of 3 x 3 convolution, GroupNorm, ReLU and 2 x 2 max-pooling, then one linear layer.

    `channels` has the number of output channels of each block, which `groups` must divide. x is
    `[B, channels, height, width]`. Pooling stops before an image becomes smaller than 2 x 2.
    """

    channels: list[Annotated[int, Field(ge=1, le=4096)]] = Field([16, 32], min_length=1)
    """Number of output channels of each convolution."""
    groups: int = Field(4, ge=1)
    """Number of groups of each GroupNorm; it must divide each number of channels."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if len(features) != 3:
            raise Refused(
                f"model.name is 'cnn', but an example has shape {features} instead of [channels, "
                'height, width]; use "logistic" or "mlp" for flat features'
            )
        indivisible = [out for out in self.channels if out % self.groups]
        if indivisible:
            raise Refused(
                f"model.groups is {self.groups}, but does not divide {indivisible} in "
                "model.channels; change one of the two"
            )
        depth, height, breadth = features
        layers: list[nn.Module] = []
        for out in self.channels:
            layers += [
                nn.Conv2d(depth, out, 3, padding=1),
                nn.GroupNorm(self.groups, out),
                nn.ReLU(),
            ]
            depth = out
            if min(height, breadth) >= 2 * _SMALLEST:
                layers.append(nn.MaxPool2d(2))
                height, breadth = height // 2, breadth // 2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * breadth, width))
