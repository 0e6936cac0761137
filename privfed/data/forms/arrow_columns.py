"""Converts columns of Arrow tables to arrays, images and texts.

`called` is the column's name in messages; `place` returns the name of a row in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from privfed.core.errors import Refused
from privfed.data.forms.arrays import PlaceOf, refuse_no_numbers
from privfed.data.forms.pictures import picture
from privfed.data.pieces import Pieces

if TYPE_CHECKING:
    import pyarrow


def text_cells(column: pyarrow.ChunkedArray, called: str, place: PlaceOf) -> list[str]:
    """Returns the texts `[N]` of a column.

    Raises `Refused` if the column holds no text, or a cell is empty.
    """
    import pyarrow

    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        raise Refused(
            f"data.text is true, but the column {called} holds no text; set data.text = false, or "
            "name a column of text",
            private=f"it is of type {column.type}",
        )
    _refuse_empty(column, called, place)
    texts: list[str] = column.to_pylist()
    return texts


def refuse_no_words(column: pyarrow.ChunkedArray, called: str) -> None:
    """Raises `Refused` unless cells are texts, numbers or booleans, or all cells are empty."""
    import pyarrow

    types, kind = pyarrow.types, column.type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    allowed = (types.is_string, types.is_large_string, types.is_integer, types.is_floating)
    if not any(fits(kind) for fits in (*allowed, types.is_boolean, types.is_null)):
        raise Refused(
            f"data: the column {called} holds neither text nor numbers; expected names of classes "
            "or of clients",
            private=f"it is of type {column.type}",
        )


def label_cells(column: pyarrow.ChunkedArray) -> np.ndarray | list[object]:
    """Returns the labels `[N]`: an array if all cells are integers, otherwise a list.

    In the list, an empty cell is None.
    """
    import pyarrow

    if pyarrow.types.is_integer(column.type) and not column.null_count:
        numbers: np.ndarray = column.to_numpy()
        return numbers
    labels: list[object] = column.to_pylist()
    return labels


def array_cells(
    column: pyarrow.ChunkedArray, stored: Sequence[tuple[int, ...]], called: str, place: PlaceOf
) -> Pieces:
    """Returns the arrays `[N, *stored]` of a column of nested lists, or of numbers (as `[N, 1]`).

    Only booleans are copied. Raises `Refused` if a cell is empty or no number, or unless all arrays
    have the same shape, one of `stored`.
    """
    pieces: list[np.ndarray] = []
    at = 0
    for chunk in column.chunks:
        if len(chunk):
            pieces.append(_arrays(chunk, stored, called, partial(_place_after, place, at)))
            if pieces[-1].shape[1:] != pieces[0].shape[1:]:
                raise _another_shape(called, place(at))
        at += len(chunk)
    return Pieces(tuple(pieces))


def _arrays(
    array: pyarrow.Array, stored: Sequence[tuple[int, ...]], called: str, place: PlaceOf
) -> np.ndarray:
    """Returns the arrays of one piece of a column; `place` takes a row's index in the piece.

    Raises `Refused` as `array_cells` does.
    """
    import pyarrow
    from pyarrow import compute

    array = array.storage if isinstance(array, pyarrow.ExtensionArray) else array
    rows, shape = len(array), list[int]()
    while _is_list(array.type):
        lengths = compute.fill_null(compute.list_value_length(array), -1).to_numpy(False)
        shape.append(int(lengths[0]) if len(lengths) else 0)
        if (lengths != shape[-1]).any():
            wrong = int((lengths != shape[-1]).argmax()) * rows // len(lengths)
            raise _another_shape(called, place(wrong))
        array = array.flatten()
    if array.null_count:
        raise Refused(f"data: {called} has empty cells; leave such rows out")
    if not pyarrow.types.is_primitive(array.type):
        refuse_no_numbers(np.dtype(object), called)
    numbers = array.to_numpy(zero_copy_only=False)
    refuse_no_numbers(numbers.dtype, called)
    if (tuple(shape) or (1,)) not in stored:
        raise Refused(
            f"data.shape: an example of {called} has another shape; expected "
            f"{' or '.join(map(str, stored))}",
            private=f"it is {tuple(shape)}",
        )
    arrays: np.ndarray = numbers.reshape(rows, *(shape or [1]))
    return arrays


def _place_after(place: PlaceOf, at: int, row: int) -> str:
    return place(at + row)


def _another_shape(called: str, where: str) -> Refused:
    return Refused(
        f"data.shape: {called} has another shape in {where} than in earlier rows; give all "
        "examples one shape"
    )


def picture_cells(
    column: pyarrow.ChunkedArray, shape: Sequence[int], resize: bool, place: PlaceOf
) -> np.ndarray:
    """Returns the images of a column of image files, as bytes `[N, channels, height, width]`.

    Raises `Refused` if a cell is not an image, or is only the path of an image file.
    """
    images = np.empty((len(column), *shape), dtype=np.uint8)
    for row, cell in enumerate(column):
        held = cell.as_py()
        content = held.get("bytes") if isinstance(held, dict) else held
        if content is None:
            raise Refused(
                f"data: {place(row)} holds no image, or only an image's path; embed the images "
                "(dataset.cast_column(…, Image()), then save it again)"
            )
        images[row] = picture(content, shape, resize, place(row))
    return images


def holds_pictures(kind: pyarrow.DataType) -> bool:
    """Whether `kind` may hold image files: bytes or null, or a struct with such a field "bytes"."""
    import pyarrow

    types = pyarrow.types
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return any(fits(kind) for fits in (types.is_binary, types.is_large_binary, types.is_null))


def _is_list(kind: pyarrow.DataType) -> bool:
    import pyarrow

    types = pyarrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _refuse_empty(column: pyarrow.ChunkedArray, called: str, place: PlaceOf) -> None:
    if column.null_count:
        row = int(column.is_null().to_numpy().argmax())
        raise Refused(
            f"data: {place(row)}: the column {called} is empty; fill that cell, or leave the row "
            "out"
        )
