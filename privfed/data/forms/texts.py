"""Texts as features: windows that predict the next token, sequences, or shares of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.sources.characters import PADDING, Characters, stacked_windows
from privfed.deferred import torch
from privfed.vector import Indices

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TextForm:
    """Texts of declared `tokens`, of which a sequence has `window`."""

    tokens: Characters
    window: int

    def next_tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Indices]:
        """Windows x and y `[M, window]`, y one token later, and the text `[M]` that each is of.

        A text of fewer than two tokens has nothing to predict, and gives no window.
        """
        parts = [self.tokens.windows(text, self.window) for text in texts]
        parts = parts or [self.tokens.windows("", self.window)]
        x, y = stacked_windows(parts)
        return x, y, np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])

    def sequences(self, texts: Sequence[str]) -> Tensor:
        """The first `window` tokens of each text, int64 `[N, window]`, padded at its end."""
        x = np.full((len(texts), self.window), PADDING, dtype=np.int64)
        for row, text in zip(x, texts, strict=True):
            tokens = self.tokens.encode(text)[: self.window]
            row[: len(tokens)] = tokens
        return torch.from_numpy(x)

    def shares(self, texts: Sequence[str]) -> Tensor:
        """The share that every token has of each text, float32 `[N, tokens]`: all add up to 1."""
        x = np.zeros((len(texts), self.tokens.count), dtype=np.float32)
        for row, text in zip(x, texts, strict=True):
            tokens = self.tokens.encode(text)
            np.add.at(row, tokens, np.float32(1 / max(len(tokens), 1)))
        return torch.from_numpy(x)
