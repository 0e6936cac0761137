"""Messages as bytes: how they are put together, taken apart whole, and refused by name.

Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from privfed.secure.packing import Bytes
from privfed.secure.summation import Aborted

NUMBER = struct.Struct("<Q")
COUNT = struct.Struct("<I")


class BadMessage(Aborted):
    """A message that is refused, by the name of its fault."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


def records(items: list[bytes]) -> bytes:
    """Records of one size, their count first."""
    return COUNT.pack(len(items)) + b"".join(items)


def sized(text: bytes) -> bytes:
    """A text of any length, its length first."""
    return COUNT.pack(len(text)) + text


class Reader:
    """Takes bytes apart; every byte has to be used. Raises `BadMessage` where they end too early.

    Every call takes what comes next. Nothing is copied but what is returned as bytes.
    """

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = memoryview(data), 0

    def view(self, count: int) -> memoryview:
        """The next `count` bytes where they lie: as long as those that are read."""
        if count > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        return bytes(self.view(count))

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        """What comes next in this `form`."""
        return form.unpack(self.view(form.size))

    def number(self) -> int:
        """A number of eight bytes."""
        return int(self.fields(NUMBER)[0])

    def count(self) -> int:
        """A number of four bytes, of records or of bytes."""
        return int(self.fields(COUNT)[0])

    def sized(self) -> bytes:
        """A text whose length comes first."""
        return self.take(self.count())

    def rest(self) -> bytes:
        """All bytes that are left."""
        return bytes(self.rest_in_place())

    def rest_in_place(self) -> memoryview:
        """All bytes that are left, where they lie."""
        return self.view(len(self._data) - self._at)

    def records(self, form: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """The fields of records of one `form`, as many as the message says."""
        return form.iter_unpack(self.view(self.count() * form.size))

    def end(self) -> None:
        """Raises `BadMessage` where bytes are left."""
        if self._at != len(self._data):
            raise BadMessage("wrong length", "the message goes on after its end")
