"""What `privfed calibrate --advise` is asked: a public setting, a budget, and what is promised."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from privfed.config.config import Raw
from privfed.errors import Refused
from privfed.plan.advice.advice import Advice, compared
from privfed.plan.advice.assumptions import PROMISES
from privfed.plan.advice.candidates import Keys, keys_to_compare, uneven

_MOST_CLIENTS = 100_000_000
_DRAWS = "--population and --cohort, --sampling-rate, --separation, or --slots"


@dataclass(frozen=True)
class AdviceQuestion:
    """`cohort` of `population` clients, or their quotient: a `rate`, or one client in `period`.

    `promises` are those that whoever runs it can keep (`privfed.plan.advice.assumptions`).
    """

    epsilon: float
    delta: float
    rounds: int
    accountant: str = "tightest"
    population: int | None = None
    cohort: int | None = None
    rate: float | None = None
    period: int | None = None
    promises: tuple[str, ...] = tuple(PROMISES)


def advise(question: AdviceQuestion) -> Advice:
    """What each draw and mechanism leaves on the model for this budget. Raises `Refused`."""
    clients, size = _whole_clients(question)
    base: Raw = {
        "run": {"rounds": question.rounds},
        "data": {"clients": clients},
        "cohort": {},
        "privacy": {
            "epsilon": question.epsilon,
            "delta": question.delta,
            "accountant": question.accountant,
        },
    }
    tried = [
        keys
        for keys in keys_to_compare(clients, size, question.rounds)
        if question.population is not None or not _counts_clients(keys)
    ]
    return compared(base, tried, question.promises, uneven=uneven(clients, size))


def _whole_clients(question: AdviceQuestion) -> tuple[int, int]:
    """The clients declared, and how many of them a cohort is expected to have. Raises `Refused`."""
    population, cohort, rate, period = (
        getattr(question, name) for name in ("population", "cohort", "rate", "period")
    )
    given = [cohort is not None, rate is not None, period is not None]
    if sum(given) != 1 or (cohort is not None and population is None) or (rate and population):
        raise Refused(f"--advise compares draws of one expected cohort: give {_DRAWS}")
    if rate is not None:
        quotient = Fraction(rate).limit_denominator(_MOST_CLIENTS)
        return quotient.denominator, quotient.numerator
    if period is not None and population is not None and population % period:
        raise Refused(
            f"--population is {population}; expected a multiple of the {period} rounds in which a "
            "client takes part once"
        )
    if period is not None:
        return population or period, (population or period) // period
    if cohort > population:
        raise Refused(f"--cohort is {cohort}; expected at most the --population of {population}")
    return population, cohort


def _counts_clients(keys: Keys) -> bool:
    """Whether a draw depends on how many clients there are, and not on the rate alone."""
    return bool(keys["cohort.sampler"] == "fixed_size")
