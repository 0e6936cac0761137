"""What the label of a public sample is: classes by name or number, or a number to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.data.declaring.columns import MOST_CATEGORIES
from privfed.data.declaring.ranges import rounded_range
from privfed.data.tables.words import Words
from privfed.errors import Refused

_MOST_CLASSES = 1000


@dataclass(frozen=True)
class LabelKind:
    """What a label is: the keys that declare it, the loss that suits it, and why."""

    declared: dict[str, Any]
    loss: str
    why: str


def label_kind(column: np.ndarray | Words | str, where: str) -> LabelKind:
    """What the label is; messages say `where` it stands.

    Words are classes, and so are whole numbers from 0 below 20; other numbers are to be predicted.
    Raises `Refused` for a label that is none of these, or not known in every row.
    """
    if isinstance(column, str) or (isinstance(column, np.ndarray) and column.ndim > 1):
        raise Refused(f"{where}: the label is neither one number nor one word per row")
    if isinstance(column, Words):
        return _classes_by_name(column, where)
    numbers = column.astype(np.float64)
    _refuse_empty(np.isnan(numbers), where)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        raise Refused(f"{where}: the label holds no finite number")
    integral = len(finite) == len(numbers) and (numbers == np.floor(numbers)).all()
    if integral and numbers.min() >= 0 and numbers.max() < MOST_CATEGORIES:
        classes = max(int(numbers.max()) + 1, 2)
        return LabelKind(
            {"classes": classes},
            _classification_loss(classes),
            f"whole numbers, 0 to {classes - 1}",
        )
    low, high = rounded_range(finite)
    why = f"numbers from {finite.min():g} to {finite.max():g}, to predict; beyond these, clipped"
    return LabelKind({"label_bounds": [low, high]}, "squared_error", why)


def _classes_by_name(words: Words, where: str) -> LabelKind:
    _refuse_empty(words.codes < 0, where)
    values = sorted(words.values)
    if len(values) < 2:
        raise Refused(f"{where}: the label is the same in every row, which leaves nothing to learn")
    if len(values) > _MOST_CLASSES or len(values) == len(words.codes) > MOST_CATEGORIES:
        raise Refused(
            f"{where}: the label has {len(values)} different words in {len(words.codes)} rows; "
            "expected classes, or numbers alone"
        )
    return LabelKind(
        {"labels": values}, _classification_loss(len(values)), f"{len(values)} classes by name"
    )


def _refuse_empty(empty: np.ndarray, where: str) -> None:
    if empty.any():
        raise Refused(
            f"{where}, row {int(empty.argmax()) + 1}: the label is empty; leave out rows whose "
            f"label is not known ({int(empty.sum())} of {len(empty)})"
        )


def _classification_loss(classes: int) -> str:
    return "binary_cross_entropy" if classes == 2 else "cross_entropy"
