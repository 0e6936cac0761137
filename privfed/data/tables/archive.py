"""Arrays of an npz archive, by name: never unpickled, and mapped where they are not compressed."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from privfed.errors import Refused, public_text

_ENCRYPTED = 0x1
"""The bit of a member's flags that says it is encrypted."""


def array_names(path: Path) -> list[str]:
    """The names of the arrays, which are private."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(
    path: Path, numbers: Mapping[str, str], words: Mapping[str, str]
) -> tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The number of rows, arrays of numbers `[N, *]`, and arrays of words or whole numbers `[N]`.

    `numbers` and `words` map names to what messages call an array. Raises `Refused` for arrays of
    another kind.
    """
    display = {**numbers, **words}
    arrays = {name: read_array(path, name, called) for name, called in display.items()}
    lengths = {display[name]: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(f"{called}: {length}" for called, length in lengths.items())
        raise Refused(f"data: {path} holds arrays of different lengths: {shown}")
    for name, called in numbers.items():
        if arrays[name].dtype.kind not in "buif" or arrays[name].dtype.itemsize > 8:
            raise Refused(
                f"data: {path}: {called} is of type {arrays[name].dtype.name}; expected numbers"
            )
    for name, called in words.items():
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iuUb":
            raise Refused(
                f"data: {path}: {called} is of type {arrays[name].dtype.name} and shape "
                f"{arrays[name].shape}; expected one word or whole number per example"
            )
    rows = next(iter(lengths.values()), 0)
    return rows, {n: arrays[n] for n in numbers}, {n: arrays[n] for n in words}


def read_array(path: Path, name: str, called: str) -> np.ndarray:
    """The array `name`: mapped (privately) where it is not compressed, else read.

    Raises `Refused` for an array that is encrypted, damaged, or of Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(f"{name}.npy")
            if member.flag_bits & _ENCRYPTED:
                raise Refused(f"data: {path}: {called} is encrypted; save it without a password")
            return _member(path, archive, member, called)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # of libraries that read what anybody may have written
        raise Refused(
            f"data: {path}: the array {called} cannot be read, it is damaged or none of numpy's "
            f"({public_text(error)}); save the archive again",
            private=str(error),
        ) from None


def _member(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, called: str
) -> np.ndarray:
    """The array of one member, whose header is checked before anything is read or mapped."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise Refused(
                f"data: {path}: {called} is of an unknown npy version; expected 1 or 2",
                private=f"it is of version {version}",
            )
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise Refused(
                f"data: {path}: {called} holds Python objects, which privfed never unpickles; "
                "save it as numbers or text"
            )
        begins = file.tell()
    if begins + dtype.itemsize * int(np.prod(shape, dtype=object)) != member.file_size:
        raise Refused(
            f"data: {path}: {called} holds another number of bytes than its header declares; it "
            "was cut: save the archive again",
            private=f"it declares shape {shape} of {dtype}, in {member.file_size} bytes",
        )
    if member.compress_type != zipfile.ZIP_STORED or not np.prod(shape):
        with archive.open(member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        name_length, extra = np.frombuffer(raw.read(4), "<u2").tolist()
    start = member.header_offset + 30 + name_length + extra + begins
    return np.memmap(
        str(path), dtype, mode="c", offset=start, shape=shape, order="F" if fortran else "C"
    )
