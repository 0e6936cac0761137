"""Why a site declines, as fixed public words: no data, and no exception's text, is in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from privfed.errors import Refused


class Code(StrEnum):
    """What a site tells the coordinator when it declines, and nothing else."""

    PART = "part"
    """A part from outside is named, whose code would run here."""
    PROOF = "proof"
    """The combination has no proof."""
    SIMULATION = "simulation"
    PROTOCOL = "protocol"
    MECHANISM = "mechanism"
    THREAT = "threat"
    SITES = "sites"
    BUDGET = "budget"
    DELTA = "delta"
    OBJECTIVE = "objective"
    MODEL = "model"
    PARAMETERS = "parameters"
    RELEASE = "release"
    RUN = "run"
    """The run goes on under another federation or configuration than it began with."""
    ROUND = "round"
    """The round, or its exchange, is not after the last one answered."""
    QUESTION = "question"
    """The exchange was answered, and this is another question."""
    LEDGER = "ledger"
    """The coordinator's ledger does not go on from what the site saw of it, or states no charge."""
    SOURCE = "source"
    """The run is not about a table."""
    DEADLINE = "deadline"
    """The time to train is not set, or too short for this site's machine."""


@dataclass(frozen=True)
class Refusal:
    """A public `code`, and the full `reason`, for the site's own log alone."""

    code: Code
    reason: str


class Declined(Refused):
    """A site declines: the message is the code alone, and the reason is private."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"declined: {refusal.code}", refusal.reason)
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[Declined], tuple[Refusal]]:
        return type(self), (self.refusal,)

    @property
    def code(self) -> Code:
        """The public word."""
        return self.refusal.code
