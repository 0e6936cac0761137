"""A causal transformer for characters: attention and two layers, each after normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention of several heads, on x `[B, T, size]`."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2)  # [B, h, 3, T, k]
        query, key, value = parts.unbind(-3)
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = functional.softmax(scores.masked_fill(later, -torch.inf), -1)
        mixed: Tensor = self.out((weights @ value).transpose(-3, -2).flatten(-2))
        return mixed


class Block(nn.Module):
    """Attention and a layer of four times the width, each with a residual connection."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_layer = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.widen, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        out: Tensor = x + self.narrow(functional.gelu(self.widen(self.before_layer(x))))
        return out


class Transformer(nn.Module):
    """Outputs `[B, T, width]` for tokens `[B, T]`: scores of the next of `width` characters."""

    def __init__(
        self,
        features: tuple[int, ...],
        width: int,
        size: int = 128,
        layers: int = 3,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(width, size)
        self.places = nn.Parameter(0.02 * torch.randn(features[0], size))
        self.blocks = nn.ModuleList(Block(size, heads) for _ in range(layers))
        self.last = nn.LayerNorm(size)
        self.head = nn.Linear(size, width)
        nn.init.normal_(self.characters.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        states = self.characters(x) + self.places
        for block in self.blocks:
            states = block(states)
        out: Tensor = self.head(self.last(states))
        return out
