"""Joins clients' arrays that were passed in Python to one table: inputs by name, labels, owners.

Each client has a name, and a pair (x, y) of arrays or a `torch.utils.data.Dataset` of such pairs.
Messages refer to a client by its index, from 1, never by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privfed.core.deferred import torch
from privfed.core.errors import Refused, public_text
from privfed.data.federation import NO_LABEL, Meaning
from privfed.data.inputs import Inputs, X
from privfed.data.tables.cells import CellRules
from privfed.data.tables.columns import Called, Columns
from privfed.data.tables.conversion import as_coded_words
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.features import EncodedLabels, LabelDeclaration

Y, CLIENT = "y", "client"
"""The columns of the table in addition to its inputs."""


@dataclass(frozen=True)
class ArrayTable:
    """Inputs by name `[N, *shape]`, labels y `[N, *]` and client names `[N]`, if any (else None).

    Messages call the table `called`.
    """

    inputs: Mapping[str, np.ndarray]
    y: np.ndarray | None
    client: np.ndarray | None
    called: str

    def __str__(self) -> str:
        return self.called

    @property
    def dialect(self) -> Dialect:
        return Dialect()

    @property
    def naming(self) -> str:
        return "it"

    def names(self) -> list[str]:
        columns = {Y: self.y, CLIENT: self.client}
        return [*self.inputs, *(name for name, column in columns.items() if column is not None)]

    def read(self, numbers: Called, words: Called) -> Columns:
        arrays = {**self.inputs, Y: self.y, CLIENT: self.client}
        return Columns(
            len(next(iter(self.inputs.values()))),
            {name: numeric(arrays[name], name, self.called) for name in numbers},
            {name: as_coded_words(np.asarray(arrays[name])) for name in words},
        )

    def hint(self, names: Sequence[str]) -> str:
        return ""


@dataclass(frozen=True)
class ArrayShapes:
    """The declared shapes of one example: of each input, and of its label if it is `labelled`."""

    inputs: Mapping[str, Sequence[int]]
    label: Sequence[int] = ()
    labelled: bool = True

    @classmethod
    def of(
        cls, shape: Sequence[int], inputs: Inputs, label: Sequence[int], labelled: bool
    ) -> ArrayShapes:
        """Returns the shapes of one array of `shape`, or of declared `inputs`, and of `label`."""
        return cls({n: each.shape for n, each in inputs.items()} or {X: shape}, label, labelled)


def of_clients(clients: Mapping[Any, Any], shapes: ArrayShapes, called: str) -> ArrayTable:
    """Joins the arrays of all clients to one table.

    Args:
      clients: name of each client -> a pair (x, y) of arrays, or a dataset (`is_dataset`).
      shapes: the declared shapes.
      called: name of the data in messages.

    Raises:
      Refused: if arrays are not as declared, two names are equal as text, or there is no example.
    """
    pairs, names = [], []
    for place, (name, passed) in enumerate(clients.items(), start=1):
        x, y = _examples(passed, shapes, f"{called}, client {place}")
        pairs.append((x, y))
        names += [str(name)] * len(y)
    if len({str(name) for name in clients}) < len(clients):
        raise Refused(
            f"data: {called}: two clients have the same name when written as text; give clients "
            "different names"
        )
    if not names:
        raise Refused(
            f"data: no client has an example in {called}; give every client at least one, or leave "
            "the client out"
        )
    inputs = {name: np.concatenate([x[name] for x, _ in pairs]) for name in shapes.inputs}
    labels = np.concatenate([y for _, y in pairs]) if shapes.labelled else None
    return ArrayTable(inputs, labels, np.array(names), called)


def of_pair(passed: Any, shapes: ArrayShapes, called: str) -> ArrayTable:
    """Returns the table of a pair (x, y) of arrays or a dataset of pairs, without owners.

    Raises `Refused` if arrays are not as declared.
    """
    x, y = _examples(passed, shapes, called)
    return ArrayTable(x, y if shapes.labelled else None, None, called)


def of_inputs(passed: Any, shapes: ArrayShapes, called: str) -> ArrayTable:
    """Returns the table of inputs (an array, or arrays by name) without labels or owners.

    Raises `Refused` if they are not as declared.
    """
    return ArrayTable(_inputs(passed, shapes, called), None, None, called)


def _examples(
    passed: Any, shapes: ArrayShapes, called: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the inputs and labels of a client; labels are zeros if `shapes` states none.

    Raises `Refused` if they are not as declared.
    """
    if not shapes.labelled:
        x = _inputs(passed, shapes, called)
        return x, np.zeros(len(next(iter(x.values()))))
    pair = passed if _is_pair(passed) else _gathered(passed, called)
    y = _array(pair[1], called)
    if not y.size and not isinstance(pair[0], Mapping) and not _array(pair[0], called).size:
        empty = {name: np.zeros((0, *shape), np.int64) for name, shape in shapes.inputs.items()}
        return empty, np.zeros((0, *shapes.label), np.int64)
    x = _inputs(pair[0], shapes, called)
    if y.ndim == 0 or {len(each) for each in x.values()} != {len(y)}:
        raise Refused(
            f"data: {called} has another number of labels than of examples; give every example "
            "one label",
            private=f"x is of shape {[each.shape for each in x.values()]} and y of {y.shape}",
        )
    if y.shape[1:] != tuple(shapes.label):
        expected = (
            f"an array of shape {tuple(shapes.label)} (label_shape)"
            if shapes.label
            else "one label"
        )
        raise Refused(
            f"data: {called} has labels of another shape; expected {expected} per example; for one "
            "label per position, declare label_shape",
            private=f"they are of shape {y.shape[1:]}",
        )
    return x, y


def _inputs(passed: Any, shapes: ArrayShapes, called: str) -> dict[str, np.ndarray]:
    """Returns the arrays of declared inputs by name.

    Raises `Refused` if names or shapes are not as declared, or lengths differ.
    """
    if [*shapes.inputs] == [X] and not isinstance(passed, Mapping):
        arrays = {X: _array(passed, called)}
    elif not isinstance(passed, Mapping) or passed.keys() != shapes.inputs.keys():
        raise Refused(
            f"data: {called} does not hold an array for each declared input; expected a mapping "
            f"with exactly {', '.join(map(repr, shapes.inputs))}",
            private=f"it is a {type(passed).__name__}",
        )
    else:
        arrays = {name: _array(passed[name], called) for name in shapes.inputs}
    for name, shape in shapes.inputs.items():
        _refuse_other_shape(arrays[name], shape, called)
    if len({len(array) for array in arrays.values()}) > 1:
        raise Refused(
            f"data: {called} has inputs with different numbers of rows; expected one row per "
            "example in each input"
        )
    return arrays


def _is_pair(passed: Any) -> bool:
    """Whether `passed` is a pair (x, y), which is a tuple; a list has one pair per example."""
    return isinstance(passed, tuple) and len(passed) == 2


def is_dataset(passed: Any) -> bool:
    """Whether `passed` may be a dataset of pairs: it has indices and a length, but no `shape`.

    Lists and mappings are not datasets.
    """
    indexed = hasattr(passed, "__getitem__") and hasattr(passed, "__len__")
    return indexed and not hasattr(passed, "shape") and not isinstance(passed, list | Mapping)


def _refuse_other_shape(x: np.ndarray, shape: Sequence[int], called: str) -> None:
    if x.ndim == 0 or x.shape[1:] != tuple(shape):
        raise Refused(
            f"data: {called} has examples of another shape; expected {tuple(shape)}, as declared",
            private=f"they are of shape {x.shape[1:]}",
        )


def _gathered(dataset: Any, called: str) -> tuple[Any, Any]:
    """Returns the stacked x and y of a dataset. Raises `Refused` if it has no pairs (x, y)."""
    try:
        examples = [dataset[place] for place in range(len(dataset))]
        x, y = zip(*examples, strict=True) if examples else ((), ())
        if x and isinstance(x[0], Mapping):
            return {
                name: np.stack([np.asarray(each[name]) for each in x]) for name in x[0]
            }, _stack(y)
        return _stack(x), _stack(y)
    except Exception as error:  # errors of arbitrary objects may quote contents
        raise Refused(
            f"data: {called} holds a {type(dataset).__name__}; expected a pair (x, y) of arrays, "
            f"or a dataset of such pairs with a length: {public_text(error)}",
            private=" ".join(str(error).split()),
        ) from None


def _stack(each: Sequence[Any]) -> np.ndarray:
    return np.stack([np.asarray(example) for example in each]) if each else np.zeros(0)


def _array(passed: Any, called: str) -> np.ndarray:
    """Returns `passed` as a NumPy array. Raises `Refused` if it cannot be converted."""
    try:
        detached = passed.detach().cpu() if hasattr(passed, "detach") else passed
        return np.asarray(detached)
    except Exception as error:  # its text may quote contents
        raise Refused(
            f"data: {called} holds an object that is not an array ({public_text(error)}); pass "
            "NumPy arrays or torch tensors",
            private=" ".join(str(error).split()),
        ) from None


def numeric(array: np.ndarray | None, name: str, called: str) -> np.ndarray:
    """Returns `array` as a NumPy array. Raises `Refused` if it is None or not numeric.

    Messages call it `name`, an array of the table `called`.
    """
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "buif" or numbers.dtype.itemsize > 8:
        or_labels = (
            "declare words by labels=[…] instead of classes, or pass integers from 0"
            if name == Y
            else "pass an array of numbers"
        )
        raise Refused(
            f"data: {called}: {name} holds no numbers; {or_labels}",
            private=f"it is of type {numbers.dtype.name}",
        )
    return numbers


@dataclass(frozen=True)
class PositionLabels(LabelDeclaration):
    """Labels of each position of an example: integers `[N, *shape]` below `classes`.

    If `next_token` names an input, the label of a position is the token after it in that input, or
    none if there is none, or it is `padding` or masked. Otherwise labels that equal `ignored`
    count as none.
    """

    shape: tuple[int, ...] = ()
    ignored: int = NO_LABEL
    inputs: Inputs = field(default_factory=dict, hash=False)
    next_token: str = ""
    padding: int = -1

    def encoded(self, table: Columns, rules: CellRules) -> EncodedLabels:
        """Returns the labels of `table`. Raises `Refused` if one is not a class."""
        if self.next_token:
            y = self._following(table, rules)
        else:
            numbers = table.numbers[self.columns[0]]
            y = np.where(numbers == self.ignored, NO_LABEL, numbers)
            rows = np.where(y == NO_LABEL, 0, y).reshape(len(y), -1)
            for position in range(rows.shape[1]):
                rules.numbered_classes(rows[:, position], repr(self.columns[0]), self.classes)
        return EncodedLabels(torch.from_numpy(y.astype(np.int64)), self.classes, Meaning())

    def _following(self, table: Columns, rules: CellRules) -> np.ndarray:
        """Returns the token after each position; `NO_LABEL` if there is none, or it is padding.

        A token is padding if it equals `padding`, or a mask of the same shape is 0 there.
        """
        tokens = self.inputs[self.next_token]
        ids, _ = tokens.encoded(table.numbers[self.next_token], repr(self.next_token), False)
        y = np.full(ids.shape, NO_LABEL, dtype=np.int64)
        y[:, :-1] = ids[:, 1:]
        if self.padding >= 0:
            y[y == self.padding] = NO_LABEL
        for name, each in self.inputs.items():
            if each.mask and each.shape == tokens.shape:
                y[:, :-1][table.numbers[name][:, 1:] == 0] = NO_LABEL
        return y

    def with_placeholders(self, table: Columns) -> Columns:
        """Returns `table` with label 0 at each position."""
        zeros = {name: np.zeros((table.rows, *self.shape)) for name in self.columns}
        return replace(table, numbers={**table.numbers, **zeros})
