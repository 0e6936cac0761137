"""Adapter over dp-accounting: epsilon of a list of events, by RDP and by PLD.

Both are proven upper bounds, so their minimum (`tightest`) is one as well. The adapter exists
because the library silently underestimates epsilon when it is used in the obvious way. By
construction here:

* noise multipliers and rates reach the library as Python floats (the classes of
  `accounting.releases` convert them), since the library drops terms whose multiplier is an int or a
  NumPy scalar inside a Poisson event;
* a composition inside a Poisson event never reaches the library: a release has a single noise
  multiplier, that of the composition;
* noise multipliers are relative to the sensitivity under the adjacency relation (two clipping norms
  under replace-one), so accountants need not know the relation;
* a Rényi divergence that rounding made negative does not count as a proof of epsilon = 0;
* the library's Rényi divergence of sampling without replacement is not used, because it suffers
  from cancellation (`accounting.bounds.without_replacement`);
* equal events are composed by their count, never one by one;
* the grid of PLD depends on the events, so tiny rates keep their precision and tiny noise does not
  exhaust memory;
* PLD is evaluated at a delta reduced by the possible rounding error of its FFT, and not at all if
  that error exceeds a hundredth of delta. Compositions of Gaussians need neither
  (`accounting.bounds.closed`);
* a run that was chosen among several is charged for the choice
  (`accounting.choosing.private_selection`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from accounting.bounds.pld import pld_epsilon
from accounting.bounds.rdp import rdp_epsilon
from accounting.choosing.private_selection import selected_epsilon
from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, CHANGE, REPLACE_ONE, ZERO_OUT, Event, Spending, summable
from accounting.noises import DiscreteGaussians, Gaussian, IntegerNoise, Skellam
from accounting.over_rounds import (
    AllocatedEpoch,
    BufferedToeplitz,
    RandomAllocation,
    Separated,
)
from accounting.releases import (
    PoissonSampled,
    Release,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    Unprotected,
    WithoutReplacement,
    noise_of,
)
from accounting.slack import with_slack

ACCOUNTANTS = ("rdp", "pld")

_SMALLEST_NOISE = 1e-3
"""Noise multiplier below which losses overflow the accountants' arithmetic; epsilon is then
infinite."""


def supports(event: Event, accountant: str) -> bool:
    """Whether `accountant` has a proven bound for `event`; check this when configuring a run.

    | release | relation | rdp | pld |
    |---|---|---|---|
    | Gaussian, Separated, BufferedToeplitz | each | yes | yes (closed form) |
    | RandomAllocation, AllocatedEpoch | add/remove, zero-out | yes | yes |
    | Skellam, DiscreteGaussians, also if Separated | each | yes | no |
    | PoissonSampled, Repeated | add/remove | yes | yes (of Gaussians) |
    | SeveralSites | add/remove | yes | yes |
    | TruncatedPoisson | add/remove | no | yes |
    | WithoutReplacement | replace-one | yes | no |
    | RepeatAndSelect | that of its releases | if its releases are | if its releases are (*) |

    `Unprotected` is supported by both accountants: its epsilon is infinite. (*) `epsilon` is None
    if PLD composes a `RepeatAndSelect` with other events.

    Args:
      event: the event of a round.
      accountant: "rdp" or "pld".

    Raises:
      Unaccountable: if `accountant` is neither "rdp" nor "pld".
    """
    if accountant not in ACCOUNTANTS:
        raise Unaccountable(
            f"accountant is {accountant!r}; expected one of {', '.join(ACCOUNTANTS)}"
        )
    return all(_supports(release, event.relation, accountant) for release in event.releases)


def _supports(release: Release, relation: str, accountant: str) -> bool:
    if isinstance(noise_of(release), IntegerNoise) and accountant == "pld":
        return False
    match release:
        case Gaussian() | Skellam() | DiscreteGaussians() | Separated() | Unprotected():
            return relation in CHANGE
        case BufferedToeplitz():
            return relation in CHANGE
        case RandomAllocation() | AllocatedEpoch():
            return relation in (ADD_REMOVE, ZERO_OUT)
        case PoissonSampled() | Repeated() | SeveralSites():
            return relation == ADD_REMOVE
        case TruncatedPoisson():
            return relation == ADD_REMOVE and accountant == "pld"
        case WithoutReplacement():
            return relation == REPLACE_ONE and accountant == "rdp"


def epsilon(spending: Spending, delta: float, accountant: str) -> float | None:
    """Returns an upper bound on epsilon at `delta` for the composition of all events.

    Args:
      spending: events with their counts.
      delta: delta of the guarantee, in (0, 1).
      accountant: "rdp" or "pld".

    Returns:
      The bound: 0 without events, infinite for a release without protection, and None if
      `accountant` has no bound.

    Raises:
      Unaccountable: if `delta` is outside (0, 1), or `accountant` is unknown.
    """
    if not 0.0 < delta < 1.0:
        raise Unaccountable(f"delta is {delta!r}; expected a number strictly between 0 and 1")
    if not all(supports(event, accountant) for event in spending):
        return None
    counts: Counter[Any] = Counter()
    for event, count in sorted(
        summable(spending).items(), key=repr
    ):  # no bound depends on the order
        counts[event.release] += max(count, 0)
    counts = +counts
    if any(_is_unprotected(release) for release in counts):
        return math.inf
    if not counts:
        return 0.0
    bound = functools.partial(_bound, counts, accountant)
    slack = sum(event.slack * max(count, 0) for event, count in spending.items())
    return with_slack(bound, float(delta), slack)


def _bound(counts: Mapping[Any, int], accountant: str, delta: float) -> float | None:
    """Returns epsilon by `accountant`; None without a bound.

    If nothing else is composed, a choice among runs (`RepeatAndSelect`) has a bound by the privacy
    profile of a single run. For a choice, "pld" has only this bound; "rdp" returns the smaller of
    it and the bound by Rényi divergences.
    """
    plain: Any = rdp_epsilon if accountant == "rdp" else pld_epsilon
    choices = [release for release in counts if isinstance(release, RepeatAndSelect)]
    if not choices:
        bound: float | None = plain(counts, delta)
        return bound
    alone = None
    if sum(counts.values()) == 1:
        run = functools.partial(plain, dict(choices[0].of))
        alone = selected_epsilon(run, choices[0].repetitions, delta)
    if accountant == "pld":
        return alone
    composed = rdp_epsilon(counts, delta)
    return composed if alone is None else min(alone, composed)


def _is_unprotected(release: Release | RepeatAndSelect) -> bool:
    """Whether epsilon of `release` (or of a release of a candidate run) counts as infinite.

    True without noise, or if the noise multiplier relative to all rows of a client is below
    `_SMALLEST_NOISE`.
    """
    if isinstance(release, RepeatAndSelect):
        return any(_is_unprotected(each) for each, _ in release.of)
    noise = noise_of(release)
    rows = release.sites if isinstance(release, SeveralSites) else 1
    return noise is None or noise.noise_multiplier < rows * _SMALLEST_NOISE
