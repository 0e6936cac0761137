"""A sum over regions in one process: a channel for each region, then one for their coordinators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from privfed.core.vector import Indices
from privfed.privacy.integers import Integers
from privfed.secure.channel import Channel
from privfed.secure.limits import Leaves
from privfed.secure.summation import Aborted, Session

FIRST_COORDINATOR = 1 << 40
"""The number of region 0's coordinator. Coordinators have other numbers than clients, and so other
keys."""


def split(session: Session, regions: int) -> Iterator[Session]:
    """Yields the session of each region: the client at place p of the cohort is in region p mod R.

    The sizes of regions differ by at most one. The split depends on the cohort only, which all
    parties of the sum may know, and on no client's data.
    """
    for region in range(regions):
        places = slice(region, None, regions)
        yield replace(session, clients=session.clients[places], leaves=session.leaves[places])


class RegionalChannel:
    """Sums each region's rows over a channel, and the regions' sums over a channel at the top.

    A region that aborts is a dropout at the top. `faults` lists the reasons, which name no numbers
    of clients or regions, as these may be secret.

    Args:
      session: the session of the whole cohort.
      regions: number of regions.
      least: smallest number of regions with which a total is opened.
      region: opens the channel of a region's session.
      top: opens the channel of the coordinators' session.
      coordinators_leave: stage at which each coordinator drops out, shape [regions] (`Leaves`);
        None for no dropout.
    """

    largest = math.inf

    def __init__(
        self,
        session: Session,
        regions: int,
        least: int,
        region: Callable[[Session], Channel],
        top: Callable[[Session], Channel],
        coordinators_leave: Indices | None = None,
    ) -> None:
        self._session, self._least, self._top = session, least, top
        self._leaves = np.zeros(regions, np.int64)
        if coordinators_leave is not None:
            self._leaves = coordinators_leave.copy()
        self.faults: list[str] = []
        self._channels: dict[int, Channel] = {}
        self._region_of: dict[int, int] = {}
        for number, each in enumerate(split(session, regions)):
            self._region_of |= dict.fromkeys(each.clients.tolist(), number)
            try:
                self._channels[number] = region(each)
            except Aborted as aborted:
                self._lose(number, aborted)
        self._require_enough()

    def send(self, client: int, row: Integers) -> None:
        if channel := self._channels.get(self._region_of[client]):
            channel.send(client, row)

    def total(self) -> tuple[Integers, int]:
        sums: dict[int, tuple[Integers, int]] = {}
        for number, channel in self._channels.items():
            try:
                sums[number] = channel.total()
            except Aborted as aborted:
                self._lose(number, aborted)
        self._channels.clear()
        self._require_enough()
        coordinators = FIRST_COORDINATOR + np.arange(len(self._leaves))
        session = self._session
        session = Session(
            session.round,
            session.exchange,
            session.model_hash,
            coordinators,
            self._leaves,
            session.streams,
        )
        top = self._top(session)
        survivors = 0
        for coordinator in session.senders.tolist():
            summed, count = sums[coordinator - FIRST_COORDINATOR]
            top.send(coordinator, summed)
            survivors += count
        return top.total()[0], survivors

    def _lose(self, region: int, aborted: Aborted) -> None:
        self._leaves[region] = Leaves.BEFORE_SHARING
        self.faults.append(str(aborted))

    def _require_enough(self) -> None:
        """Raises `Aborted` if the coordinators of too few regions can have a sum."""
        present = int((self._leaves != Leaves.BEFORE_SHARING).sum())
        if present < self._least:
            reason = f" (in a region: {self.faults[0]})" if self.faults else ""
            raise Aborted(f"too few regions have a sum{reason}")
