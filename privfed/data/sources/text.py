"""Plays by speaker: each speaker is a client, with next-character prediction on their lines.

McMahan et al. 2017, section 3, and Caldas et al. 2018 (LEAF) define the clients of Shakespeare's
plays in this way.

Texts become windows of fixed length for next-character prediction. The vocabulary is a public
constant: a character that is not in it becomes the token "unknown", so clients' texts do not affect
the set of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import NO_LABEL, Examples, Meaning

PADDING, UNKNOWN = 0, 1
"""The tokens of padding, and of a character that is not in the vocabulary."""
PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n"
"""The printable characters of ASCII, and the end of a line."""


class Characters:
    """Maps the characters of a `vocabulary` to tokens from 2; 0 is padding, 1 any other character.

    Raises `Refused` if the vocabulary is empty or contains a character twice.
    """

    def __init__(self, vocabulary: str) -> None:
        if len(set(vocabulary)) != len(vocabulary) or not vocabulary:
            raise Refused(
                f"data.vocabulary is {vocabulary!r}; expected one character or more, each once"
            )
        self._tokens = {character: n for n, character in enumerate(vocabulary, start=2)}
        self.meaning = Meaning(names=("", "\ufffd", *vocabulary))

    @property
    def count(self) -> int:
        """Number of tokens, including padding and the unknown character."""
        return len(self._tokens) + 2

    def encode(self, text: str) -> np.ndarray:
        """Returns the token of each of the `pieces` of `text`, int64 `[pieces]`."""
        tokens = [self._tokens.get(piece, UNKNOWN) for piece in self.pieces(text)]
        return np.array(tokens, dtype=np.int64)

    def pieces(self, text: str) -> Iterable[str]:
        """Returns the parts of `text` that are one token each: here its characters."""
        return text

    def windows(self, text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the windows x and y `[n, length]` of tokens; the last window is padded.

        y has the token that follows each token of x. A text of fewer than two tokens has no window.
        """
        tokens = self.encode(text)
        count = -(-(len(tokens) - 1) // length) if len(tokens) > 1 else 0
        x = np.full(count * length, PADDING, dtype=np.int64)
        y = np.full(count * length, NO_LABEL, dtype=np.int64)
        if count:
            x[: len(tokens) - 1], y[: len(tokens) - 1] = tokens[:-1], tokens[1:]
        return x.reshape(count, length), y.reshape(count, length)


def stacked_windows(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor]:
    """Returns the windows x and y `[n, length]` of several texts, concatenated, as tensors.

    `parts` has the windows of each text, as from `Characters.windows`.
    """
    x, y = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    return torch.from_numpy(x), torch.from_numpy(y)


_SPEECH = re.compile(r"(?:\A|\n[ \t]*\n)[ \t]*([^\n:]{1,80}):[ \t]*(?=\n|\Z)")
"""A heading: up to 80 characters and a final colon, in the first line or after an empty line."""


class Text(Part):
    """Plays by speaker. x and y `[N, window]` int64: characters, and the next character of each.

    `path` is a UTF-8 text file, or a folder of `.txt` files, with blocks of "SPEAKER:" and lines.
    The lines of a speaker, in the order of the file, are cut into windows. `vocabulary` is
    declared.
    """

    path: str = Field(examples=["."])
    """A UTF-8 file, or a folder of `.txt` files."""
    window: int = Field(80, ge=1, le=65_536)
    """Number of characters of one example."""
    vocabulary: str = PRINTABLE
    """The characters that are tokens; all other characters share one token."""
    test_path: str = ""
    """A public file or folder of the same form: the test set."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True

    @property
    def squared_norm(self) -> None:
        """None, since examples are tokens."""
        return None

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("text: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(Path(self.path), "data.path")

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(Path(self.test_path), "data.test_path") if self.test_path else None

    def _load(self, path: Path, key: str) -> Examples:
        speakers = speeches(path, key)
        characters = Characters(self.vocabulary)
        names = sorted(speakers)
        parts = [characters.windows("\n".join(speakers[name]), self.window) for name in names]
        x, y = stacked_windows(parts)
        sizes = [len(part[0]) for part in parts]
        return Examples(
            x,
            y,
            characters.count,
            owners=np.repeat(np.arange(len(names)), sizes),
            clients=tuple(names),
            meaning=characters.meaning,
        )


def decoded(file: Path, key: str) -> str:
    """Returns the text in `file`, without a byte order mark.

    Raises `Refused` if it is not UTF-8, and `OSError` if the file cannot be read. `key` is the key
    of the run file that names it.
    """
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Refused(
            f"{key}: {file}, line {line} is not UTF-8 text; save the file as UTF-8",
            private=str(error),
        ) from None


def speeches(path: Path, key: str = "data.path") -> dict[str, list[str]]:
    """Returns the speeches of each speaker of the plays at `path`, in order.

    Args:
      path: a text file, or a folder of .txt files.
      key: key of the run file that names `path`, for messages.

    Raises:
      Refused: if there is no such file, it contains no speech, or it is not UTF-8.
    """
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    by_speaker: dict[str, list[str]] = {}
    for file in files:
        try:
            text = decoded(file, key).replace("\r\n", "\n").replace("\r", "\n")
        except FileNotFoundError:
            raise Refused(
                f"{key}: {file} does not exist; expected a text file or a folder"
            ) from None
        _, *pieces = _SPEECH.split(text)
        for speaker, speech in zip(pieces[::2], pieces[1::2], strict=True):
            by_speaker.setdefault(speaker.strip(), []).append(speech.strip())
    if not by_speaker:
        raise Refused(
            f"{key}: {path} holds no speech; expected blocks that begin with a line 'SPEAKER:' "
            "(the first line, or after an empty line), followed by the spoken lines"
        )
    return by_speaker
