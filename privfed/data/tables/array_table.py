"""Clients' arrays that were passed in Python, as one table: an array of features, labels, owners.

A client is a name, and holds a pair (x, y) of arrays or a `torch.utils.data.Dataset` of such pairs.
Messages refer to a client by its index, never by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.core.errors import Refused, public_text
from privfed.data.tables.columns import Called, Columns
from privfed.data.tables.conversion import as_coded_words
from privfed.data.tables.delimited import Dialect

X, Y, CLIENT = "x", "y", "client"
"""The columns of the table."""


@dataclass(frozen=True)
class ArrayTable:
    """Features x `[N, *shape]`, labels y `[N]` or `[N, k]`, and optional client names `[N]`.

    Messages call the table `called`.
    """

    x: np.ndarray
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
        columns = {X: self.x, Y: self.y, CLIENT: self.client}
        return [name for name, column in columns.items() if column is not None]

    def read(self, numbers: Called, words: Called) -> Columns:
        arrays = {X: self.x, Y: self.y, CLIENT: self.client}
        return Columns(
            len(self.x),
            {name: numeric(arrays[name], name, self.called) for name in numbers},
            {name: as_coded_words(np.asarray(arrays[name])) for name in words},
        )

    def hint(self, names: Sequence[str]) -> str:
        return ""


def of_clients(clients: Mapping[Any, Any], shape: Sequence[int], called: str) -> ArrayTable:
    """The table of all arrays of `clients`, by name. Raises `Refused`."""
    pairs, names = [], []
    for place, (name, held) in enumerate(clients.items(), start=1):
        x, y = _pair(held, shape, f"{called}, client {place}")
        pairs.append((x, y))
        names += [str(name)] * len(x)
    if len({str(name) for name in clients}) < len(clients):
        raise Refused(
            f"data: {called}: two clients have the same name when written as text; give clients "
            "different names"
        )
    if not names:
        raise Refused(
            f"data: {called} holds no example; give every client at least one, or leave the "
            "client out"
        )
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return ArrayTable(x, y, np.array(names), called)


def of_pair(held: Any, shape: Sequence[int], called: str) -> ArrayTable:
    """The table of examples without owners. Raises `Refused`."""
    x, y = _pair(held, shape, called)
    return ArrayTable(x, y, None, called)


def of_inputs(held: Any, shape: Sequence[int], called: str) -> ArrayTable:
    """The table of features only. Raises `Refused`."""
    x = _array(held, called)
    _refuse_other_shape(x, shape, called)
    return ArrayTable(x, None, None, called)


def _pair(held: Any, shape: Sequence[int], called: str) -> tuple[np.ndarray, np.ndarray]:
    """The arrays (x, y) of a client. Raises `Refused` for any other object."""
    x, y = (_array(each, called) for each in (held if _is_pair(held) else _gathered(held, called)))
    if not x.size and not y.size:
        return np.zeros((0, *shape), np.float32), np.zeros(0, np.int64)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise Refused(
            f"data: {called} has another number of labels than of examples; give every example "
            "one label",
            private=f"x is of shape {x.shape} and y of shape {y.shape}",
        )
    if y.ndim != 1:
        raise Refused(
            f"data: {called} has labels of several numbers each; expected one number per example"
        )
    _refuse_other_shape(x, shape, called)
    return x, y


def _is_pair(held: Any) -> bool:
    """Whether `held` is a pair (x, y), and not a list of such pairs, one per example."""
    return isinstance(held, tuple) and len(held) == 2


def is_dataset(held: Any) -> bool:
    """Whether `held` is indexed and contains pairs (x, y), and is not an array itself."""
    indexed = hasattr(held, "__getitem__") and hasattr(held, "__len__")
    return indexed and not hasattr(held, "shape") and not isinstance(held, list)


def _refuse_other_shape(x: np.ndarray, shape: Sequence[int], called: str) -> None:
    if x.shape[1:] != tuple(shape):
        raise Refused(
            f"data: {called} has examples of another shape; expected {tuple(shape)}, as declared",
            private=f"they are of shape {x.shape[1:]}",
        )


def _gathered(dataset: Any, called: str) -> tuple[Any, Any]:
    """The pairs of a `torch.utils.data.Dataset`, stacked."""
    try:
        examples = [dataset[place] for place in range(len(dataset))]
        pairs = [(np.asarray(x), np.asarray(y)) for x, y in examples]
        x, y = zip(*pairs, strict=True) if pairs else ((), ())
        return np.stack(x) if x else np.zeros(0), np.stack(y) if y else np.zeros(0)
    except Exception as error:  # an arbitrary object, whose error may quote its contents
        raise Refused(
            f"data: {called} holds a {type(dataset).__name__}; expected a pair (x, y) of arrays, "
            f"or a dataset of such pairs with a length: {public_text(error)}",
            private=" ".join(str(error).split()),
        ) from None


def _array(held: Any, called: str) -> np.ndarray:
    """`held` as an array: of NumPy, of torch, or nested lists."""
    try:
        detached = held.detach().cpu() if hasattr(held, "detach") else held
        return np.asarray(detached)
    except Exception as error:  # likewise
        raise Refused(
            f"data: {called} holds an object that is no array ({public_text(error)}); pass NumPy "
            "arrays or torch tensors",
            private=" ".join(str(error).split()),
        ) from None


def numeric(array: np.ndarray | None, name: str, called: str) -> np.ndarray:
    """`array`, if it is numeric. Raises `Refused` for another type."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "buif" or numbers.dtype.itemsize > 8:
        or_labels = (
            "declare words by labels=[…] instead of classes, or pass integers from 0"
            if name == Y
            else "expected some"
        )
        raise Refused(
            f"data: {called}: {name} holds no numbers; {or_labels}",
            private=f"it is of type {numbers.dtype.name}",
        )
    return numbers
