"""Tables to predict, whose labels may be missing: the columns or their cells, but all or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privfed.data.tables.columns import Columns
from privfed.data.tables.words import Words
from privfed.errors import Refused


def present_labels(labels: Sequence[str], names: Sequence[str], called: str) -> list[str]:
    """The columns `labels`, or none where `names` has none of them.

    Raises `Refused` where it has some of them only.
    """
    present = [label for label in labels if label in names]
    if 0 < len(present) < len(labels):
        raise Refused(
            f"data.label: {called} has {len(present)} of the {len(labels)} label columns; expected "
            "all of them, or none"
        )
    return present


def has_labels(table: Columns, labels: Sequence[str], called: str) -> bool:
    """Whether the columns `labels` are filled. Raises `Refused` where some rows alone are empty."""
    empty = np.stack([_empty(table, label) for label in labels], 1)
    if empty.all():
        return False
    if empty.any():
        row = int(empty.any(1).argmax()) + 1
        raise Refused(
            f"data: {called}, row {row}: its label is empty, and others are not; give every row "
            "its label, or leave the labels out"
        )
    return True


def _empty(table: Columns, label: str) -> np.ndarray:
    """Which rows `[N]` have nothing in the column `label`."""
    if label in table.words:
        return table.words[label].codes < 0
    numbers = table.numbers[label]
    empty: np.ndarray = np.isnan(numbers.reshape(len(numbers), -1)).all(1)
    return empty


def with_placeholder_labels(
    table: Columns, words: dict[str, str], numbers: dict[str, float]
) -> Columns:
    """`table` with one and the same label in every row, by column from `words` or `numbers`."""
    codes = np.zeros(table.rows, dtype=np.int64)
    return replace(
        table,
        words={**table.words, **{name: Words(codes, [word]) for name, word in words.items()}},
        numbers={
            **table.numbers,
            **{name: np.full(table.rows, number) for name, number in numbers.items()},
        },
    )
