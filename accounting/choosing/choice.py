"""What a ledger's charges spend where its run is one of several, of which the best is released."""

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
    """The `event` of choosing a run among others; None for a run that stands alone.

    A choice is spent once, by the first charge: the further ones are a part of what it covers.
    """

    event: Event | None = None

    @classmethod
    def stated(cls, terms: Mapping[str, Any]) -> Choice:
        """What a ledger's terms state under "chosen". Raises `LedgerBroken`, `Unaccountable`."""
        if "chosen" not in terms:
            return cls()
        event = Event.from_json(terms["chosen"]["event"])
        if not isinstance(event.release, RepeatAndSelect):
            raise LedgerBroken(f"a run is stated as chosen by a {event.release.kind} release")
        return cls(event)

    def spent(self, charged: Counter[Event]) -> Counter[Event]:
        """What the run's charges spend."""
        return charged if self.event is None else Counter([self.event] * bool(charged))

    def added(self, event: Event, charged: Spending) -> Event | None:
        """What `event` after `charged` adds to what is spent; None where the choice covers it.

        Raises `LedgerBroken` where it does not.
        """
        if self.event is None:
            return event
        self.refuse_beyond(Counter(charged) + Counter([event]))
        return None if charged else self.event

    def refuse_beyond(self, charged: Spending) -> None:
        """Raises `LedgerBroken` where `charged` is more than each run to choose from may spend."""
        if self.event is None or within(charged, self._runs):
            return
        raise LedgerBroken(
            "this run was one of several to choose from, and more would be charged than the choice "
            "covers; start a new run, with this one in privacy.prior"
        )

    @property
    def _runs(self) -> RepeatAndSelect:
        assert self.event is not None
        assert isinstance(self.event.release, RepeatAndSelect)
        return self.event.release
