"""Checks cells of a table against their declaration; refusals name row and column.

The argument `called` names a column in messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.tables.delimited import MISSING


@dataclass(frozen=True)
class Words:
    """A column of text: cell i is `values[codes[i]]`, or empty if the code is -1."""

    codes: Indices
    values: list[str]

    def first_row(self, wrong: np.ndarray) -> int:
        """Returns the number of the first row, from 1, where the mask `wrong` `[N]` is true."""
        return int(np.flatnonzero(wrong)[0]) + 1

    def shown(self, row: int) -> str:
        """Returns the cell in `row`, counted from 1, for messages: in quotes, or "empty"."""
        code = self.codes[row - 1]
        return "empty" if code < 0 else repr(self.values[code])

    def without(self, empty: Collection[str]) -> Words:
        """Returns the same column, in which cells with one of the words `empty` are empty."""
        empty_codes = [code for code, value in enumerate(self.values) if value in empty]
        return replace(self, codes=np.where(np.isin(self.codes, empty_codes), -1, self.codes))


@dataclass(frozen=True)
class CellRules:
    """Treatment of cells of a table that are empty, or contradict the declaration.

    `table` is the table's name in messages. `outside` is the treatment of numbers beyond their
    bounds, and of undeclared values. A declared value never counts as empty.
    """

    table: str
    outside: Literal["clip", "refuse"]
    missing_words: Collection[str]
    """Words that count as empty cells, unless they are declared values of their column."""

    def outside_bounds(
        self,
        array: np.ndarray,
        called: str,
        bounds: tuple[float, float],
        shown: str,
        may_be_empty: bool = False,
    ) -> int:
        """Returns the number of values of `array` `[N, *]` outside `bounds`; NaN does not count.

        The array is read in pieces, so a memory-mapped array is never read as a whole.

        Args:
          array: numbers of a column; NaN is an empty cell.
          called: the column's name in messages.
          bounds: declared lower and upper bound.
          shown: the bounds as shown in messages.
          may_be_empty: whether empty cells are allowed.

        Raises:
          Refused: if a cell is empty although `may_be_empty` is false, or a number is outside its
            bounds and `outside` is "refuse".
        """
        (low, high), count = bounds, 0
        step = max(1, 2**22 // max(int(np.prod(array.shape[1:])), 1))
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            piece = piece.reshape(len(piece), -1)
            empty = np.isnan(piece).any(1)
            if empty.any() and not may_be_empty:
                raise Refused(
                    f"data: {self.table}, row {start + int(empty.argmax()) + 1}: column {called} "
                    "is empty; declare a public constant that replaces empty cells: in "
                    "[data.missing] for this column, or in data.missing for all columns"
                )
            wrong = (piece < low) | (piece > high)
            if wrong.any() and self.outside == "refuse":
                row, column = np.argwhere(wrong)[0]
                raise Refused(
                    f"data: {self.table}, row {start + row + 1}: column {called} is outside its "
                    f'declared bounds {shown}; correct the bounds, or set data.outside = "clip"',
                    private=f"it is {piece[row, column]:g}",
                )
            count += int(wrong.sum())
        return count

    def category_codes(
        self, words: Words, called: str, values: Sequence[object], may_be_empty: bool
    ) -> tuple[Indices, int]:
        """Returns the index `[N]` of each row's word in `values`, and a number of rows.

        The index is -1 for an undeclared word or an empty cell. The number counts the rows with an
        undeclared word.

        Raises:
          Refused: if a cell is empty although `may_be_empty` is false, or a word is undeclared and
            `outside` is "refuse".
        """
        place = {as_text(value): n for n, value in enumerate(values)}
        words = words.without({*self.missing_words} - place.keys())
        codes = recoded(words, place)
        empty = words.codes < 0
        if empty.any() and not may_be_empty:
            raise Refused(
                f"data: {self.table}, row {words.first_row(empty)}: column {called} is empty; set "
                'this column to "none" in [data.missing], and empty cells count as no category'
            )
        unknown = (codes < 0) & ~empty
        if unknown.any() and self.outside == "refuse":
            row = words.first_row(unknown)
            raise Refused(
                f"data: {self.table}, row {row}: column {called} holds an undeclared value; "
                f'expected one of {", ".join(place)}, or set data.outside = "clip"',
                private=f"it is {words.shown(row)}",
            )
        return codes, int(unknown.sum())

    def named_classes(self, words: Words, called: str, labels: Sequence[str]) -> Indices:
        """Returns the index `[N]` of each row's label in `labels`.

        Raises `Refused` if a cell is empty or not one of `labels`.
        """
        words = words.without({*self.missing_words} - {*labels})
        codes = recoded(words, {label: n for n, label in enumerate(labels)})
        if (codes < 0).any():
            row = words.first_row(codes < 0)
            raise Refused(
                f"data: {self.table}, row {row}: the label {called} {_problem(words, row)}; "
                f"expected one of {', '.join(labels)} (data.labels)",
                private=f"it is {words.shown(row)}" if words.codes[row - 1] >= 0 else "",
            )
        return codes

    def label_numbers(self, numbers: np.ndarray, called: str) -> np.ndarray:
        """Returns `numbers`, the labels `[N]`. Raises `Refused` for NaN or another shape."""
        if numbers.ndim != 1:
            raise Refused(
                f"data: {self.table}: the label {called} has shape {numbers.shape}; expected one "
                "number per example"
            )
        empty = np.isnan(numbers)
        if empty.any():
            row = int(empty.argmax()) + 1
            raise Refused(
                f"data: {self.table}, row {row}: the label {called} is empty; leave out rows "
                "without a label"
            )
        return numbers

    def numbered_classes(self, numbers: np.ndarray, called: str, classes: int) -> Indices:
        """Returns the labels `[N]` as int64.

        Raises `Refused` unless each is an integer from 0 to `classes` - 1.
        """
        with np.errstate(invalid="ignore"):
            valid = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < classes)
        if not valid.all():
            row = int((~valid).argmax())
            raise Refused(
                f"data: {self.table}, row {row + 1}: the label {called} is not a class; expected "
                f"an integer from 0 to {classes - 1} (data.classes)",
                private=f"it is {numbers[row]:g}",
            )
        return numbers.astype(np.int64)

    def binary_labels(self, numbers: np.ndarray, called: str) -> np.ndarray:
        """Returns a label column `[N]`. Raises `Refused` unless each number is 0 or 1."""
        wrong = ~((numbers == 0) | (numbers == 1))
        if wrong.any():
            row = int(wrong.argmax())
            raise Refused(
                f"data: {self.table}, row {row + 1}: the label {called} is neither 0 nor 1; "
                "correct that label",
                private=f"it is {numbers[row]:g}",
            )
        return numbers

    def owners(self, words: Words, called: str) -> tuple[Indices, tuple[str, ...]]:
        """Returns the owner `[N]` of each row, a number from 0, and the clients' names by number.

        The order is that of `words.values`.

        Raises:
          Refused: if a cell is empty or has a word for empty cells, or a name begins or ends with a
            blank.
        """
        self._refuse_nameless(
            words,
            f"the client column {called}",
            "name a client in every row, since clients are the unit of privacy",
            "the client",
        )
        used, owners = np.unique(words.codes, return_inverse=True)
        return owners.astype(np.int64), tuple(words.values[code] for code in used)

    def sites(self, words: Words, called: str) -> tuple[Indices, tuple[str, ...]]:
        """Returns the site `[N]` of each row, a number from 0, and the names of the sites, sorted.

        Raises:
          Refused: if a cell is empty or has a word for empty cells, or a name begins or ends with a
            blank.
        """
        self._refuse_nameless(
            words,
            f"the site column {called}",
            "name a site in every row",
            "the site",
        )
        used = np.unique(words.codes)
        names = sorted(words.values[code] for code in used)
        return recoded(words, {name: n for n, name in enumerate(names)}), tuple(names)

    def _refuse_nameless(self, words: Words, column: str, empty: str, holder: str) -> None:
        """Raises `Refused` if one of `words` is or counts as empty, or has blanks around it.

        Messages call the column `column`. `empty` is the advice for an empty cell, and `holder` the
        word for a client or site.
        """
        nothing = words.codes < 0
        if nothing.any():
            raise Refused(
                f"data: {self.table}, row {words.first_row(nothing)}: {column} is empty; {empty}"
            )
        for code, value in enumerate(words.values):
            if value in (*MISSING, *self.missing_words) or value != value.strip():
                row = words.first_row(words.codes == code)
                raise Refused(
                    f"data: {self.table}, row {row}: {column} holds a word for an empty cell, or a "
                    f"name with spaces around it; write one name for {holder} in all of its rows",
                    private=f"it holds {value!r}",
                )


def _problem(words: Words, row: int) -> str:
    return "is empty" if words.codes[row - 1] < 0 else "is none of the classes"


def recoded(words: Words, place: dict[str, int]) -> Indices:
    """Returns `place[word]` for each row's word `[N]`; -1 for other words and empty cells."""
    table = np.array([*(place.get(value, -1) for value in words.values), -1], dtype=np.int64)
    codes: Indices = table[words.codes]
    return codes


def as_text(value: object) -> str:
    """Returns `value` as text, as files contain it: "true" and "false" in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def native_order(array: np.ndarray) -> np.ndarray:
    """Returns `array` in this machine's byte order."""
    order = array.dtype.newbyteorder("=")
    return array if array.dtype == order else array.astype(order)
