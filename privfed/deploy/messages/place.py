"""An exchange of a run, as a coordinator names it to a site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting.documents import from_json
from privfed.secure.frames import BadMessage


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
        return cls(str(stated["run"]), int(stated["round"]), int(stated["exchange"]))

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
