"""A column of text, each row's word by its place among the different words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from privfed.vector import Indices


@dataclass(frozen=True)
class Words:
    """A column of text: row i holds `values[codes[i]]`, or nothing where the code is -1."""

    codes: Indices
    values: list[str]

    def first_row(self, wrong: np.ndarray) -> int:
        """The first row, counted from 1, where `wrong` `[N]` holds."""
        return int(np.flatnonzero(wrong)[0]) + 1

    def shown(self, row: int) -> str:
        """What stands in `row`, counted from 1, as a message shows it."""
        code = self.codes[row - 1]
        return "empty" if code < 0 else repr(self.values[code])

    def without(self, empty: Collection[str]) -> Words:
        """The same column, with nothing where one of the words `empty` stands."""
        empty_codes = [code for code, value in enumerate(self.values) if value in empty]
        return replace(self, codes=np.where(np.isin(self.codes, empty_codes), -1, self.codes))
