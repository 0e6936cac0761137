"""Calibration: the least noise, or the most rounds or clients, for a target epsilon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from accounting.accountants import ACCOUNTANTS, supports
from accounting.accountants import epsilon as accountant_epsilon
from accounting.central_limit import MOST_NOISE
from accounting.errors import Unaccountable
from accounting.events import Event, Spending
from accounting.guarantee import TIGHTEST, guarantee, refuse_unaccountable
from accounting.least_noise import least_noise

_MOST_ROUNDS = 1_000_000
_MARGIN = 1 - 1e-7
"""Factor on the target: runs then stay within their budget on machines that round differently."""


def noise_multiplier(
    event: Callable[[float], Event],
    rounds: int,
    epsilon: float,
    delta: float,
    accountant: str = TIGHTEST,
    prior: Spending | None = None,
    extra_spending: Callable[[float], Spending] | None = None,
) -> float:
    """Returns a noise multiplier z at which the total spending is at most `epsilon`.

    Calibration, charges and the check of the budget (`Gate`) all use `event`, the mechanism's own
    event as a function of z. The result is conservative: its epsilon never exceeds the target, and
    z exceeds the least such value by a factor of about 1 + 1e-5 at most.

    Args:
      event: the event of a round, as a function of z.
      rounds: number of rounds with this event.
      epsilon: target epsilon, positive and finite.
      delta: delta of the guarantee, in (0, 1).
      accountant: "rdp", "pld" or "tightest".
      prior: events already spent on the same population.
      extra_spending: further events as a function of z, charged in addition.

    Returns:
      The noise multiplier z.

    Raises:
      Unaccountable: if no noise in [1e-3, 1e6] reaches the target, if the target is not positive
        and finite, if `prior` already spends it, or if the accountant has no proof for an event.
    """
    if not 0.0 < epsilon < math.inf:
        raise Unaccountable(f"epsilon is {epsilon!r}; expected a positive finite number")
    refuse_unaccountable(event(1.0), accountant)

    def total(z: float) -> Spending:
        together = Counter(prior or {}) + Counter({event(z): rounds})
        return together + Counter(extra_spending(z)) if extra_spending else together

    def spent(z: float) -> float:
        return _least_bound(
            total(z), delta, ACCOUNTANTS if accountant == TIGHTEST else (accountant,)
        )

    def spending_by_pld(z: float) -> float:
        return _least_bound(total(z), delta, ("pld",))

    before = guarantee(prior, delta, accountant).epsilon if prior else 0.0
    if before >= epsilon:
        raise Unaccountable(
            f"epsilon is {epsilon:g}, but earlier runs already spent {before:g}, so nothing is "
            "left; raise epsilon, or train on another population"
        )
    target = epsilon * _MARGIN
    if accountant == TIGHTEST and all(supports(each, "pld") for each in total(1.0)):
        # PLD alone is nearly always tightest, and takes half the time of both accountants.
        z = least_noise(spending_by_pld, target, delta, total)
        if z is not None and 0.999 * target <= spending_by_pld(z) <= spent(z):
            return z
    z = least_noise(spent, target, delta, total)
    if z is not None:
        return z
    if spent(1.0) == math.inf and spent(MOST_NOISE) == math.inf and not event(1.0).slack:
        raise Unaccountable(
            f"accountant is {accountant!r}, but has no bound at delta {delta:g} over {rounds} "
            "rounds, since its rounding error is not far below delta; use 'rdp' or 'tightest', or "
            "a larger delta"
        )
    raise Unaccountable(
        f"epsilon is {epsilon:g}, but over {rounds} rounds at delta {delta:g} needs a noise "
        f"multiplier above {MOST_NOISE:g}; raise epsilon or delta, or use fewer rounds"
    )


def _least_bound(spending: Spending, delta: float, accountants: tuple[str, ...]) -> float:
    """Returns the least epsilon of `accountants`; infinite if none has a bound."""
    bounds = [accountant_epsilon(spending, delta, each) for each in accountants]
    return min((bound for bound in bounds if bound is not None), default=math.inf)


def most_rounds(
    event: Event,
    epsilon: float,
    delta: float,
    accountant: str = TIGHTEST,
    prior: Spending | None = None,
) -> int:
    """Returns the largest number of rounds of `event` after `prior` that `epsilon` allows.

    The number is 0 if not even one round fits.

    Args:
      event: the event of a round.
      epsilon: the budget.
      delta: delta of the guarantee, in (0, 1).
      accountant: "rdp", "pld" or "tightest".
      prior: events already spent on the same population.

    Raises:
      Unaccountable: if a million rounds fit, or if the accountant has no proof for the event.
    """
    refuse_unaccountable(event, accountant)

    def fits(rounds: int) -> bool:
        total = Counter(prior or {}) + Counter({event: rounds})
        return guarantee(total, delta, accountant).epsilon <= epsilon

    beyond = (
        f"epsilon is {epsilon:g}, but allows {_MOST_ROUNDS:,} rounds or more; lower epsilon or the "
        "noise"
    )
    return largest(fits, _MOST_ROUNDS, beyond)


def largest(fits: Callable[[int], bool], most: int, beyond: str = "") -> int:
    """Returns the largest count in 1..`most` for which `fits` holds; 0 if there is none.

    `fits` must be monotone: if it holds for a count, it holds for all smaller ones. If even `most`
    fits, `most` is returned if `beyond` is empty; otherwise `Unaccountable` is raised with the
    message `beyond`.
    """
    high = 1
    while high < most and fits(high):
        high = min(2 * high, most)
    if high == most and fits(most):
        if beyond:
            raise Unaccountable(beyond)
        return most
    low = high // 2  # a number that fits, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
