"""Judges another pipeline's claim by the canaries that took part in it.

The hypothesis is that the pipeline's releases, all together, are (epsilon, delta)-private about
each canary, under the neighbouring relation that the folder declares. Coins are fair, independent
of each other and of all else, and were drawn before: how many of them can be guessed from what was
released is then bounded (`accounting.empirical`), whatever the pipeline does with its clients and
whatever canaries do to each other. Scores look at no coin, and numbers of guesses are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from accounting.bounds.closed import gaussian_epsilon
from accounting.documents import Encoded
from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.one_run_tests import one_run_tests
from accounting.empirical.one_shot import Bell, epsilon_between
from accounting.empirical.power import fewest_refuting, refuting_guesses
from accounting.empirical.tradeoff import ClaimedCurve, GaussianCurve
from accounting.empirical.two_sample import Claim
from accounting.empirical.verdicts import REFUTED_BELOW, Verdicts
from accounting.statement import at_delta
from privfed.auditing.function_audit import gaussian_rounds
from privfed.auditing.judged_models import cosines, model_files, models
from privfed.canary.folder import Folder
from privfed.canary.layouts import Numbers
from privfed.core.errors import Refused

_DELTAS = (*np.geomspace(1e-15, 0.1, 29).tolist(), *np.arange(0.15, 1.0, 0.05).tolist())
"""Where the curve of a Gaussian claim is looked at, beside its own delta."""


@dataclass(frozen=True)
class PipelineClaim:
    """`points` (epsilon, delta) that all hold, the one to be shown first, and their source `by`.

    `gaussian`: the points are a whole profile, that of Gaussian noise.
    """

    points: Sequence[Claim]
    by: str
    gaussian: bool

    @classmethod
    def at(cls, points: Sequence[Claim]) -> PipelineClaim:
        """These points, and nothing of the mechanism."""
        return cls(points, "whatever the mechanism", gaussian=False)

    @classmethod
    def of_gaussian(cls, claim: Claim) -> PipelineClaim:
        """The one Gaussian mechanism that is `claim`, with everybody in each round."""
        return cls(gaussian_points(claim), "by Gaussian noise", gaussian=True)

    @classmethod
    def of_rounds(
        cls, noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
    ) -> PipelineClaim:
        """What accountants know of so many `rounds` of Gaussian noise on Poisson cohorts.

        `noise_multiplier` is its deviation over how far neighbours' sums lie apart, and
        `sampling_rate` the probability with which a client takes part. Raises `Refused` where
        nothing finite is claimed.
        """
        event, count = gaussian_rounds(noise_multiplier, sampling_rate, rounds)
        points = list(claimed_profile({event: count}, delta))
        if not points or points[0][1] != delta:
            raise Refused(
                f"noise of multiplier {noise_multiplier:g} has no finite ε {at_delta(delta)} over "
                f"{rounds} rounds, so there is nothing to test"
            )
        words = f"by Gaussian noise of multiplier {noise_multiplier:g} in {rounds} rounds"
        sampled = f" on Poisson cohorts of rate {sampling_rate:g}" if sampling_rate < 1 else ""
        return cls(points, words + sampled, gaussian=True)


def gaussian_points(claim: Claim) -> list[Claim]:
    """The `claim`, and further points of the Gaussian mechanism of which it is one."""
    delta = claim[1]
    # A root that is 0 from there on, and not one point; of a small delta as far as a double shows.
    at_epsilon_0 = max(2 * float(ndtri((1 + delta) / 2)), math.sqrt(2 * math.pi) * delta)
    mu = max(GaussianCurve.of(claim).mu, at_epsilon_0)
    return [claim, *((gaussian_epsilon(1 / mu, delta), delta) for delta in _DELTAS)]


@dataclass(frozen=True)
class Judgement(Verdicts, Encoded):
    """What `canaries` show of a claim, of which `heads` had coins that show heads.

    Figures `_final` are by the whole way from the initial model to the last, and others by single
    releases; these are None where there was one only. Bounds `_gaussian` hold if the pipeline's
    noise is Gaussian; where the claim is by such noise (`gaussian`, `claimed_by`), it is tested as
    a whole. Bounds `_most` are what so many canaries could show were all guesses right, and
    `epsilon_refutable` is the largest claim at `delta` that this would refute; None for no claim.
    So would `canaries_needed` refute this claim, and no fewer; None for more than 100,000.
    `p_value` is the smallest of all tests of the claim, times their number.
    """

    stated_last = ("doubted", "refuted")

    canaries: int
    heads: int
    relation: str
    releases: int
    simulated: bool
    confidence: float
    epsilon_claimed: float
    delta: float
    claimed_by: str
    gaussian: bool
    epsilon_estimate_all_iterates: float | None
    epsilon_estimate_final: float | None
    epsilon_lower_bound: float | None
    epsilon_lower_bound_final: float
    epsilon_lower_bound_gaussian: float | None
    epsilon_lower_bound_gaussian_final: float
    epsilon_lower_bound_most: float
    epsilon_lower_bound_gaussian_most: float
    epsilon_refutable: float | None
    canaries_needed: int | None
    p_value: float


def judgement_rows(judgement: Judgement) -> Mapping[str, str]:
    """The rows of the table, which tell estimates, bounds and what nobody could see apart."""
    j, sure = judgement, f"{judgement.confidence:.0%}"
    pairs = {
        "canaries": f"{j.canaries}, of which {j.heads} had heads ({j.relation})",
        "releases": f"{j.releases} after the initial model",
        "claim": f"ε = {j.epsilon_claimed:.4g} {at_delta(j.delta)}, {j.claimed_by}",
        "estimate": f"ε ≈ {_two(j.epsilon_estimate_all_iterates, j.epsilon_estimate_final)} "
        "(not bounds)",
        "lower bound": f"ε ≥ {_two(j.epsilon_lower_bound, j.epsilon_lower_bound_final)}, with "
        f"{sure} confidence (so many could show {_shown(j.epsilon_lower_bound_most)} at most)",
        "if Gaussian": "were its noise Gaussian: ε ≥ "
        f"{_two(j.epsilon_lower_bound_gaussian, j.epsilon_lower_bound_gaussian_final)} (at most "
        f"{_shown(j.epsilon_lower_bound_gaussian_most)})",
        "power": _power(j),
        "verdict": f"{_verdict(j)} (p = {j.p_value:.2g}, corrected over all tests; refuted below "
        f"{REFUTED_BELOW:g})",
    }
    if j.simulated:
        pairs["note"] = "coins follow from a seed: whoever knows it could answer to them"
    return pairs


def _verdict(judgement: Judgement) -> str:
    """Whether the canaries refute the claim, make it doubtful, or do not contradict it."""
    if judgement.refuted:
        return "REFUTED: the pipeline does not deliver what is claimed"
    if judgement.doubted:
        return (
            "DOUBTFUL, as an honest run seldom is: the canaries speak against the claim; try again "
            "with more of them"
        )
    return "the canaries do not contradict the claim, which proves nothing"


def _power(judgement: Judgement) -> str:
    """Which claims could be refuted at all, and why none where there are none."""
    needed = judgement.canaries_needed
    this = f"this claim takes {'more than 100,000' if needed is None else needed} at least"
    if judgement.epsilon_refutable is not None:
        most = f"{judgement.epsilon_refutable:.3g}"
        return f"so many canaries could refute a claim of up to ε = {most}; {this}"
    if needed is not None or judgement.gaussian or judgement.delta < REFUTED_BELOW:
        return f"so few canaries could refute no claim at this δ alone; {this}"
    return (
        f"none: with probability δ = {judgement.delta:g} such a pipeline may show everything, so "
        f"that no one run refutes it at {REFUTED_BELOW:g}. Is the claim by Gaussian noise, add "
        "--gaussian, or its --noise-multiplier; or give the claim at a smaller δ, too"
    )


def _two(every: float | None, final: float | None) -> str:
    """A figure by either statistic."""
    return f"{_shown(every)} by single releases, {_shown(final)} by the whole way (the final model)"


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"


_FEWEST = 5
"""Canaries of either kind (heads or tails) below which nothing is estimated."""
_HALVINGS, _LARGEST = 9, 25.0


def judge_releases(
    folder: Folder, releases: Path, claim: PipelineClaim, confidence: float
) -> Judgement:
    """Judge a `claim` by the models in `releases`.

    Raises `Broken` where the canaries' folder was changed since it was made, and `Refused` for
    models that do not fit them.
    """
    declared = folder.manifest()
    folder.check_commitments()
    coins, paths = folder.coins(), model_files(releases)
    measured = cosines(folder.directions(), models(paths, declared.dimension))
    statistics = measured.statistics()
    (epsilon, delta), *_ = claim.points
    tests = one_run_tests(statistics, coins, claim.points, confidence)
    estimates = {name: _estimate(scores, coins, delta) for name, scores in statistics.items()}
    every, final = tests.bounds.get("iterates"), tests.bounds["final"]
    return Judgement(
        canaries=len(coins),
        heads=int(coins.sum()),
        relation=declared.relation,
        releases=len(measured.by_release),
        simulated=declared.simulated,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        claimed_by=claim.by,
        gaussian=claim.gaussian,
        epsilon_estimate_all_iterates=estimates.get("iterates"),
        epsilon_estimate_final=estimates["final"],
        epsilon_lower_bound=every.any_curve if every else None,
        epsilon_lower_bound_final=final.any_curve,
        epsilon_lower_bound_gaussian=every.if_gaussian if every else None,
        epsilon_lower_bound_gaussian_final=final.if_gaussian,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_gaussian_most=tests.most.if_gaussian,
        canaries_needed=fewest_refuting(ClaimedCurve(claim.points), REFUTED_BELOW, len(statistics)),
        epsilon_refutable=refutable(len(coins), len(statistics), delta, claim.gaussian),
        p_value=tests.p_value,
    )


@cache
def refutable(canaries: int, statistics: int, delta: float, gaussian: bool) -> float | None:
    """The largest epsilon at `delta` that so many canaries refute if all of them betray themselves.

    None where they refute no claim: with a probability of delta, a pipeline that is (epsilon,
    delta)-private and no better may show all coins.
    """

    def refuted(epsilon: float) -> bool:
        claim = epsilon, delta
        curve = ClaimedCurve(gaussian_points(claim) if gaussian else [claim])
        return bool(refuting_guesses(canaries, curve, REFUTED_BELOW, statistics))

    low, high = 0.0, _LARGEST
    if not refuted(low):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _estimate(scores: Numbers, coins: NDArray[np.bool_], delta: float) -> float | None:
    """Epsilon between Gaussians fitted to the scores of either kind; None for too few of one.

    As Andrew et al. 2024, section 3, but with one deviation for both, that of the noise: two that
    are fitted apart differ by chance, and of a hundred canaries this alone says some epsilon of 2.
    """
    out, into = scores[~coins], scores[coins]
    if min(len(out), len(into)) < _FEWEST:
        return None
    deviation = float(np.sqrt((out.var(ddof=1) + into.var(ddof=1)) / 2))
    null, present = (Bell(float(side.mean()), deviation) for side in (out, into))
    return epsilon_between(null, present, delta)
