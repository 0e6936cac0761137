"""Canaries that are token sequences: random beginnings, and a secret end of the canary's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.streams import Keys

_SIZES = 5
"""Further draws are of 2, 4, ... up to 2 to this power tokens, in turns."""


@dataclass(frozen=True)
class Sentences:
    """Tokens below `vocabulary` of shape `features`, with labels of shape `labels`.

    Where these are the same, a label is the next token, of a sequence one longer; else it is one of
    `classes` for all tokens.
    """

    features: tuple[int, ...]
    labels: tuple[int, ...]
    vocabulary: int
    classes: int

    @property
    def predicts(self) -> bool:
        """Whether labels are the next tokens."""
        return self.features == self.labels

    def drawn(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """Random sequences, whose second half, or class, all `count` of them share."""
        return self._drawn(keys, count, self.vocabulary)

    def crafted(
        self, x: Tensor, y: Tensor, influence: SelfInfluence, steps: int, keys: Sequence[Keys]
    ) -> tuple[Tensor, Tensor]:
        """The best of `steps` further draws for each canary: tokens have no gradient to climb.

        Further draws are of few tokens each, since a sequence that repeats itself has the longer
        gradient. A draw's worth is that among the other canaries' draws of the same step.
        """
        best = influence.of(x, y).detach()
        for step in range(steps):
            few = min(2 ** (1 + step % _SIZES), self.vocabulary)
            pairs = [
                self._drawn(each.derived(b"candidate %d" % step), x.shape[1], few) for each in keys
            ]
            others = tuple(torch.stack(part).to(x.device) for part in zip(*pairs, strict=True))
            worth = influence.of(*others).detach()
            better = worth > best
            best = torch.where(better, worth, best)
            x, y = (_where(better, new, old) for new, old in zip(others, (x, y), strict=True))
        return x, y

    def _drawn(self, keys: Keys, count: int, few: int) -> tuple[Tensor, Tensor]:
        """`count` examples of a canary, of `few` tokens of its own, or of all where these are few.

        The first word is the label's, the next ones are those of the tokens to draw from.
        """
        length = math.prod(self.features)
        drawn_words = keys.bits(1 + few + (count + 1) * (length + 1))
        label, words, alphabet = drawn_words[0], drawn_words[1:], np.arange(few)
        if few < self.vocabulary:
            alphabet = (words[:few] % np.uint64(self.vocabulary)).astype(np.int64)
        places = (words[few:] % np.uint64(few)).astype(np.int64)
        tokens = torch.from_numpy(alphabet[places]).view(count + 1, length + 1)
        secret, drawn = tokens[0], tokens[1:].clone()
        if not self.predicts:
            y = torch.full((count,), int(label % np.uint64(self.classes)))
            return drawn[:, :-1].reshape(count, *self.features), y
        drawn[:, length // 2 + 1 :] = secret[length // 2 + 1 :]
        x, y = drawn[:, :-1], drawn[:, 1:]
        return x.reshape(count, *self.features), y.reshape(count, *self.labels)


def _where(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.view(-1, *(1 for _ in old.shape[1:])), new, old)
