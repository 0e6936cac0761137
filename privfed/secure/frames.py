"""Assembles and parses messages; incomplete and oversized messages are rejected with a reason.

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
    """Raised for a message that a party rejects; `fault` is a short name of the reason."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


def records(items: list[bytes]) -> bytes:
    """Returns the bytes of a list: the number of `items`, then the items, all of one size."""
    return COUNT.pack(len(items)) + b"".join(items)


def sized(text: bytes) -> bytes:
    """Returns `text` prefixed with its length."""
    return COUNT.pack(len(text)) + text


class Reader:
    """Parses bytes in order; each call consumes the next field.

    Only values returned as `bytes` are copied.

    Raises:
      BadMessage: if the bytes end too early, or if some remain at `end`.
    """

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = memoryview(data), 0

    def view(self, count: int) -> memoryview:
        """Returns the next `count` bytes without a copy; valid as long as the message exists."""
        if count > len(self._data) - self._at:
            raise BadMessage("wrong length", "the message ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        return bytes(self.view(count))

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        """Returns the next fields in format `form`."""
        return form.unpack(self.view(form.size))

    def number(self) -> int:
        """Returns the next number, of eight bytes."""
        return int(self.fields(NUMBER)[0])

    def count(self) -> int:
        """Returns the next number, of four bytes: a count of records or of bytes."""
        return int(self.fields(COUNT)[0])

    def sized(self) -> bytes:
        """Returns the next length-prefixed byte string."""
        return self.take(self.count())

    def rest(self) -> bytes:
        """Returns all remaining bytes."""
        return bytes(self.rest_view())

    def rest_view(self) -> memoryview:
        """Returns all remaining bytes without a copy."""
        return self.view(len(self._data) - self._at)

    def records(self, form: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """Yields the fields of each record in format `form`; the number of records comes first."""
        return form.iter_unpack(self.view(self.count() * form.size))

    def ended(self) -> bool:
        """Whether no bytes remain."""
        return self._at == len(self._data)

    def end(self) -> None:
        """Raises `BadMessage` if bytes remain."""
        if not self.ended():
            raise BadMessage("wrong length", "the message has bytes after its end")
