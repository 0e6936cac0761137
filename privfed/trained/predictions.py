"""Predictions as a table: a row per example, in the order of the data; as CSV, Parquet or npz."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.durable import write_atomically
from privfed.data.federation import Examples, Meaning
from privfed.errors import Refused
from privfed.models.network import Network

Predictions = Mapping[str, np.ndarray]
"""Columns `[N]` of numbers or text, by name."""


def predictions(net: Network, params: Tensor, examples: Examples, client: str = "") -> Predictions:
    """The number of each row from 1, whose it is, its label, and what the loss predicts.

    `client` names the column of clients; it is there where the examples say whose they are, and the
    label where they are labelled.
    """
    meaning = examples.meaning
    pieces = [net.loss.predict(outputs, meaning) for outputs, _ in net.scored(params, examples)]
    predicted = {
        name: _cells(torch.cat([piece[name] for piece in pieces]), meaning) for name in pieces[0]
    }
    table: dict[str, np.ndarray] = {"row": np.arange(1, len(examples) + 1)}
    if client and examples.owners is not None:
        taken = {*table, *predicted, "label", "file"}  # the last is NumPy's own
        name = "client" if client in taken else client
        table[name] = np.array(examples.clients)[examples.owners]
    if examples.labelled:
        table["label"] = _cells(_labels(examples.y, meaning), meaning)
    return {**table, **predicted}


def refuse_unwritable(path: Path, option: str, data: Collection[str]) -> None:
    """Raises `Refused` where no table can be written at `path`, or one of `data` lies there."""
    if path.suffix.lower() not in _WRITERS:
        raise Refused(f"{option} {path}: expected a name that ends in {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise Refused(f"{option} {path}: the folder {path.parent} is missing")
    if path.resolve() in {Path(each).resolve() for each in data if each}:
        raise Refused(f"{option} {path} is the data themselves; nothing was changed. Name another")


def write_predictions(path: Path, table: Predictions) -> None:
    """Write `table` as the suffix of `path` says, whole or not at all."""
    write_atomically(path, _WRITERS[path.suffix.lower()](table))


def as_csv(table: Predictions) -> bytes:
    """`table` as CSV, with numbers to as many digits as they have."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.astype(str).tolist() for column in table.values()), strict=True))
    return buffer.getvalue().encode()


def _as_parquet(table: Predictions) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(table)), buffer)
    return buffer.getvalue()


def _as_npz(table: Predictions) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(table)
    np.savez(buffer, **arrays)
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[Predictions], bytes]] = {
    ".csv": as_csv,
    ".parquet": _as_parquet,
    ".npz": _as_npz,
}


def _labels(y: Tensor, meaning: Meaning) -> Tensor:
    """The labels y as losses predict them: classes, sets of labels, or numbers in their units."""
    if y.dtype == torch.int64:
        return y
    if y.shape[1] > 1:
        return y.bool()
    numbers = (y[:, 0].double() * meaning.scale + meaning.shift).tolist()
    return torch.tensor([float(f"{number:.6g}") for number in numbers])  # y is single precision


def _cells(column: Tensor, meaning: Meaning) -> np.ndarray:
    """A column `[N]` of the table: classes and sets of labels by name, numbers as they are.

    Several numbers or labels of one row stand as text.
    """
    values: np.ndarray = column.cpu().numpy()
    if column.dtype == torch.bool:
        return np.array([_set(row, meaning.names) for row in values.tolist()], dtype=str)
    if column.dim() > 1:
        as_text = _sequence if column.dtype == torch.int64 else _numbers
        return np.array([as_text(row, meaning.names) for row in values.tolist()], dtype=str)
    if column.dtype == torch.int64 and meaning.names:
        values = np.array(meaning.names)[values]
    return values


def _set(row: Sequence[bool], names: Sequence[str]) -> str:
    """The names of the labels that a row has."""
    names = names or [str(n) for n in range(len(row))]
    return " ".join(name for name, held in zip(names, row, strict=True) if held)


def _sequence(row: Sequence[int], names: Sequence[str]) -> str:
    """The labels of a row, one after the other, of the positions that have one."""
    return "".join(names[label] if names else str(label) for label in row if label != -1)


def _numbers(row: Sequence[Any], names: Sequence[str]) -> str:
    return " ".join(f"{value:.3g}" for value in np.array(row).ravel())
