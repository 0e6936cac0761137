"""What models of their own are worth to clients: scores before and after, each client alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from privfed.data.federation import Federation
from privfed.models.network import Network
from privfed.run.heterogeneity import client_scores, distribution

if TYPE_CHECKING:
    from torch import Tensor

CONFIDENCE = 0.95
_RESAMPLES = 2000
Interval = tuple[float, float]
Scores = np.ndarray


@dataclass(frozen=True)
class Personalised:
    """What models of their own did to the first measure of `clients` clients.

    `before` and `after` are distributions over clients, in which each counts alike; `improved` is
    the share of clients whose score rose. `intervals` are of the means and of that share, by
    clients; empty where there is one client. With no `epochs` these are the models that clients
    keep, which are no fine-tuned ones.
    """

    path: Path
    round: int
    measure: str
    clients: int
    epochs: int
    before: dict[str, float]
    after: dict[str, float]
    improved: float
    intervals: dict[str, Interval]
    note: str

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed evaluate --personalise --json` prints."""
        return {
            "measure": self.measure,
            "clients": self.clients,
            "epochs": self.epochs,
            "before": self.before,
            "after": self.after,
            "improved": self.improved,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "confidence": CONFIDENCE,
            "simulation": True,
            "note": self.note,
            "round": self.round,
            "run": str(self.path),
        }


def comparison_of(before: Scores, after: Scores, lower_is_better: bool) -> dict[str, Any]:
    """The fields of a `Personalised` that follow from scores `[n]` of the same clients."""
    better = (after < before) if lower_is_better else (after > before)
    return {
        "clients": len(before),
        "before": distribution(before, lower_is_better),
        "after": distribution(after, lower_is_better),
        "improved": float(better.mean()),
        "intervals": _intervals(before, after, better) if len(before) > 1 else {},
    }


def _intervals(before: Scores, after: Scores, better: Scores) -> dict[str, Interval]:
    """Of means, by resampling clients (percentiles of the bootstrap, Efron 1979); of the share of
    clients who gain, a score interval (Wilson 1927).
    """
    share = stats.binomtest(int(better.sum()), len(better)).proportion_ci(CONFIDENCE, "wilson")
    return {
        "before": _of_mean(before),
        "after": _of_mean(after),
        "change": _of_mean(after - before),
        "improved": (float(share.low), float(share.high)),
    }


def _of_mean(scores: Scores) -> Interval:
    interval = stats.bootstrap(
        (scores,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def client_score(network: Network, scoring: Federation, model: Tensor, client: int) -> float:
    """The first measure of the `model` `[d]` on the examples that `client` has in `scoring`."""
    start, end = scoring.offsets[client], scoring.offsets[client + 1]
    examples = scoring.examples.take(np.arange(start, end))
    alone = Federation(examples, np.array([0, end - start]), examples)
    return float(client_scores(network, alone, model, np.array([0]))[1][0])
