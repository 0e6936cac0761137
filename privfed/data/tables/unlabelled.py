"""Labels that a table may lack: the columns, or what stands in them; but all of them, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from privfed.data.tables.columns import Columns
from privfed.data.tables.words import Words
from privfed.errors import Refused


def labels_there(labels: Sequence[str], names: Sequence[str], path: Path) -> list[str]:
    """The columns `labels`, where `names` has them; none, where it has none. Raises `Refused`."""
    there = [label for label in labels if label in names]
    if 0 < len(there) < len(labels):
        raise Refused(
            f"data.label: {path} has {len(there)} of the {len(labels)} label columns; expected "
            "all of them, or none"
        )
    return there


def labels_known(table: Columns, labels: Sequence[str], path: Path) -> bool:
    """Whether the columns `labels` hold anything. Raises `Refused` where some cells are empty."""
    empty = np.stack([_empty(table, label) for label in labels], 1)
    if empty.all():
        return False
    if empty.any():
        row = int(empty.any(1).argmax()) + 1
        raise Refused(
            f"data: {path}, row {row}: its label is empty, and others are not; give every row its "
            "label, or leave the labels out"
        )
    return True


def _empty(table: Columns, label: str) -> np.ndarray:
    """Which rows `[N]` have nothing in the column `label`."""
    if label in table.words:
        return table.words[label].codes < 0
    numbers = table.numbers[label]
    empty: np.ndarray = np.isnan(numbers.reshape(len(numbers), -1)).all(1)
    return empty


def with_any_labels(table: Columns, words: dict[str, str], numbers: dict[str, float]) -> Columns:
    """`table`, with the same label in every row: by column, one of `words` or of `numbers`."""
    codes = np.zeros(table.rows, dtype=np.int64)
    return replace(
        table,
        words={**table.words, **{name: Words(codes, [word]) for name, word in words.items()}},
        numbers={
            **table.numbers,
            **{name: np.full(table.rows, number) for name, number in numbers.items()},
        },
    )
