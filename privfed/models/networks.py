"""Networks with recipes of their own: a small CNN with group normalisation, and an LSTM for text.

They have no batch normalisation: it mixes a batch's examples, keeps statistics outside the flat
vector, and performs badly for clients with few examples (Hsieh et al. 2020, "The Non-IID Data
Quagmire").
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.parts import Part


class Lstm(Part):
    """Embedding, LSTM layers, one linear layer: the next character at every position.

    x is `[B, T]` int64 tokens below the number of classes; outputs are `[B, T, classes]`. Defaults
    are the Shakespeare model of Reddi et al. 2021 (appendix C): embedding 8, two layers of 256.
    """

    tuned: ClassVar[bool] = False

    embedding: int = Field(8, ge=1, le=65_536)
    """Width of the embedding."""
    hidden: int = Field(256, ge=1, le=65_536)
    """Width of an LSTM layer."""
    layers: int = Field(2, ge=1, le=16)
    """Number of LSTM layers."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if len(features) != 1:
            raise Refused(
                f"model.name is 'lstm', but an example has shape {features}; expected a sequence "
                'of tokens [T]; use data.source = "text" or "leaf", or another model'
            )
        return _NextCharacter(width, self.embedding, self.hidden, self.layers)


class _NextCharacter(nn.Module):
    """Outputs `[B, T, tokens]` for tokens `[B, T]`."""

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
"""Height and width below which images are not pooled."""


class Cnn(Part):
    """Per width c: 3 x 3 convolution, GroupNorm, ReLU, 2 x 2 max-pooling; then one linear layer.

    The widths are `channels`. x is `[B, channels, height, width]`. `groups` divides each width, and
    pooling stops before an image becomes smaller than 2 x 2.
    """

    tuned: ClassVar[bool] = False

    channels: list[Annotated[int, Field(ge=1, le=4096)]] = Field([16, 32], min_length=1)
    """Width of each convolution."""
    groups: int = Field(4, ge=1)
    """Groups of each GroupNorm; divides every width."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if len(features) != 3:
            raise Refused(
                f"model.name is 'cnn', but an example has shape {features}; expected images "
                "[channels, height, width]; use logistic or mlp for flat features"
            )
        indivisible = [out for out in self.channels if out % self.groups]
        if indivisible:
            raise Refused(
                f"model.channels has {indivisible}, but model.groups = {self.groups} does not "
                "divide that number; change one of the two"
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
