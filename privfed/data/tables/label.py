"""The label of a table: what is declared of it, and its columns as the y of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from privfed.data.federation import Meaning
from privfed.data.tables.cells import CellRules, Words
from privfed.data.tables.columns import Columns
from privfed.data.tables.features import scaled
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


@dataclass(frozen=True)
class EncodedLabels:
    """Labels `y` `[N, *]`, their number of classes (or width), and what they mean.

    `clipped` says how many numbers to predict lay outside their bounds.
    """

    y: torch.Tensor
    classes: int
    meaning: Meaning
    clipped: int = 0


@dataclass(frozen=True)
class LabelDeclaration:
    """What a configuration declares of the label.

    A `single` column has exactly one of `values` (the classes by name), `classes` (whole numbers
    from 0) and `bounds` (of a number to predict). Several columns hold 0 or 1 each.
    """

    columns: Sequence[str]
    single: bool
    values: list[str]
    classes: int
    bounds: list[float]

    def refuse_contradictions(self) -> None:
        """Raise `ValueError` where the keys contradict each other, or leave nothing to learn."""
        kinds = (bool(self.values), bool(self.classes), bool(self.bounds))
        if self.single and sum(kinds) != 1:
            raise ValueError(
                "declare what the label is, by exactly one of labels (its values by name), classes "
                "(whole numbers from 0) and label_bounds (a number to predict)"
            )
        if not self.single and (any(kinds) or len(set(self.columns)) < 2):
            raise ValueError("several label columns are 0 or 1 each: two or more, and nothing else")
        if len(self.values) == 1 or self.classes == 1:
            raise ValueError("one class leaves nothing to learn; expected two or more")

    def encoded(self, table: Columns, rules: CellRules) -> EncodedLabels:
        """The labels of `table`. Raises `Refused` for a cell that is not as declared."""
        if not self.single:
            columns = [
                rules.binary_labels(table.numbers[name], repr(name)) for name in self.columns
            ]
            y = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
            return EncodedLabels(y, len(columns), Meaning(tuple(self.columns)))
        (column,) = self.columns
        called = repr(column)
        if self.values:
            codes = rules.named_classes(table.words[column], called, self.values)
            return EncodedLabels(
                torch.from_numpy(codes), len(self.values), Meaning(tuple(self.values))
            )
        numbers = rules.label_numbers(table.numbers[column], called)
        if self.classes:
            classes = rules.numbered_classes(numbers, called, self.classes)
            return EncodedLabels(torch.from_numpy(classes), self.classes, Meaning())
        low, high = self.bounds
        clipped = rules.outside_bounds(numbers, called, (low, high), f"[{low:g}, {high:g}]")
        y = torch.from_numpy(scaled(numbers, low, high).astype(np.float32)).unsqueeze(1)
        return EncodedLabels(y, 1, Meaning(scale=(high - low) / 2, shift=(high + low) / 2), clipped)

    def with_placeholders(self, table: Columns) -> Columns:
        """`table` with labels of the declared form, where there are none."""
        if self.values:
            return with_placeholder_labels(table, dict.fromkeys(self.columns, self.values[0]), {})
        number = self.bounds[0] if self.bounds else 0.0
        return with_placeholder_labels(table, {}, dict.fromkeys(self.columns, number))
