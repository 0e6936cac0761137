"""Who was proved to stop secure sums, or to lie in them, and is left out of those that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["wrong share", "wrong dealing", "garbled shares"]


@dataclass(frozen=True)
class Culprit:
    """A `client` that lied in `exchange` of `round`.

    *wrong share*: it told another share than it had acknowledged. *wrong dealing*: shares that it
    dealt do not give the secret that it committed to. Both by its own signed messages, which are
    the `proof` (`privfed.secure.masked.evidence`). *garbled shares*: so many `complaints` that it
    dealt what nobody can use; one more than there may be liars. That is a count, and no proof to
    anybody who was not there: against a server that lies itself it says nothing.
    """

    client: int
    round: int
    exchange: int
    reason: Reason
    proof: bytes = b""
    complaints: int = 0
