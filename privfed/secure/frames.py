"""Messages as bytes: how they are put together, taken apart whole, and refused by name.

Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

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

    Every call takes what comes next.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self) -> int:
        """A number of eight bytes."""
        return int(NUMBER.unpack(self.take(NUMBER.size))[0])

    def count(self) -> int:
        """A number of four bytes, of records or of bytes."""
        return int(COUNT.unpack(self.take(COUNT.size))[0])

    def sized(self) -> bytes:
        """A text whose length comes first."""
        return self.take(self.count())

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(len(self._data) - self._at)

    def records(self, size: int) -> Iterator[Reader]:
        """Records of `size` bytes, as many as the message says, each with a reader of its own."""
        count = self.count()
        if count * size > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        for _ in range(count):
            yield Reader(self.take(size))

    def ended(self) -> bool:
        """Whether no bytes are left."""
        return self._at == len(self._data)

    def end(self) -> None:
        """Raises `BadMessage` where bytes are left."""
        if not self.ended():
            raise BadMessage("wrong length", "the message goes on after its end")
