"""Images in folders, one folder per client.

Names of clients and files are private: messages refer to them by number from 1, in alphabetical
order. Links are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.forms.arrays import ArrayForm, RawExamples
from privfed.data.forms.labels import ClassForm, refuse_no_classes
from privfed.data.forms.pictures import SHAPE, SUFFIXES, is_of_pictures, picture
from privfed.data.preprocessing import Preprocessing
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.missing import refuse_absent
from privfed.data.tables.readable import TableFile

_FILE, _LABEL = "file", "label"
"""The columns of a table of labels."""


@dataclass(frozen=True)
class ClientPicture:
    """An image file of the client with index `owner`, its label, and its `place` for messages."""

    path: Path
    owner: int
    label: str
    place: str


def client_pictures(
    folder: Path, label_table: Path | None, key: str
) -> tuple[tuple[str, ...], list[ClientPicture]]:
    """Returns the sorted names of all clients, and their images with labels.

    Args:
      folder: the folder with one folder per client.
      label_table: a table of labels; None if each client has one folder per label.
      key: key of the run file that names `folder`, for messages.

    Raises:
      Refused: if there is no such folder or no image, an image has no label, or a folder contains
        anything else, except hidden names.
    """
    if not folder.is_dir():
        raise Refused(
            f"{key} is {str(folder)!r}, but there is no such folder; name a folder that holds one "
            "folder per client"
        )
    labels = None if label_table is None else _labels(label_table)
    clients = list(_entries(folder, f"{key}: {folder}", folders=True))
    pictures = []
    for owner, client in enumerate(clients):
        called = f"{folder}, client {owner + 1}"
        listed = _by_folder(client, called) if labels is None else _by_table(client, called, labels)
        for number, (path, label) in enumerate(listed, start=1):
            pictures.append(ClientPicture(path, owner, label, f"{called}, image {number}"))
    if not pictures:
        raise Refused(
            f"{key}: the {len(clients)} clients of {folder} hold no image; expected at least one "
            "image"
        )
    return tuple(client.name for client in clients), pictures


def _by_folder(client: Path, called: str) -> Iterator[tuple[Path, str]]:
    """Yields a client's files, each with its folder's name as label; messages say `called`."""
    for number, label in enumerate(_entries(client, called, folders=True), start=1):
        for path in _entries(label, f"{called}, label {number}", folders=False):
            yield path, label.name


def _by_table(client: Path, called: str, labels: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yields a client's files, each with the label that the table states for "CLIENT/FILE".

    Raises `Refused` if the table has no row for a file.
    """
    for number, path in enumerate(_entries(client, called, folders=False), start=1):
        name = f"{client.name}/{path.name}"
        if name not in labels:
            raise Refused(
                f"data.label_table has no label of {called}, image {number}; add a row for every "
                "image, with CLIENT/FILE as its file",
                private=f"it is {name!r}",
            )
        yield path, labels[name]


def _entries(folder: Path, called: str, folders: bool) -> list[Path]:
    """Returns the sorted entries of `folder`, which must all be folders if `folders`, else images.

    Hidden names are ignored. Raises `Refused` for a link or another kind of entry.
    """
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in entries:
        fits = path.is_dir() if folders else path.is_file() and path.suffix.lower() in SUFFIXES
        if path.is_symlink() or not fits:
            expected = "folders" if folders else f"images ({', '.join(sorted(SUFFIXES))})"
            problem = "a link, which is never followed" if path.is_symlink() else "another entry"
            raise Refused(
                f"{called} holds {problem}; expected only {expected}",
                private=f"it is {path.name!r}",
            )
    return entries


def _labels(path: Path) -> dict[str, str]:
    """Returns file ("CLIENT/FILE") -> label, from the table at `path`.

    Raises `Refused` for missing columns, empty cells or a repeated file.
    """
    table = TableFile(path, Dialect())
    refuse_absent([("label_table", name) for name in (_FILE, _LABEL)], table.names(), table)
    words = table.read({}, {name: repr(name) for name in (_FILE, _LABEL)}).words
    files, labels = words[_FILE], words[_LABEL]
    empty = (files.codes < 0) | (labels.codes < 0)
    if empty.any():
        raise Refused(
            f"data.label_table: {path}, row {files.first_row(empty)} has an empty cell; give "
            "every row a file and a label"
        )
    if len({*files.codes.tolist()}) < len(files.codes):
        raise Refused(
            f"data.label_table: {path} names a file twice; expected one row for each image"
        )
    pairs = zip(files.codes, labels.codes, strict=True)
    return {files.values[file]: labels.values[label] for file, label in pairs}


_BYTE = (0.0, 255.0)


class Folders(Part):
    """Images by client: `path`/CLIENT/LABEL/*.png, or `path`/CLIENT/*.png with a table of labels.

    x `[N, *shape]`: bytes 0 … 255, scaled onto [-1, 1]. The `shape` is declared, [1, height, width]
    (gray) or [3, height, width] (colours), and so are `classes` (labels are numbers from 0) or
    `labels` by name. PNG, JPEG, BMP, GIF, WebP and PPM are read; names that begin with a dot are
    ignored, links and other files refused.
    """

    path: str = Field(examples=["."])
    """A folder with a folder for each client."""
    shape: list[Annotated[int, Field(ge=1)]] = Field(examples=[[1, 2, 2]])
    """Shape of an image, [channels, height, width]."""
    classes: int = Field(0, ge=0, examples=[2])
    """Number of classes, if labels are integers from 0."""
    labels: list[str] = []
    """Names of the classes, as in folders or the table; instead of `classes`."""
    label_table: str = ""
    """A CSV file with the columns file ("anna/1.png") and label, if there are no label folders."""
    resize: bool = False
    """Whether images of another size are resized; otherwise they are refused."""
    test_path: str = ""
    """A public folder of the same form, with the test set."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_of_pictures(self.shape):
            raise ValueError(f"shape is {self.shape}; expected the shape of an image, {SHAPE}")
        refuse_no_classes(self.classes, self.labels)
        return self

    @property
    def squared_norm(self) -> float:
        """Bound on the squared norm of an image: its number of values, which are in [-1, 1]."""
        return self._array_form.squared_norm

    @property
    def _array_form(self) -> ArrayForm:
        return ArrayForm(tuple(self.shape), _BYTE)

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("folders: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(Path(self.path), "data.path")

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(Path(self.test_path), "data.test_path") if self.test_path else None

    def _load(self, folder: Path, key: str) -> Examples:
        table = Path(self.label_table) if self.label_table else None
        clients, pictures = client_pictures(folder, table, key)
        x = np.empty((len(pictures), *self.shape), dtype=np.uint8)
        for row, each in zip(x, pictures, strict=True):
            row[:] = picture(each.path.read_bytes(), self.shape, self.resize, each.place)
        raw = RawExamples(
            x,
            [each.label for each in pictures],
            lambda index: pictures[index].place,
            np.array([each.owner for each in pictures], dtype=np.int64),
            clients,
        )
        features, _ = self._array_form.features(x, raw.place)
        form = ClassForm(self.classes, tuple(self.labels))
        return form.examples(raw, features, how=Preprocessing.of_mapped("intensity", features))
