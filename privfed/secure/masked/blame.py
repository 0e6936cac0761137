"""Whom a server of masked sums has proved to lie in one session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from privfed.secure.culprit import Culprit
from privfed.secure.masked.evidence import Evidence, accusation
from privfed.secure.masked.messages.roster import Advertise, Invitation, Roster


@dataclass(frozen=True)
class Blame:
    """Collects `culprits` of the session of `invitation` and its `roster`: of each the first proof.

    Clients had advertised `keys`. Of the holders of a client's shares no more than `liars` lie: one
    complaint more proves that what it dealt was garbled.
    """

    invitation: Invitation
    roster: Roster
    keys: Mapping[int, Advertise]
    liars: int
    culprits: dict[int, Culprit]

    def prove(self, evidence: Evidence) -> None:
        """Take a proof."""
        if evidence.client not in self.culprits:
            keys = self.keys[evidence.client]
            self.culprits[evidence.client] = accusation(
                evidence, self.invitation, self.roster, keys
            )

    def count(self, complaints: Iterable[tuple[int, ...]]) -> None:
        """Name those whom more than `liars` holders complain about; of each holder one list."""
        session = (self.invitation.round, self.invitation.exchange)
        for client, count in Counter(who for each in complaints for who in each).items():
            if count > self.liars:
                culprit = Culprit(client, *session, "garbled shares", complaints=count)
                self.culprits.setdefault(client, culprit)
