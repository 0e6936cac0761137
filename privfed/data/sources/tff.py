"""TensorFlow Federated's published data sets, in their HDF5 files.

The files have groups examples/CLIENT with an array for each field. Clients are private: messages
refer to them by their index in the order of their names, from 1. Links out of the file are not
followed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privfed.core.errors import Refused, public_text
from privfed.core.streams import Streams
from privfed.data.federation import Examples, client_number
from privfed.data.forms.arrays import RawExamples, refuse_no_numbers
from privfed.data.sources.declared_examples import DeclaredExamples

_EXAMPLES = "examples"
_FORM = "TensorFlow Federated's form, examples/CLIENT/FIELD"
_TIGHTEST = 1032
"""Largest compression ratio of deflate; an array with a higher ratio is not stored in full."""


def read_clients(
    path: Path, x: str, y: str, stored: Sequence[tuple[int, ...]], share: float
) -> RawExamples:
    """Reads the fields `x` and `y` of a fraction of the clients in a file, in order of their names.

    Args:
      path: the HDF5 file.
      x: field of the features.
      y: field of the labels; empty for none.
      stored: permitted shapes of an example's array; empty for texts.
      share: fraction of clients to read: those with a hash of the name, as a number in [0, 1),
        below it.

    Returns:
      The examples, with their owners.

    Raises:
      Refused: if the file cannot be read, has another form, or the chosen clients have no example.
    """
    with _groups(path) as groups:
        chosen = [
            (number, name)
            for number, name in enumerate(sorted(groups), start=1)
            if client_number(f"share/{name}") < share * 2.0**63
        ]
        xs: list[Any] = []
        ys: list[list[object]] = []
        numbers: list[int] = []
        shape: tuple[int, ...] | None = None
        for number, name in chosen:
            called = f"{path}, client {number}"
            _refuse_blanks(name, called)
            group = _member(groups, name, called)
            held, shape = _features(group, x, stored if shape is None else (shape,), called)
            if y:
                ys.append(_labels(group, y, len(held), called))
            xs.append(held)
            numbers.append(number)
    return _joined(path, [name for _, name in chosen], numbers, xs, ys if y else None)


def _joined(
    path: Path,
    names: Sequence[str],
    numbers: Sequence[int],
    xs: Sequence[Any],
    ys: Sequence[Sequence[object]] | None,
) -> RawExamples:
    """Concatenates the examples of all clients. Raises `Refused` if there are none."""
    sizes = [len(x) for x in xs]
    owners = np.repeat(np.arange(len(names)), sizes)
    if not len(owners):
        raise Refused(
            f"data: {path} has no example of the {len(names)} clients that data.share chose; raise "
            "data.share, or use another file"
        )

    def place(index: int) -> str:
        owner = int(owners[index])
        return f"{path}, client {numbers[owner]}, example {index - sum(sizes[:owner]) + 1}"

    texts = isinstance(xs[0], list)
    x = [text for held in xs for text in held] if texts else np.concatenate(xs)
    y = None if ys is None else [label for labels in ys for label in labels]
    return RawExamples(x, y, place, owners, tuple(names))


@contextlib.contextmanager
def _groups(path: Path) -> Iterator[Any]:
    """Returns a context with the HDF5 group that contains the clients' groups.

    Raises `Refused` if h5py is not installed, or for any error in the file, also within the
    context.
    """
    try:
        import h5py
    except ImportError:
        raise Refused(
            "data.source is 'tff', but h5py, which reads HDF5 files, is not installed; run: pip "
            "install 'privfed[hdf5]'"
        ) from None
    if not path.is_file():
        raise Refused(
            f"data: the HDF5 file is {path}, but there is no such file (from {Path.cwd()}); "
            "correct the path"
        )
    try:
        with h5py.File(path, "r") as file:
            groups = _member(file, _EXAMPLES, str(path))
            if not isinstance(groups, h5py.Group):
                raise Refused(f"data: {path} has no group '{_EXAMPLES}'; expected {_FORM}")
            yield groups
    except (
        OSError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # h5py raises all of these
        raise Refused(
            f"data: {path} cannot be read: {public_text(error)}; expected an HDF5 file",
            private=str(error),
        ) from None


def _member(group: Any, name: str, called: str) -> Any:
    """Returns the object `name` of `group`; None if there is none. Raises `Refused` for a link."""
    import h5py

    link = group.get(name, getlink=True)
    if link is not None and not isinstance(link, h5py.HardLink):
        raise Refused(
            f"data: {called} holds a link to another place, but links are never followed; store "
            "the examples themselves"
        )
    return None if link is None else group[name]


def _dataset(group: Any, name: str, called: str) -> Any:
    """Returns the array `name` of a client.

    Raises `Refused` if it is missing, in another file, or more than 1,032 times as large as its
    stored data.
    """
    import h5py

    dataset = _member(group, name, called) if isinstance(group, h5py.Group) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim < 1:
        raise Refused(f"data: {called} has no array {name!r}; expected {_FORM}")
    if dataset.is_virtual or dataset.external:
        raise Refused(
            f"data: {called}: {name!r} is a link to another file, but links are never followed; "
            "store the array itself"
        )
    if dataset.nbytes > _TIGHTEST * dataset.id.get_storage_size():
        raise Refused(
            f"data: {called}: {name!r} is larger than its stored content; expected a file that "
            "contains every number or text",
            private=f"it is of shape {dataset.shape}",
        )
    return dataset


def _features(
    group: Any, name: str, stored: Sequence[tuple[int, ...]], called: str
) -> tuple[Any, tuple[int, ...] | None]:
    """Returns a client's array `[n, *shape]` and `shape`; if `stored` is empty, texts and None.

    Raises `Refused` if the array is missing or no array of numbers, or `shape` is not in `stored`.
    """
    dataset = _dataset(group, name, called)
    if not stored:
        return _texts(dataset, name, called), None
    refuse_no_numbers(dataset.dtype, f"{name!r} of {called}")
    shape = dataset.shape[1:]
    if shape not in stored:
        raise Refused(
            f"data.shape: in {called}, an example of {name!r} has another shape; expected "
            f"{' or '.join(map(str, stored))}",
            private=f"it is {shape}",
        )
    return dataset[()], shape


def _texts(dataset: Any, name: str, called: str) -> list[str]:
    """Returns the texts of a field. Raises `Refused` for a value that is not text, or not UTF-8."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is None or dataset.ndim != 1:
        raise Refused(
            f"data.text is true, but {name!r} of {called} is no list of texts; set data.text = "
            "false, or name an array of texts"
        )
    texts = []
    for number, text in enumerate(dataset[()], start=1):
        try:
            texts.append(bytes(text).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise Refused(
                f"data: {called}, example {number}: {name!r} is not UTF-8 text; save the texts as "
                "UTF-8",
                private=str(error),
            ) from None
    return texts


def _labels(group: Any, name: str, count: int, called: str) -> list[object]:
    """Returns a client's labels `[count]`; the file may store them as `[count, 1]`.

    Raises `Refused` unless there is one label for each of `count` examples.
    """
    dataset = _dataset(group, name, called)
    if dataset.shape not in ((count,), (count, 1)):
        raise Refused(
            f"data.label: {called} has another number of labels {name!r} than of examples; give "
            "every example one label",
            private=f"there are {count} examples, and labels of shape {dataset.shape}",
        )
    labels: list[object] = dataset[()].reshape(count).tolist()
    return labels


def _refuse_blanks(name: str, called: str) -> None:
    """Raises `Refused` for a name with blanks around it, by which a client could count twice."""
    if name != name.strip():
        raise Refused(
            f"data: {called} has spaces before or after its name; remove these spaces",
            private=f"it is {name!r}",
        )


class Tff(DeclaredExamples):
    """TensorFlow Federated's HDF5 files: EMNIST, CIFAR-100, Shakespeare, Stack Overflow.

    x and `label` name fields of a client: "pixels" and "label" (EMNIST), "image" and "label" or
    "coarse_label" (CIFAR-100, by Pachinko: Reddi et al. 2021, appendix F), "snippets"
    (Shakespeare), "tokens" (Stack Overflow). Everything is declared: the `shape` of an image as
    [channels, height, width], its `bounds`, `classes`; for texts a `vocabulary` of characters, or a
    public file of `words`. Numbers are scaled onto [-1, 1].

    The published test files of EMNIST, Shakespeare and Stack Overflow contain clients that also
    train; that of CIFAR-100 contains other clients with the same names. Use these files without
    privacy, or with `data.holdout = "examples"`. Under privacy, `data.holdout = "clients"` declares
    some of the training clients public instead.
    """

    path: str = Field(examples=["."])
    """An HDF5 file, for example fed_emnist_train.h5."""
    test_path: str = ""
    """A file of test examples, for example fed_emnist_test.h5."""
    share: float = Field(1.0, gt=0.0, le=1.0)
    """Fraction of the clients to read; whether a client is read depends on its name only."""

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("tff: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(self.path)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(self.test_path) if self.test_path else None

    def _load(self, path: str) -> Examples:
        stored = () if self.text else self.array_form.stored
        return self.of_declared_form(
            read_clients(Path(path), self.x, self.label, stored, self.share)
        )
