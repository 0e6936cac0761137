"""Networks for characters, in plain PyTorch: the next token at every position of `[B, T]` tokens.

It imports nothing of privfed, like `task`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTH, HEADS, BLOCKS = 64, 4, 2
EMBEDDING, HIDDEN = 8, 128


class CausalAttention(nn.Module):
    """Each position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)
        queries, keys, values = (part.transpose(-3, -2) for part in parts)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
        later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ values
        out: Tensor = self.outputs(mixed.transpose(-3, -2).flatten(-2))
        return out


class Block(nn.Module):
    """Attention and two linear layers, each with prior normalisation and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        out: Tensor = x + self.layers(x)
        return out


class CausalTransformer(nn.Module):
    """Outputs `[B, T, tokens]` for tokens `[B, T]`.

    >>> model = CausalTransformer((20,), 64)
    >>> sum(p.numel() for p in model.parameters()), model(torch.zeros(3, 20).long()).shape
    (76608, torch.Size([3, 20, 64]))
    """

    def __init__(self, features: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(width, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(features[0], WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(BLOCKS)))
        self.output = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.blocks(self.tokens(x) + self.places))
        return out


class Recurrent(nn.Module):
    """Outputs `[B, T, tokens]` for tokens `[B, T]`: an embedding, an LSTM, a linear layer.

    >>> model = Recurrent((20,), 64)
    >>> sum(p.numel() for p in model.parameters()), model(torch.zeros(3, 20).long()).shape
    (79424, torch.Size([3, 20, 64]))
    """

    layer: type[nn.LSTM | nn.GRU] = nn.LSTM

    def __init__(self, features: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(width, EMBEDDING)
        self.cell = self.layer(EMBEDDING, HIDDEN, batch_first=True)
        self.output = nn.Linear(HIDDEN, width)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(self.tokens(x))
        out: Tensor = self.output(states)
        return out


class Gated(Recurrent):
    """The same with a GRU.

    >>> sum(p.numel() for p in Gated((20,), 64).parameters())
    61760
    """

    layer = nn.GRU
