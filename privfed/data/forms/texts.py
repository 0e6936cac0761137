"""Encodes texts as features: windows to predict the next token, sequences, or token frequencies."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.federation import Meaning
from privfed.data.sources.text import PADDING, Characters, decoded, stacked_windows


class ListedWords(Characters):
    """Maps listed words to tokens from 2, in the list's order; 0 is padding, 1 any other word.

    A text is split at whitespace. A word that is not listed as written is looked up once more, in
    lower case and without surrounding punctuation.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self._tokens = {word: n for n, word in enumerate(words, start=2)}
        self.meaning = Meaning(names=("", "\ufffd", *words))

    @classmethod
    def of_file(cls, path: Path) -> ListedWords:
        """Reads a public list of words: the first word of every line that is not blank.

        Raises:
          Refused: if there is no such file, or it lists no words, or a word twice.
        """
        try:
            lines = decoded(path, "data.words").splitlines()
        except (FileNotFoundError, IsADirectoryError):
            raise Refused(
                f"data.words is {path}, but there is no such file; name a file with one word per "
                "line"
            ) from None
        words = tuple(line.split()[0] for line in lines if line.strip())
        if not words or len({*words}) < len(words):
            raise Refused(
                f"data.words: {path} lists {len(words)} words, but only {len({*words})} are "
                "different; expected different words, one per line"
            )
        return cls(words)

    def pieces(self, text: str) -> Iterator[str]:
        """Yields each word of `text` as written if it is listed.

        Otherwise it is in lower case, without punctuation around it; it may then be empty.
        """
        for word in text.split():
            bare = word.strip(string.punctuation).lower()
            yield word if word in self._tokens else bare


def tokens_of(words: str, vocabulary: str) -> Characters:
    """Returns the map from the words in the file `words` to tokens.

    If `words` is "", the result maps the characters of `vocabulary`.

    Raises:
      Refused: if the file or the vocabulary is invalid.
    """
    return ListedWords.of_file(Path(words)) if words else Characters(vocabulary)


@dataclass(frozen=True)
class TextForm:
    """Converts texts to features: `tokens` maps text to tokens; a sequence has `window` tokens."""

    tokens: Characters
    window: int

    def next_tokens(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Indices]:
        """Returns windows x and y `[M, window]` of tokens, and the index `[M]` of their text.

        y has the token that follows each token of x. The last window of a text is padded if it is
        not full; a text of fewer than two tokens has none.
        """
        parts = [self.tokens.windows(text, self.window) for text in texts]
        parts = parts or [self.tokens.windows("", self.window)]
        x, y = stacked_windows(parts)
        return x, y, np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])

    def sequences(self, texts: Sequence[str]) -> Tensor:
        """Returns the first `window` tokens of each text `[N, window]`, padded at its end."""
        x = np.full((len(texts), self.window), PADDING, dtype=np.int64)
        for row, text in zip(x, texts, strict=True):
            tokens = self.tokens.encode(text)[: self.window]
            row[: len(tokens)] = tokens
        return torch.from_numpy(x)

    def shares(self, texts: Sequence[str]) -> Tensor:
        """Returns the frequency of each token in each text, float32 `[N, tokens.count]`.

        These sum to 1 for each text; for an empty text, all are 0.
        """
        x = np.zeros((len(texts), self.tokens.count), dtype=np.float32)
        for row, text in zip(x, texts, strict=True):
            tokens = self.tokens.encode(text)
            np.add.at(row, tokens, np.float32(1 / max(len(tokens), 1)))
        return torch.from_numpy(x)
