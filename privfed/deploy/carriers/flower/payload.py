"""Bytes as Flower's messages carry them: one array of them, as they are."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

ACTION = "privfed"
"""What a client's app is asked for."""
MESSAGE_TYPE = f"query.{ACTION}"
_RECORD, _NAME, _TYPE, _FORM = "privfed", "b", "uint8", "raw"


def carrying(data: bytes) -> RecordDict:
    """The content of a message that carries `data`."""
    array = Array(dtype=_TYPE, shape=(len(data),), stype=_FORM, data=data)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def carried_bytes(message: Message) -> bytes:
    """The bytes that `message` carries. Raises `ValueError` where it has none of this form."""
    if message.has_error():
        raise ValueError("an error in the place of bytes")
    records = message.content.array_records
    if set(records) != {_RECORD} or set(records[_RECORD]) != {_NAME}:
        raise ValueError("a message of other records")
    array = records[_RECORD][_NAME]
    if (array.dtype, array.stype) != (_TYPE, _FORM) or not isinstance(array.data, bytes):
        raise ValueError("a message whose array holds no bytes")
    return array.data
