"""Tests which clients' rows are outlying, from the rank of each row in its round.

In a round of n rows, r_i is the fraction of rows that are at least as outlying as that of client i,
itself included; in R_i, the rows tied with it count one half. A client's score is the mean of
-ln R_i over its rounds. There is one score for each measure (`privfed.round.tally`). Two
hypotheses are tested, and neither is whether a client is Byzantine.

*Does client i differ from its cohorts?* Null: in each round, given the past, i's row is
exchangeable with the other rows. Then r_i is at least uniform given the past, whatever dependence
there is between rounds, and -2 sum of ln r_i over T rounds is at most chi-squared with 2 T degrees
of freedom (Fisher 1932). This test needs no ground truth. An honest client with atypical data also
violates the null, since it is outlying in every round. So do honest clients whose cohorts contain
Byzantine clients that are all less outlying. Discoveries are those of Benjamini and Yekutieli.

*Does client i differ from honest clients?* Null: i, with its whole run, is exchangeable with honest
clients. Then p_i = (1 + number of honest clients that score as high) / (1 + number of honest
clients) is at least uniform (conformal: Bates, Candes, Lei, Romano & Sesia 2023, section 2.1),
however heterogeneous honest clients are and whatever dependence there is between a client's rounds.
This test needs the identity of honest clients, which only a simulation knows; an honest client is
compared with the honest ones only. Discoveries are those of Benjamini and Hochberg. The fraction of
honest clients among R discoveries is bounded with certainty: with H honest among N clients, at most
H t of their p-values are up to t, and the threshold is t = level R / N, so their fraction is at
most level H / N. The level therefore needs no assumption; the measured quantity is the number of
Byzantine clients found. There are no discoveries if fewer than N / (level (H + 1)) clients score
highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from attacks.privacy.roc import roc
from privfed.core.vector import Indices
from privfed.round.tally import MEASURES

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]


def benjamini_hochberg(p: Reals, level: float) -> Mask:
    """The mask `[n]` of discoveries in p-values `[n]`: all up to the largest p_(k) <= level k / n.

    Of these, at most a fraction `level` is false in expectation if p-values are independent, or
    positively dependent on each true null (Benjamini & Hochberg 1995; Benjamini & Yekutieli 2001,
    theorem 1.2).

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.9, 0.06]), 0.1).tolist()
    [True, True, False, True]
    """
    ordered = np.sort(p)
    below = np.flatnonzero(ordered <= level * np.arange(1, len(p) + 1) / max(len(p), 1))
    return p <= ordered[below[-1]] if len(below) else np.zeros(len(p), dtype=bool)


def benjamini_yekutieli(p: Reals, level: float) -> Mask:
    """The mask `[n]` of discoveries under any dependence: level is divided by 1 + 1/2 + ... + 1/n.

    Source: Benjamini & Yekutieli 2001, theorem 1.3.

    >>> benjamini_yekutieli(np.array([0.01, 0.04, 0.9, 0.06]), 0.1).tolist()
    [True, False, False, False]
    """
    return benjamini_hochberg(p, level / float((1 / np.arange(1, len(p) + 1)).sum() or 1.0))


LEVEL = 0.1
"""The declared false discovery rate of each measure."""


@dataclass(frozen=True)
class ClientEvidence:
    """Evidence by one measure, for n clients; the values have shape `[n]`.

    `score` is the larger, the more outlying a client's rows are. `p_differs` is the p-value of the
    hypothesis that a client's rows are exchangeable with those of its cohorts, and `p_honest` that
    of exchangeability with honest clients. `p_honest` is None unless some, but not all, of the
    clients are Byzantine in all rounds.
    """

    score: Reals
    p_differs: Reals
    p_honest: Reals | None = None

    @property
    def differs(self) -> Mask:
        """Mask `[n]` of clients that differ from their cohorts, at false discovery rate `LEVEL`."""
        return benjamini_yekutieli(self.p_differs, LEVEL)

    @property
    def named(self) -> Mask:
        """Mask `[n]` of clients that differ from honest clients, at false discovery rate `LEVEL`.

        All False if the honest clients are unknown.
        """
        if self.p_honest is None:
            return np.zeros(len(self.score), dtype=bool)
        return benjamini_hochberg(self.p_honest, LEVEL)

    def to_json(self, byzantine: Mask | None) -> dict[str, Any]:
        """The number of clients that differ; if `byzantine` is known, also their true and false
        positives, and the AUC of the score.
        """
        facts: dict[str, Any] = {"differ": int(self.differs.sum())}
        if byzantine is None:
            return facts
        return {
            **facts,
            "differ_honest": int((self.differs & ~byzantine).sum()),
            "auc": roc(self.score, byzantine).auc,
            "named_byzantine": int((self.named & byzantine).sum()),
            "named_honest": int((self.named & ~byzantine).sum()),
        }


@dataclass(frozen=True)
class Misbehaviour:
    """Evidence, by measure, against `clients` `[n]`; each took part in `rounds` `[n]` rounds.

    `byzantine` `[n]` marks Byzantine clients; None unless some, but not all, of the clients are
    Byzantine in all rounds.
    """

    clients: Indices
    rounds: Indices
    measures: Mapping[str, ClientEvidence]
    byzantine: Mask | None = None

    def to_json(self) -> dict[str, Any]:
        """The evidence as JSON, for the summary of a run."""
        count = None if self.byzantine is None else int(self.byzantine.sum())
        by_measure = {name: each.to_json(self.byzantine) for name, each in self.measures.items()}
        return {"level": LEVEL, "clients": len(self.clients), "byzantine": count, **by_measure}

    def csv(self) -> str:
        """The CSV table of these clients; cells without a known value are empty."""
        unknown = [""] * len(self.clients)
        columns: dict[str, Sequence[str]] = {
            "client": [str(each) for each in self.clients],
            "rounds": [str(each) for each in self.rounds],
            "byzantine": unknown if self.byzantine is None else _words(self.byzantine),
        }
        for name, each in self.measures.items():
            columns[f"{name}_score"] = [f"{score:.4g}" for score in each.score]
            columns[f"{name}_p_differs"] = [f"{p:.3g}" for p in each.p_differs]
            columns[f"{name}_differs"] = _words(each.differs)
            honest, named = unknown, unknown
            if each.p_honest is not None:
                honest, named = [f"{p:.3g}" for p in each.p_honest], _words(each.named)
            columns |= {f"{name}_p_honest": honest, f"{name}_named": named}
        lines = [columns.keys(), *zip(*columns.values(), strict=True)]
        return "".join(",".join(line) + "\n" for line in lines)


def misbehaviour_in(
    rounds: Iterable[Mapping[str, Any]], clients: int, byzantine: Mask | None
) -> Misbehaviour | None:
    """Returns the evidence from `rounds`, each with its clients and their ranks by measure.

    The result is None if no round has clients. `byzantine` `[clients]` marks the clients that are
    Byzantine in all rounds; None if there are none, or if they change between rounds.
    """
    lines, count = list(rounds), np.zeros(clients, dtype=np.int64)
    for line in lines:
        count[np.array(line["clients"], dtype=np.int64)] += 1
    who = np.flatnonzero(count)
    if not len(who):
        return None
    bad = None if byzantine is None else byzantine[who]
    bad = bad if bad is not None and bad.any() and not bad.all() else None
    measures = {name: _evidence(lines, name, count, bad) for name in MEASURES}
    return Misbehaviour(who, count[who], measures, bad)


def _evidence(
    lines: Sequence[Mapping[str, Any]], measure: str, count: Indices, byzantine: Mask | None
) -> ClientEvidence:
    """Evidence of one `measure` against the clients whose number of rounds, `count`, is above 0."""
    plain, halved = np.zeros(len(count)), np.zeros(len(count))
    for line in lines:
        ids = np.array(line["clients"], dtype=np.int64)
        most = np.array(line[measure], dtype=np.int64)
        more = np.searchsorted(np.sort(most), most, side="left")
        plain[ids] -= np.log(most / len(most))
        halved[ids] -= np.log((most + more + 1) / (2 * len(most)))
    who = np.flatnonzero(count)
    score = halved[who] / count[who]
    p_differs = chdtrc(2.0 * count[who], 2 * plain[who])
    return ClientEvidence(
        score, p_differs, None if byzantine is None else conformal(score, byzantine)
    )


def conformal(score: Reals, byzantine: Mask) -> Reals:
    """Returns the conformal p-value `[n]` of each `score` `[n]` against those of honest clients.

    Honest clients are those for which the mask `byzantine` `[n]` is False.
    """
    honest = np.sort(score[~byzantine])
    as_high = len(honest) - np.searchsorted(honest, score, side="left")
    return np.where(byzantine, (1 + as_high) / (1 + len(honest)), as_high / len(honest))


def _words(mask: Mask) -> list[str]:
    return ["yes" if each else "no" for each in mask]
