"""The files of clients who have a folder each, and the label of each file.

Names of clients and files are private: messages call them by their place in order, from 1. No link
is followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privfed.data.forms.pictures import SUFFIXES
from privfed.data.tables.absent import refuse_absent
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.readable import TableFile
from privfed.errors import Refused

_FILE, _LABEL = "file", "label"
"""The columns of a table of labels."""


@dataclass(frozen=True)
class ClientPicture:
    """A file of the client number `owner`, its label, and the `place` that messages call it."""

    path: Path
    owner: int
    label: str
    place: str


def client_pictures(
    folder: Path, label_table: Path | None, key: str
) -> tuple[tuple[str, ...], list[ClientPicture]]:
    """The names of all clients, sorted, and their images, whose labels folders or a table name.

    Raises `Refused` where there is no image, and for anything else that lies there.
    """
    if not folder.is_dir():
        raise Refused(f"{key} is {str(folder)!r}, no folder; expected one for each client in it")
    labels = None if label_table is None else _labels(label_table)
    clients = list(_entries(folder, f"{key}: {folder}", folders=True))
    pictures = []
    for owner, client in enumerate(clients):
        called = f"{folder}, client {owner + 1}"
        listed = _by_folder(client, called) if labels is None else _by_table(client, called, labels)
        for number, (path, label) in enumerate(listed, start=1):
            pictures.append(ClientPicture(path, owner, label, f"{called}, image {number}"))
    if not pictures:
        raise Refused(f"{key}: the {len(clients)} clients of {folder} hold no image")
    return tuple(client.name for client in clients), pictures


def _by_folder(client: Path, called: str) -> Iterator[tuple[Path, str]]:
    """A client's files, each with the label whose folder it lies in."""
    for number, label in enumerate(_entries(client, called, folders=True), start=1):
        for path in _entries(label, f"{called}, label {number}", folders=False):
            yield path, label.name


def _by_table(client: Path, called: str, labels: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """A client's files, each with the label that the table has for "CLIENT/FILE"."""
    for number, path in enumerate(_entries(client, called, folders=False), start=1):
        name = f"{client.name}/{path.name}"
        if name not in labels:
            raise Refused(
                f"data.label_table has no label of {called}, image {number}; expected a row for "
                "every image, whose file is CLIENT/FILE",
                private=f"it is {name!r}",
            )
        yield path, labels[name]


def _entries(folder: Path, called: str, folders: bool) -> list[Path]:
    """The folders, or the images, that alone lie in `folder`, sorted; hidden names do not count.

    Raises `Refused` for a link, and for anything else.
    """
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in entries:
        fits = path.is_dir() if folders else path.is_file() and path.suffix.lower() in SUFFIXES
        if path.is_symlink() or not fits:
            expected = "folders" if folders else f"images ({', '.join(sorted(SUFFIXES))})"
            problem = "a link, which is never followed" if path.is_symlink() else "something else"
            raise Refused(
                f"{called} holds {problem}; expected {expected} alone",
                private=f"it is {path.name!r}",
            )
    return entries


def _labels(path: Path) -> dict[str, str]:
    """Label by file. Raises `Refused` where a table has not these columns, or a file twice."""
    table = TableFile(path, Dialect())
    refuse_absent([("label_table", name) for name in (_FILE, _LABEL)], table.names(), table)
    words = table.read({}, {name: repr(name) for name in (_FILE, _LABEL)}).words
    files, labels = words[_FILE], words[_LABEL]
    empty = (files.codes < 0) | (labels.codes < 0)
    if empty.any():
        raise Refused(f"data.label_table: {path}, row {files.first_row(empty)} has an empty cell")
    if len({*files.codes.tolist()}) < len(files.codes):
        raise Refused(f"data.label_table: {path} has a file twice; expected a row for each image")
    pairs = zip(files.codes, labels.codes, strict=True)
    return {files.values[file]: labels.values[label] for file, label in pairs}
