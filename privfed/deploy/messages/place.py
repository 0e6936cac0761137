"""An exchange of a run, as a coordinator names it to a site."""

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
    """An exchange: the run's hash in hexadecimal, the round, and the number of the exchange."""

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
        """Returns the byte form."""
        return json.dumps(self.to_json(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Place:
        """Parses the byte form. Raises `BadMessage` if it is malformed."""
        try:
            return cls.from_json(from_json(data.decode()))
        except (LookupError, TypeError, ValueError) as error:
            raise BadMessage("wrong format", "the bytes name no exchange") from error
