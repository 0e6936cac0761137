"""The identifier of one exchange of a run, as a coordinator sends it to a site."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting.documents import from_json
from privfed.secure.frames import BadMessage

_RUN, _MOST = re.compile("[0-9a-f]{64}"), 10**9


@dataclass(frozen=True)
class Place:
    """Identifies an exchange: the run's hash in hexadecimal, the round, the exchange's number."""

    run: str
    round: int
    exchange: int

    def to_json(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Place:
        """Parses a place. Raises `LookupError`, `TypeError` or `ValueError` if it is invalid."""
        run, counts = stated["run"], (stated["round"], stated["exchange"])
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise ValueError("the run is not 64 hexadecimal digits")
        if any(type(count) is not int or not 0 <= count <= _MOST for count in counts):
            raise ValueError("round and exchange are not integers from 0")
        return cls(run, *counts)

    def encode(self) -> bytes:
        """Returns the fields as JSON, in bytes."""
        return json.dumps(self.to_json(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Place:
        """Parses the bytes of `encode`. Raises `BadMessage` if they are malformed."""
        try:
            return cls.from_json(from_json(data.decode()))
        except (LookupError, TypeError, ValueError) as error:
            raise BadMessage("wrong format", "the bytes name no exchange") from error
