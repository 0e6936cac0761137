"""Words as tokens: those of a public list, one a line."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path

from privfed.data.federation import Meaning
from privfed.data.sources.characters import Characters
from privfed.data.sources.text import decoded
from privfed.errors import Refused


class ListedWords(Characters):
    """The tokens of words, from 2, in the order of their list; 0 is padding and 1 any other word.

    A text is split at its blanks. A word that is not listed counts as it is in small letters,
    without the marks around it, where that is.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self._tokens = {word: n for n, word in enumerate(words, start=2)}
        self.meaning = Meaning(names=("", "\ufffd", *words))

    @classmethod
    def of_file(cls, path: Path) -> ListedWords:
        """The words of a public file: the first of every line, as of "the 1234".

        Raises `Refused` for no file, and for one that lists none, or a word twice.
        """
        try:
            lines = decoded(path, "data.words").splitlines()
        except (FileNotFoundError, IsADirectoryError):
            raise Refused(f"data.words: {path} is no file; expected one word per line") from None
        words = tuple(line.split()[0] for line in lines if line.strip())
        if not words or len({*words}) < len(words):
            raise Refused(
                f"data.words: {path} lists {len(words)} words, {len({*words})} different ones; "
                "expected different words, one a line"
            )
        return cls(words)

    def pieces(self, text: str) -> Iterator[str]:
        """The words of `text`, as they are looked up."""
        for word in text.split():
            bare = word.strip(string.punctuation).lower()
            yield word if word in self._tokens else bare


def tokens_of(words: str, vocabulary: str) -> Characters:
    """The tokens of the words in the file `words`, where one is named, else of a `vocabulary`.

    Raises `Refused` for what is no vocabulary.
    """
    return ListedWords.of_file(Path(words)) if words else Characters(vocabulary)
