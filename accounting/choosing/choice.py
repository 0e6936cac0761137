"""Privacy spending of a run that was chosen among several candidates; only that run is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.errors import LedgerBroken
from accounting.events import Event, Spending, within


@dataclass(frozen=True)
class Choice:
    """The choice of a run among candidates: its `event`, or None if there was no choice.

    The run's first charge spends the event, which covers all further charges; these spend nothing.
    """

    event: Event | None = None

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Choice:
        """Returns the choice that a ledger's terms state under "chosen".

        Without "chosen" it has no event. Raises `LedgerBroken` if the release of the stated event
        is not a `RepeatAndSelect`, and `Unaccountable` if the event is invalid.
        """
        if "chosen" not in terms:
            return cls()
        event = Event.from_json(terms["chosen"]["event"])
        if not isinstance(event.release, RepeatAndSelect):
            raise LedgerBroken(
                f"the run is declared as chosen by a release of kind {event.release.kind}, but a "
                "choice is of kind repeat_and_select; restore the ledger"
            )
        return cls(event)

    def spent(self, charged: Counter[Event]) -> Counter[Event]:
        """Returns the events that the charges `charged` spend: themselves, or the choice once."""
        return charged if self.event is None else Counter([self.event] * bool(charged))

    def added(self, event: Event, charged: Spending) -> Event | None:
        """Returns the event that is spent if `event` is charged after `charged`; None if none is.

        Raises `LedgerBroken` if all charges together exceed the spending allowed for each
        candidate.
        """
        if self.event is None:
            return event
        self.refuse_beyond(Counter(charged) + Counter([event]))
        return None if charged else self.event

    def refuse_beyond(self, charged: Spending) -> None:
        """Raises `LedgerBroken` if `charged` exceeds the spending allowed for each candidate."""
        if self.event is None or within(charged, self._runs):
            return
        raise LedgerBroken(
            "the run was chosen among several candidates, but the new charges would exceed the "
            "spending of one candidate; start a new run, with this one in privacy.prior"
        )

    @property
    def _runs(self) -> RepeatAndSelect:
        assert self.event is not None
        assert isinstance(self.event.release, RepeatAndSelect)
        return self.event.release
