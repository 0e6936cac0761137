"""Cells of a table as numbers: bounded, declared, whose they are; or refused by row and column.

Columns are `called` as messages may call them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from privfed.data.tables.delimited import MISSING
from privfed.data.tables.words import Words
from privfed.errors import Refused
from privfed.vector import Indices


@dataclass(frozen=True)
class Rules:
    """What becomes of a cell of the file at `path` that is empty, or not as declared.

    Declared words are what they are, also where they are among those that say `nothing`.
    """

    path: Path
    outside: Literal["clip", "refuse"]
    nothing: Collection[str]
    """The words that say nothing."""

    def beyond(
        self,
        array: np.ndarray,
        called: str,
        bounds: tuple[float, float],
        shown: str,
        may_be_empty: bool = False,
    ) -> int:
        """How many numbers lie outside; read in pieces: a mapped array stays in its file."""
        (low, high), outside = bounds, 0
        step = max(1, 2**22 // max(int(np.prod(array.shape[1:])), 1))
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            piece = piece.reshape(len(piece), -1)
            empty = np.isnan(piece).any(1)
            if empty.any() and not may_be_empty:
                raise Refused(
                    f"data: {self.path}, row {start + int(empty.argmax()) + 1}: column {called} is "
                    "empty; say what to take instead, a public constant: in [data.missing] for "
                    "this column, or one number for all by data.missing"
                )
            wrong = (piece < low) | (piece > high)
            if wrong.any() and self.outside == "refuse":
                row, column = np.argwhere(wrong)[0]
                raise Refused(
                    f"data: {self.path}, row {start + row + 1}: column {called} is "
                    f"outside its declared bounds {shown}; correct them, or set "
                    'data.outside = "clip"',
                    private=f"it is {piece[row, column]:g}",
                )
            outside += int(wrong.sum())
        return outside

    def category(
        self, words: Words, called: str, values: Sequence[object], may_be_empty: bool
    ) -> tuple[Indices, int]:
        """Which of `values` each row holds `[N]` (-1: none), and how many hold another."""
        place = {as_text(value): n for n, value in enumerate(values)}
        words = words.without({*self.nothing} - place.keys())
        codes = recoded(words, place)
        empty = words.codes < 0
        if empty.any() and not may_be_empty:
            raise Refused(
                f"data: {self.path}, row {words.first(empty)}: column {called} is empty; set it to "
                '"none" in [data.missing], and an empty cell counts as none of its values'
            )
        unknown = (codes < 0) & ~empty
        if unknown.any() and self.outside == "refuse":
            row = words.first(unknown)
            raise Refused(
                f"data: {self.path}, row {row}: column {called} holds another value; expected one "
                f'of {", ".join(place)}, or set data.outside = "clip"',
                private=f"it is {words.at(row)}",
            )
        return codes, int(unknown.sum())

    def named_class(self, words: Words, called: str, labels: Sequence[str]) -> Indices:
        """The place of each row's label in `labels` `[N]`."""
        words = words.without({*self.nothing} - {*labels})
        codes = recoded(words, {label: n for n, label in enumerate(labels)})
        if (codes < 0).any():
            row = words.first(codes < 0)
            raise Refused(
                f"data: {self.path}, row {row}: the label {called} {_state(words, row)}; expected "
                f"one of {', '.join(labels)} (data.labels)",
                private=f"it is {words.at(row)}" if words.codes[row - 1] >= 0 else "",
            )
        return codes

    def one_number(self, numbers: np.ndarray, called: str) -> np.ndarray:
        """A label that is a number `[N]`, and there in every row."""
        if numbers.ndim != 1:
            raise Refused(
                f"data: {self.path}: the label {called} has shape {numbers.shape}; expected one "
                "number per example"
            )
        empty = np.isnan(numbers)
        if empty.any():
            row = int(empty.argmax()) + 1
            raise Refused(f"data: {self.path}, row {row}: the label {called} is empty")
        return numbers

    def whole_class(self, numbers: np.ndarray, called: str, classes: int) -> Indices:
        """Labels that are whole numbers below `classes` `[N]`."""
        with np.errstate(invalid="ignore"):
            right = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < classes)
        if not right.all():
            row = int((~right).argmax())
            raise Refused(
                f"data: {self.path}, row {row + 1}: the label {called} is no class; expected a "
                f"whole number from 0 to {classes - 1} (data.classes)",
                private=f"it is {numbers[row]:g}",
            )
        return numbers.astype(np.int64)

    def zero_or_one(self, numbers: np.ndarray, called: str) -> np.ndarray:
        """A column of one label of several `[N]`."""
        wrong = ~((numbers == 0) | (numbers == 1))
        if wrong.any():
            row = int(wrong.argmax())
            raise Refused(
                f"data: {self.path}, row {row + 1}: the label {called} is neither 0 nor 1; "
                "correct it",
                private=f"it is {numbers[row]:g}",
            )
        return numbers

    def owners(self, words: Words, called: str) -> tuple[Indices, tuple[str, ...]]:
        """Whose each row is `[N]`, and what the clients are called."""
        empty = words.codes < 0
        if empty.any():
            raise Refused(
                f"data: {self.path}, row {words.first(empty)}: the client column {called} is "
                "empty; every row has to belong to somebody, or the unit of privacy would be "
                "undefined"
            )
        for code, value in enumerate(words.values):
            if value in (*MISSING, *self.nothing) or value != value.strip():
                row = words.first(words.codes == code)
                raise Refused(
                    f"data: {self.path}, row {row}: the client column {called} holds what "
                    "reads as nothing, or as another client but for its blanks: one person's rows "
                    "may not be two clients'. Give every client one name",
                    private=f"it holds {value!r}",
                )
        used, owners = np.unique(words.codes, return_inverse=True)
        return owners.astype(np.int64), tuple(words.values[code] for code in used)


def _state(words: Words, row: int) -> str:
    return "is empty" if words.codes[row - 1] < 0 else "is none of the classes"


def recoded(words: Words, place: dict[str, int]) -> Indices:
    """Row by row, where the value stands in `place`; -1 for others and for nothing."""
    table = np.array([*(place.get(value, -1) for value in words.values), -1], dtype=np.int64)
    codes: Indices = table[words.codes]
    return codes


def as_text(value: object) -> str:
    """As a file writes it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def native(array: np.ndarray) -> np.ndarray:
    """In this machine's byte order."""
    order = array.dtype.newbyteorder("=")
    return array if array.dtype == order else array.astype(order)
