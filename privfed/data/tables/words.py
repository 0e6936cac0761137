"""A column of text: each row's word, by its place among the different ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from privfed.vector import Indices


@dataclass(frozen=True)
class Words:
    """A column of text: `values[codes[i]]` in row i; code -1 where there is nothing."""

    codes: Indices
    values: list[str]

    def first(self, wrong: np.ndarray) -> int:
        """The first row, from 1, where `wrong` `[N]` holds."""
        return int(np.flatnonzero(wrong)[0]) + 1

    def at(self, row: int) -> str:
        """What stands in `row`, from 1, as a message says it."""
        code = self.codes[row - 1]
        return "empty" if code < 0 else repr(self.values[code])

    def without(self, empty: Collection[str]) -> Words:
        """With nothing where one of `empty` stands."""
        gone = [code for code, value in enumerate(self.values) if value in empty]
        return replace(self, codes=np.where(np.isin(self.codes, gone), -1, self.codes))
