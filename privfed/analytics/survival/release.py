"""Requests survival curves of a federation, and estimates them from a release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfed.analytics.description_run import declared_values
from privfed.analytics.release import ReleasedSums, SumsRelease, released_sums
from privfed.analytics.survival.curves import SurvivalCounts, SurvivalCurve, survival_curves
from privfed.analytics.survival.table import SurvivalTable
from privfed.analytics.survival.tests import HazardRatio, LogRank, hazard_ratios, log_rank
from privfed.core.errors import Refused


@dataclass(frozen=True)
class SurvivalRequest:
    """A request for survival curves: the columns, the bins of time, and the budget.

    Attributes:
      time: the column of times.
      event: the column that states whether the event occurred; if not, the time is censored.
      edges: ends of the bins of time, ascending.
      occurred: the entries of `event` that state an event; any other non-empty entry states
        censoring.
      group: the column of groups, whose values [data.categories] declares; "" for one group.
      epsilon: epsilon of the release; None: its fraction of the run's budget is
        `budget.statistics`.
      delta: delta of the release; None: the delta of the run file.
    """

    time: str
    event: str
    edges: tuple[float, ...]
    occurred: tuple[str | int | bool, ...] = (1,)
    group: str = ""
    epsilon: float | None = None
    delta: float | None = None

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of [data] for the source `survival_table`.

        See `privfed.analytics.release.Request.keys`.
        """
        keys = {
            "source": "survival_table",
            "time": self.time,
            "event": self.event,
            "occurred": [*self.occurred],
            "edges": [*self.edges],
        }
        if not self.group:
            return keys
        return {**keys, "group": self.group, "groups": declared_values(data, self.group, "--group")}


@dataclass(frozen=True)
class SurvivalRelease(SumsRelease):
    """Released noised counts of events and censored times, survival estimates, and their cost.

    Attributes:
      time: the column of times.
      event: the column of events.
      group: the column of groups; "" for one group.
      clients: noised number of clients with usable entries in each group.
      unusable: noised number of clients whose row has no usable entries.
      events: noised counts of events, by group and bin.
      censored: noised counts of censored times, by group and bin.
      edges: ends of the bins.
      curves: the survival curve of each group.
      log_rank: the test that all groups have the same survival; None for one group.
      hazard_ratios: the hazard ratio of each other group to the first; empty for one group.
    """

    file = "survival.json"
    time: str
    event: str
    group: str
    clients: tuple[float, ...]
    unusable: float
    events: list[list[float]]
    censored: list[list[float]]
    edges: tuple[float, ...]
    curves: tuple[SurvivalCurve, ...]
    log_rank: LogRank | None
    hazard_ratios: tuple[HazardRatio, ...]


def survival_of(path: Path, actuarial: bool = False) -> SurvivalRelease:
    """Returns the estimates from the noised counts that the run at `path` released.

    No client's data are read.

    Args:
      path: the run directory.
      actuarial: True: a client is at risk for half of the bin in which it is censored (actuarial
        estimate). False: for all of it (Kaplan-Meier of binned times).

    Raises:
      Refused: if the run released nothing, or is not a run of `privfed survive`.
    """
    counts = released_sums(path, (SurvivalTable,), "survive")
    return _estimated(counts, path, actuarial)


def _estimated(released: ReleasedSums, path: Path, actuarial: bool) -> SurvivalRelease:
    source = released.config.source
    assert isinstance(source, SurvivalTable)
    cells, total = source.questions, released.total
    table = total[:-1].reshape(len(cells.groups), cells.bins, 2)
    counts = SurvivalCounts(
        cells.edges, cells.groups, table[:, :, 0], table[:, :, 1], released.noise
    )
    several = len(cells.groups) > 1
    return SurvivalRelease(
        **released.cost(path),
        time=cells.time,
        event=cells.event,
        group=cells.group,
        clients=tuple(table.sum((1, 2)).tolist()),
        unusable=float(total[-1]),
        events=table[:, :, 0].tolist(),
        censored=table[:, :, 1].tolist(),
        edges=cells.edges,
        curves=survival_curves(counts, midpoint=actuarial),
        log_rank=log_rank(counts) if several else None,
        hazard_ratios=tuple(hazard_ratios(counts, cells.groups[0])) if several else (),
    )


def survival_request(
    time: str,
    event: str,
    until: float | None,
    bins: int,
    edges: Sequence[float] | None,
    occurred: Sequence[str | int | bool],
    group: str,
    epsilon: float | None,
    delta: float | None,
) -> SurvivalRequest:
    """Returns the request for bins with the ends `edges`, or for `bins` bins from 0 to `until`.

    See `privfed.survival` for the arguments.

    Raises:
      Refused: if `time` or `event` is empty, or unless exactly one of `until` and `edges` is given.
    """
    if not time or not event:
        raise Refused("time and event are both needed; name the columns of the table")
    if (until is None) == (edges is None):
        raise Refused(
            "until and edges are both given or both missing, but exactly one is needed; set until "
            "to the end of the last bin, or edges to the ends of all bins"
        )
    ends = even_edges(until, bins) if until is not None else tuple(map(float, edges or ()))
    return SurvivalRequest(time, event, ends, tuple(occurred), group, epsilon, delta)


def even_edges(until: float, bins: int) -> tuple[float, ...]:
    """Returns the ends of `bins` bins of equal width from 0 to `until`.

    Raises:
      Refused: if `until` is not positive and finite.
    """
    if not 0.0 < until < math.inf:
        raise Refused(f"--until is {until:g}; expected a positive time")
    return tuple(until * number / bins for number in range(bins + 1))
