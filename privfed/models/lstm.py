"""A recurrent network for characters."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.parts import Part


class Lstm(Part):
    """Embedding, LSTM layers, one linear layer: the next character at every position.

    x is `[B, T]` int64 tokens below the number of classes; outputs are `[B, T, classes]`. Defaults
    are the Shakespeare model of Reddi et al. 2021 (appendix C): embedding 8, two layers of 256.
    """

    embedding: int = Field(8, ge=1, le=65_536)
    """The width of a character."""
    hidden: int = Field(256, ge=1, le=65_536)
    """The width of a layer."""
    layers: int = Field(2, ge=1, le=16)
    """How many LSTM layers."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if len(features) != 1:
            raise Refused(
                f"model.name is 'lstm', but an example has shape {features}; expected a sequence "
                "of tokens [T], as the sources text and leaf give"
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
