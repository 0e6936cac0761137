"""Judges another pipeline's claim by the canaries that took part in it.

The hypothesis is that all of the pipeline's releases together are (epsilon, delta)-private for each
canary, under the adjacency relation that the folder declares. The secret bits are fair, independent
of each other and of everything else, and were fixed before the run. Then the number of bits that
can be guessed from the releases is bounded (`accounting.empirical`), however the pipeline treats
its clients and however canaries affect each other. Scores do not depend on the bits, and numbers of
guesses are fixed.
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
"""Deltas at which the curve of a Gaussian claim is evaluated, in addition to its own delta."""


@dataclass(frozen=True)
class PipelineClaim:
    """A claim: `points` (epsilon, delta), the stated one first; `by` is a text on their source.

    If `gaussian`, the points are the whole privacy profile of Gaussian noise.
    """

    points: Sequence[Claim]
    by: str
    gaussian: bool

    @classmethod
    def at(cls, points: Sequence[Claim]) -> PipelineClaim:
        """Returns the claim of the given points, without an assumption on the mechanism."""
        return cls(points, "whatever the mechanism", gaussian=False)

    @classmethod
    def of_gaussian(cls, claim: Claim) -> PipelineClaim:
        """Returns the claim of the Gaussian profile through `claim`, without client sampling."""
        return cls(gaussian_points(claim), "by Gaussian noise", gaussian=True)

    @classmethod
    def of_rounds(
        cls, noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
    ) -> PipelineClaim:
        """Returns the claim of `rounds` rounds of Gaussian noise on sums over Poisson samples.

        Args:
          noise_multiplier: standard deviation of the noise over the distance between neighbours'
            sums.
          sampling_rate: probability with which a client takes part.
          rounds: number of rounds.
          delta: delta of the stated point.

        Raises:
          Refused: if an argument is out of range, or epsilon is infinite at `delta`.
        """
        event, count = gaussian_rounds(noise_multiplier, sampling_rate, rounds)
        points = list(claimed_profile({event: count}, delta))
        if not points or points[0][1] != delta:
            raise Refused(
                f"the noise multiplier is {noise_multiplier:g}, but has no finite ε "
                f"{at_delta(delta)} over {rounds} rounds, so there is nothing to test; claim a "
                "larger multiplier or delta"
            )
        words = f"by Gaussian noise of multiplier {noise_multiplier:g} in {rounds} rounds"
        sampled = f" on Poisson cohorts of rate {sampling_rate:g}" if sampling_rate < 1 else ""
        return cls(points, words + sampled, gaussian=True)


def gaussian_points(claim: Claim) -> list[Claim]:
    """Returns `claim`, and further points of the Gaussian mechanism that has this point."""
    delta = claim[1]
    # At this delta epsilon reaches 0; for a small delta the root is as precise as a double.
    at_epsilon_0 = max(2 * float(ndtri((1 + delta) / 2)), math.sqrt(2 * math.pi) * delta)
    mu = max(GaussianCurve.of(claim).mu, at_epsilon_0)
    return [claim, *((gaussian_epsilon(1 / mu, delta), delta) for delta in _DELTAS)]


@dataclass(frozen=True)
class Judgement(Verdicts, Encoded):
    """The evidence of `canaries` about a claim.

    Fields with "_final" use the difference between the last and the initial model. The
    corresponding fields without "_final" use single releases, and are None if there was only one
    release. Bounds with "_gaussian" hold if the pipeline's noise is Gaussian; a claim by such noise
    (`gaussian`, `claimed_by`) is tested as a whole profile. Bounds with "_most" are the largest
    that this number of canaries could give, if all guesses were right.

    Attributes:
      canaries: number of canaries.
      heads: number of canaries whose bit is heads.
      releases: number of released models that differ from the preceding model.
      simulated: whether the secret bits follow from a seed.
      epsilon_refutable: the largest claimed epsilon at `delta` that would be refuted if all guesses
        were right (`refutable`); None if there is none.
      canaries_needed: number of canaries that could refute this claim if all guesses were right; it
        exceeds the smallest such number by at most 1 %. None if 131,072 do not suffice.
      p_value: the smallest p-value of all tests of the claim, multiplied by their number.
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
    """Returns texts on the judgement by label, as `privfed canary judge` prints them."""
    j, sure = judgement, f"{judgement.confidence:.0%}"
    pairs = {
        "canaries": f"{j.canaries}; {j.heads} with inclusion bit 1 ({j.relation})",
        "releases": f"{j.releases} after the initial model",
        "claim": f"ε = {j.epsilon_claimed:.4g} {at_delta(j.delta)}, {j.claimed_by}",
        "estimate": f"ε ≈ {_two(j.epsilon_estimate_all_iterates, j.epsilon_estimate_final)} "
        "(not bounds)",
        "lower bound": f"ε ≥ {_two(j.epsilon_lower_bound, j.epsilon_lower_bound_final)}, with "
        f"{sure} confidence (at most {_shown(j.epsilon_lower_bound_most)} with "
        f"{j.canaries} canaries)",
        "if Gaussian": "if its noise is Gaussian: ε ≥ "
        f"{_two(j.epsilon_lower_bound_gaussian, j.epsilon_lower_bound_gaussian_final)} "
        f"(at most {_shown(j.epsilon_lower_bound_gaussian_most)})",
        "power": _power(j),
        "verdict": f"{_verdict(j)} (p = {j.p_value:.2g}, corrected over all tests; refuted below "
        f"{REFUTED_BELOW:g})",
    }
    if j.simulated:
        pairs["note"] = (
            "inclusion bits follow from a seed: a pipeline that knows the seed "
            "could respond to them"
        )
    return pairs


def _verdict(judgement: Judgement) -> str:
    """Returns the verdict on the claim as text: refuted, doubtful or not contradicted."""
    if judgement.refuted:
        return "REFUTED: the pipeline does not satisfy the claim"
    if judgement.doubted:
        return (
            "DOUBTFUL, which is rare for a correct run: the canaries speak against the claim; "
            "repeat with more canaries"
        )
    return "the canaries do not contradict the claim, which proves nothing"


def _power(judgement: Judgement) -> str:
    """Returns a text on the claims that could be refuted, or the reason why none could be."""
    needed = judgement.canaries_needed
    least = "more than 100,000" if needed is None else f"at least {needed}"
    this = f"this claim needs {least}"
    if judgement.epsilon_refutable is not None:
        most = f"{judgement.epsilon_refutable:.3g}"
        return f"{judgement.canaries} canaries could refute a claim of up to ε = {most}; {this}"
    if needed is not None or judgement.gaussian or judgement.delta < REFUTED_BELOW:
        return f"{judgement.canaries} canaries could refute no claim at this δ alone; {this}"
    return (
        f"none: with probability δ = {judgement.delta:g} the pipeline may reveal everything, so no "
        f"single run refutes the claim at {REFUTED_BELOW:g}. If the claim is by Gaussian noise, "
        "add --gaussian or --noise-multiplier; or also give the claim at a smaller δ"
    )


def _two(every: float | None, final: float | None) -> str:
    """Formats the ε from single releases, `every`, and from the final model; either may be None."""
    return f"{_shown(every)} from single releases, {_shown(final)} from the final model"


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"


_FEWEST = 5
"""Number of canaries with either bit below which nothing is estimated."""
_HALVINGS, _LARGEST = 9, 25.0


def judge_releases(
    folder: Folder, releases: Path, claim: PipelineClaim, confidence: float
) -> Judgement:
    """Returns the judgement of a claim by the models that a pipeline released.

    Args:
      folder: the canaries that took part.
      releases: a folder of numbered models, the initial one first.
      claim: the claim under test.
      confidence: confidence of the lower bounds on epsilon.

    Raises:
      Broken: if the folder was changed since it was made.
      Refused: if the models cannot be read, do not fit the canaries, or the last equals the first.
    """
    declared = folder.manifest()
    folder.check_commitments()
    inclusion, paths = folder.inclusion(), model_files(releases)
    measured = cosines(folder.directions(), models(paths, declared.dimension))
    statistics = measured.statistics()
    (epsilon, delta), *_ = claim.points
    tests = one_run_tests(statistics, inclusion, claim.points, confidence)
    estimates = {name: _estimate(scores, inclusion, delta) for name, scores in statistics.items()}
    every, final = tests.bounds.get("iterates"), tests.bounds["final"]
    return Judgement(
        canaries=len(inclusion),
        heads=int(inclusion.sum()),
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
        epsilon_refutable=refutable(len(inclusion), len(statistics), delta, claim.gaussian),
        p_value=tests.p_value,
    )


@cache
def refutable(canaries: int, statistics: int, delta: float, gaussian: bool) -> float | None:
    """Returns the largest epsilon at `delta` that is refuted if all guesses are right.

    The result is rounded down by less than 0.05, and larger values are cut to just below 25. It is
    None if no epsilon is refuted, since an (epsilon, delta)-private pipeline may reveal all bits
    with probability delta.

    Args:
      canaries: number of canaries.
      statistics: number of statistics; the tests are corrected for this number.
      delta: delta of the claim.
      gaussian: whether the claim is a Gaussian profile.
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


def _estimate(scores: Numbers, inclusion: NDArray[np.bool_], delta: float) -> float | None:
    """Returns epsilon between Gaussians fitted to the scores of heads and of tails.

    None for fewer than 5 canaries with heads, or with tails.

    The method is that of Andrew et al. 2024, section 3, except that both Gaussians have the same
    standard deviation, pooled over both groups. If each had its own, these would differ by chance,
    and for a hundred canaries that difference alone would yield an epsilon of about 2.
    """
    out, into = scores[~inclusion], scores[inclusion]
    if min(len(out), len(into)) < _FEWEST:
        return None
    std = float(np.sqrt((out.var(ddof=1) + into.var(ddof=1)) / 2))
    null, present = (Bell(float(side.mean()), std) for side in (out, into))
    return epsilon_between(null, present, delta)
