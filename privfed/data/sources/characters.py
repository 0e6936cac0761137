"""Text as examples for next-character prediction: declared characters, windows of fixed length.

The vocabulary is a public constant; what is not in it becomes "unknown", so that no character of a
client's text decides what the model can see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from privfed.data.federation import NO_LABEL, Meaning
from privfed.errors import Refused

PADDING, UNKNOWN = 0, 1
"""The tokens of padding, and of a character that is not in the vocabulary."""
PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
"""The printable characters of ASCII, and the end of a line."""


class Characters:
    """The tokens of a `vocabulary`, from 2; 0 is padding and 1 any other character.

    Raises `Refused` for a vocabulary that is empty or holds a character twice.
    """

    def __init__(self, vocabulary: str) -> None:
        if len(set(vocabulary)) != len(vocabulary) or not vocabulary:
            raise Refused(
                f"data.vocabulary is {vocabulary!r}; expected different characters, each once"
            )
        self._tokens = {character: n for n, character in enumerate(vocabulary, start=2)}
        self.meaning = Meaning(names=("", "\ufffd", *vocabulary))

    @property
    def count(self) -> int:
        """How many tokens there are, with padding and the unknown character."""
        return len(self._tokens) + 2

    def encode(self, text: str) -> np.ndarray:
        """The tokens of the `pieces` of `text`, int64 `[pieces]`."""
        tokens = [self._tokens.get(piece, UNKNOWN) for piece in self.pieces(text)]
        return np.array(tokens, dtype=np.int64)

    def pieces(self, text: str) -> Iterable[str]:
        """What of `text` becomes a token each: its characters."""
        return text

    def windows(self, text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows x `[n, length]`, and y, the same one character later; the last one is padded.

        A text of fewer than two characters has nothing to predict, and gives no window.
        """
        tokens = self.encode(text)
        count = -(-(len(tokens) - 1) // length) if len(tokens) > 1 else 0
        x = np.full(count * length, PADDING, dtype=np.int64)
        y = np.full(count * length, NO_LABEL, dtype=np.int64)
        if count:
            x[: len(tokens) - 1], y[: len(tokens) - 1] = tokens[:-1], tokens[1:]
        return x.reshape(count, length), y.reshape(count, length)


def stacked_windows(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor]:
    """The windows x and y `[n, length]` of all texts, one after another, as tensors."""
    x, y = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    return torch.from_numpy(x), torch.from_numpy(y)
