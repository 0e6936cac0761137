"""A sparse task: predicts the next letter of a Shakespeare role from the previous letters.

Of nearly 900 features five are non-zero, most of them rarely, so most weights of a logistic model
have no gradient in most rounds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.sources.text import speeches

_LETTERS = "abcdefghijklmnopqrstuvwxyz "
_BEFORE = 4
"""Number of previous letters used as separate features; the last two also form a pair."""


class NextLetter(Part):
    """Roles of plays. x `[N, 4 * 27 + 27^2]` of zeros and ones; y the next of 27 letters.

    A role has at most `most` examples.
    """

    path: str
    most: int = Field(150, ge=1)
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True

    @property
    def squared_norm(self) -> float:
        """The number of nonzero features: one for each previous letter, one for the last pair."""
        return _BEFORE + 1.0

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns the origins of the roles, which are those of the text source."""
        return ("text: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        count = len(_LETTERS)
        texts_of = {
            role: re.sub("[^a-z]+", " ", " ".join(lines).lower())[: self.most + _BEFORE]
            for role, lines in sorted(speeches(Path(self.path)).items())
        }
        texts = [np.array([_LETTERS.index(c) for c in text]) for text in texts_of.values()]
        before, ys, owners = [], [], []
        for role, text in enumerate(texts):
            for end in range(_BEFORE, len(text)):
                before.append(text[end - _BEFORE : end])
                ys.append(int(text[end]))
                owners.append(role)
        if not before:
            raise Refused(f"data.path: no role in {self.path} speaks more than {_BEFORE} letters")
        letters = np.stack(before)
        x = np.zeros((len(ys), _BEFORE * count + count * count), dtype=np.float32)
        rows = np.arange(len(ys))
        for place in range(_BEFORE):
            x[rows, place * count + letters[:, place]] = 1
        x[rows, _BEFORE * count + letters[:, -2] * count + letters[:, -1]] = 1
        return Examples(
            torch.from_numpy(x),
            torch.tensor(ys),
            count,
            owners=np.array(owners),
            clients=tuple(texts_of),
        )

    def load_test(self, clients: int, streams: Streams) -> None:
        return None
