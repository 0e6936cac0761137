"""The input of `--advise`: a setting, a budget, and the assumptions that hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from privfed.config.config import Raw
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.text import nearest
from privfed.plan.calibration.advice import (
    PROMISES,
    Advice,
    Keys,
    alternative_of,
    compared,
    keys_to_compare,
    uneven,
)
from privfed.plan.plan import Plan
from privfed.privacy.noise_on_model import SolvedForRun
from privfed.sampling.cohort import Sampler


def refuse_incomparable(plan: Plan) -> None:
    """Raises `Refused`, with the reason, if `plan` cannot be compared with alternatives.

    It can if the server adds the noise, the budget is finite, clients are not at remote sites, and
    the run is not a candidate of a tuning.
    """
    config = plan.config
    if not plan.mechanism.private or plan.mechanism.trust != "server":
        why = (
            "compares noise that the server adds, but in this run the server adds none; leave "
            "--advise out"
        )
    elif plan.budget is None or plan.budget == math.inf:
        why = (
            "compares the noise that a budget needs, but this run has no budget; set "
            "privacy.epsilon"
        )
    elif config.at_remote_sites:
        why = (
            "compares samplers of one server, but in this run sites on machines of their own "
            "sample their clients; leave --advise out"
        )
    elif config.chosen:
        why = "is for a single run, but this run is a candidate of a tuning; leave --advise out"
    else:
        return
    raise Refused(f"--advise {why}")


def comparable(plan: Plan) -> bool:
    """Whether `refuse_incomparable` accepts `plan`."""
    try:
        refuse_incomparable(plan)
    except Refused:
        return False
    return True


def advice_on_run(plan: Plan, promises: Collection[str] = tuple(PROMISES)) -> Advice:
    """Returns a comparison of a run's sampler and mechanism with alternatives.

    Other parts are unchanged.

    Args:
      plan: the plan of the run.
      promises: the operational assumptions that hold; alternatives that need more are unavailable.

    Raises:
      Refused: if the plan cannot be compared.
    """
    refuse_incomparable(plan)
    config, yours = plan.config, alternative_of(plan, {})
    if yours is None:
        raise Refused(
            "--advise compares the noise on the model, but this run's mechanism declares no such "
            "noise; leave --advise out"
        )
    clients, size = config.data.clients, config.sampler.size
    others = [
        keys
        for keys in keys_to_compare(clients, size, max(plan.training_rounds, 1))
        if not _configured(plan, keys)
    ]
    adaptive = plan.mechanism.adaptive
    base = _unsolved(plan)
    left_out = uneven(clients, size)
    return compared(base, others, promises, plan.before, yours, adaptive, left_out)


def _configured(plan: Plan, keys: dict[str, object]) -> bool:
    """Whether the run's configuration already has the values in `keys`."""
    values = plan.config.values()
    return all(values[key.split(".")[0]].get(key.split(".")[1]) == keys[key] for key in keys)


def _unsolved(plan: Plan) -> Raw:
    """Returns the run's keys without the constants that its mechanism solved for."""
    raw, mechanism = plan.config.raw(), plan.config.mechanism
    if isinstance(mechanism, SolvedForRun):
        for key in mechanism.solution():
            raw["privacy"].pop(key, None)
    return raw


_MOST_CLIENTS = 100_000_000
_DRAWS = "--population and --cohort, --sampling-rate, --separation, or --slots"


@dataclass(frozen=True)
class AdviceQuestion:
    """A budget over all rounds, with the expected cohort and the assumptions that hold.

    The expected cohort is given in one of three ways: by `cohort` and `population`; by
    `sampling_rate`; or by `period`, the number of rounds in which a client takes part once.
    `promises` names operational assumptions (`privfed.plan.calibration.advice.PROMISES`).
    """

    epsilon: float
    delta: float
    rounds: int
    accountant: str = "tightest"
    population: int | None = None
    cohort: int | None = None
    sampling_rate: float | None = None
    period: int | None = None
    promises: tuple[str, ...] = tuple(PROMISES)


def advise(question: AdviceQuestion) -> Advice:
    """Returns a comparison of samplers and mechanisms by noise at the budget of `question`.

    Raises `Refused` if the budget or the expected cohort is missing or invalid.
    """
    if not 0 < question.epsilon < math.inf:
        raise Refused(f"--epsilon is {question.epsilon}; expected a positive finite number")
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
    """Returns the number of clients and the expected cohort size, both integers.

    A sampling rate is approximated by a fraction whose denominator is at most `_MOST_CLIENTS`. A
    period without a population means a cohort of 1 among that number of clients.

    Raises `Refused` if they are not determined, or are invalid.
    """
    population, cohort, rate, period = (
        getattr(question, name) for name in ("population", "cohort", "sampling_rate", "period")
    )
    given = [cohort is not None, rate is not None, period is not None]
    if sum(given) != 1 or (cohort is not None and population is None) or (rate and population):
        raise Refused(
            "--advise compares samplers with the same expected cohort, but the given flags do not "
            f"determine one; give {_DRAWS}"
        )
    if rate is not None:
        if not 1 / _MOST_CLIENTS <= rate <= 1:
            least = 1 / _MOST_CLIENTS
            raise Refused(f"--sampling-rate is {rate}; expected a number from {least:g} to 1")
        quotient = Fraction(rate).limit_denominator(_MOST_CLIENTS)
        return quotient.denominator, quotient.numerator
    if period is not None and population is not None and population % period:
        raise Refused(
            f"--population is {population}; expected a multiple of {period}, the number of rounds "
            "in which a client takes part once"
        )
    if period is not None:
        return population or period, (population or period) // period
    if cohort > population:
        raise Refused(f"--cohort is {cohort}; expected at most the --population of {population}")
    return population, cohort


def _counts_clients(keys: Keys) -> bool:
    """Whether the number of clients, not only the rate, is a constant of the sampler."""
    sampler: type[Sampler] = find("sampler", keys["cohort.sampler"], "cohort.sampler")
    return "clients" in sampler.constants


_REQUIRED = ("epsilon", "delta", "rounds", "accountant", "population", "cohort", "sampling_rate")
_COMPARED = {"sampler": "poisson", "mechanism": "gaussian"}
"""Flags that the comparison itself varies, with their defaults."""
_SPACINGS = ("separation", "slots")


def advice_question(flags: Mapping[str, Any], promises: str | None) -> AdviceQuestion:
    """Returns the question that the flags of `privfed calibrate --advise` form.

    Args:
      flags: values of the flags by field name; None for flags that are not given.
      promises: names of operational assumptions, separated by commas; None: all of them.

    Raises:
      Refused: for a flag that `--advise` does not use, and if the budget or the rounds are missing.
    """
    used = {*_REQUIRED, *_SPACINGS}
    left = [name for name, value in flags.items() if value is not None and name not in used]
    ignored = [name for name in left if flags[name] != _COMPARED.get(name)]
    if ignored:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise Refused(
            f"{named} is given, but --advise compares samplers and mechanisms at one epsilon, and "
            f"solves for the noise of each; leave {named} out"
        )
    missing = [f"--{name}" for name in ("epsilon", "rounds") if flags[name] is None]
    if missing:
        raise Refused(
            f"{missing[0]} is missing, but --advise compares the noise that one epsilon needs over "
            f"all rounds; give {missing[0]}"
        )
    spacings = [flags[name] for name in _SPACINGS if flags[name] is not None]
    if len(spacings) > 1:
        raise Refused(
            "--separation and --slots are both given, but both state how often a client takes "
            "part; give one of them"
        )
    given = {name: flags[name] for name in _REQUIRED}
    return AdviceQuestion(
        **given, period=(spacings or [None])[0], promises=parse_assumptions(promises)
    )


def refuse_promises_without_advice(words: str | None) -> None:
    """Raises `Refused` if --promises is given (`words` is not None); for use without --advise."""
    if words is not None:
        raise Refused(
            "--promises is given, but has an effect only with --advise; add --advise, or leave "
            "--promises out"
        )


def parse_assumptions(words: str | None) -> tuple[str, ...]:
    """Returns the operational assumptions that `words` name, separated by commas.

    None means all assumptions, and "nothing" means none. Raises `Refused` for an unknown name.
    """
    if words is None:
        return tuple(PROMISES)
    parts = [each.strip() for each in words.split(",")]
    promises = tuple(each for each in parts if each not in ("", "nothing"))
    for promise in promises:
        if promise not in PROMISES:
            close = nearest(promise, list(PROMISES))
            hint = f" (did you mean {close!r}?)" if close else ""
            raise Refused(
                f"--promises has {promise!r}; expected some of {', '.join(PROMISES)}{hint}, "
                "separated by commas, or nothing"
            )
    return promises
