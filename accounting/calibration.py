"""Calibration: the least noise, or the most rounds or clients, within a target epsilon."""

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
"""A margin that keeps another machine's rounding from putting the same run beyond its budget."""


def noise_multiplier(
    event: Callable[[float], Event],
    rounds: int,
    epsilon: float,
    delta: float,
    accountant: str = TIGHTEST,
    prior: Spending | None = None,
    besides: Callable[[float], Spending] | None = None,
) -> float:
    """The noise z at which `prior` and `rounds` times `event(z)` spend at most `epsilon`.

    So do they together with what follows from z `besides`, where anything does.

    `event` is the mechanism's own event as a function of z, so that calibration, charge and gate
    account for the same thing. The answer errs on the private side only: the epsilon it gives is
    never above the target, and z is within about 1e-5 of the least such value.

    Raises `Unaccountable` where no noise in [1e-3, 1e6] reaches the target, where the target is
    not positive and finite, and where the accountant has no proof for the event.
    """
    if not 0.0 < epsilon < math.inf:
        raise Unaccountable(f"epsilon is {epsilon!r}; expected a positive finite number")
    refuse_unaccountable(event(1.0), accountant)

    def total(z: float) -> Spending:
        together = Counter(prior or {}) + Counter({event(z): rounds})
        return together + Counter(besides(z)) if besides else together

    def spent(z: float) -> float:
        return _least_bound(
            total(z), delta, ACCOUNTANTS if accountant == TIGHTEST else (accountant,)
        )

    def spent_by_pld(z: float) -> float:
        return _least_bound(total(z), delta, ("pld",))

    before = guarantee(prior, delta, accountant).epsilon if prior else 0.0
    if before >= epsilon:
        raise Unaccountable(
            f"earlier runs already spent epsilon {before:g} of {epsilon:g}; nothing is left: ask "
            "for more epsilon, or train on another population"
        )
    target = epsilon * _MARGIN
    if accountant == TIGHTEST and all(supports(each, "pld") for each in total(1.0)):
        # Nearly always the tighter one, in half the time; where it is not, both are asked.
        z = least_noise(spent_by_pld, target, delta, total)
        if z is not None and 0.999 * target <= spent_by_pld(z) <= spent(z):
            return z
    z = least_noise(spent, target, delta, total)
    if z is not None:
        return z
    if spent(1.0) == math.inf and spent(MOST_NOISE) == math.inf and not event(1.0).slack:
        raise Unaccountable(
            f"accountant {accountant!r} has no bound at delta {delta:g} over {rounds} rounds (its "
            "rounding is no longer far below delta); use 'rdp' or 'tightest', or a larger delta"
        )
    raise Unaccountable(
        f"epsilon {epsilon:g} at delta {delta:g} over {rounds} rounds needs a noise "
        f"multiplier above {MOST_NOISE:g}; ask for more epsilon or delta, or fewer rounds"
    )


def _least_bound(spending: Spending, delta: float, accountants: tuple[str, ...]) -> float:
    """The least epsilon of `accountants`; infinite where none has a bound."""
    bounds = [accountant_epsilon(spending, delta, each) for each in accountants]
    return min((bound for bound in bounds if bound is not None), default=math.inf)


def most_rounds(
    event: Event,
    epsilon: float,
    delta: float,
    accountant: str = TIGHTEST,
    prior: Spending | None = None,
) -> int:
    """How many times `event` may follow `prior` within `epsilon`; 0 where not even once.

    Raises `Unaccountable` where that is above a million, and where the accountant has no proof for
    the event.
    """
    refuse_unaccountable(event, accountant)

    def fits(rounds: int) -> bool:
        total = Counter(prior or {}) + Counter({event: rounds})
        return guarantee(total, delta, accountant).epsilon <= epsilon

    beyond = f"epsilon {epsilon:g} allows more than {_MOST_ROUNDS} rounds"
    return largest(fits, _MOST_ROUNDS, beyond)


def largest(fits: Callable[[int], bool], most: int, beyond: str = "") -> int:
    """The largest count up to `most` that `fits`, which all smaller ones do; 0 where none does.

    Raises `Unaccountable(beyond)` where even `most` fits, unless `beyond` is empty.
    """
    high = 1
    while high < most and fits(high):
        high = min(2 * high, most)
    if high == most and fits(most):
        if beyond:
            raise Unaccountable(beyond)
        return most
    low = high // 2  # fits, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
