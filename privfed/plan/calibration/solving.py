"""Solves for the one number that a question of `privfed calibrate` leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from accounting.calibration import largest
from accounting.errors import AccountingError, Unaccountable
from accounting.guarantee import refuse_unaccountable
from privfed.core.errors import Refused
from privfed.plan.calibration.answer import CalibrationAnswer
from privfed.plan.calibration.as_run import (
    config_of,
    cost_of,
    guarantee_of,
    mechanism_of,
    plan_of,
    refuse_contradictory_question,
)
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.plan import Plan, refuse
from privfed.privacy.noise_on_model import InBands
from privfed.sampling.cohort import InGroups

_SMALLEST_RATE = 1e-9


def large_scanned(fits: Callable[[int], bool], most: int) -> int:
    """Searches for a large count for which `fits` is true, if `fits` is not monotone.

    An example is truncated Poisson sampling: small expected cohorts are truncated more often, so a
    small cohort may not fit although a larger one does. Counts are tried from above, each a sixth
    smaller than the last; then the interval above the first one that fits is bisected. The result
    is not proved to be the largest.

    Args:
      fits: whether a count fits.
      most: the largest count to try.

    Returns:
      A count that fits; 0 if no tried count fits.
    """
    above = most + 1
    tried = most
    while tried >= 1:
        if fits(tried):
            while above - tried > 1:
                middle = (tried + above) // 2
                tried, above = (middle, above) if fits(middle) else (tried, middle)
            return tried
        above, tried = tried, min(tried - 1, int(tried / 1.2))
    return 0


def largest_rate(fits: Callable[[float], bool]) -> float | None:
    """Searches for the largest sampling rate for which `fits`, true below some rate, is true.

    Returns:
      The rate to a relative accuracy of 1e-4; None if none of the rates 1, 1/4, 1/16, ... down to
        1e-9 fits.
    """
    low = 1.0
    while not fits(low):
        low /= 4
        if low < _SMALLEST_RATE:
            return None
    high = min(4 * low, 1.0)
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


_MOST_ROUNDS = 1_000_000


def solve(question: CalibrationQuestion) -> CalibrationAnswer:
    """Solves for the missing number of a question.

    Args:
      question: the question, with exactly one number missing.

    Returns:
      The answer, from the plan of the run that the question describes.

    Raises:
      Refused: unless exactly one number is missing; for flags that contradict each other or have no
        effect; and if no number suffices.
    """
    unknown = question.unknown
    refuse_contradictory_question(question)
    try:
        return _answer(question, unknown)
    except AccountingError as error:
        hint = "; or raise --bits, since rounding lengthens rows" if question.bits else ""
        raise Refused(f"{error}{hint}") from error


def _answer(question: CalibrationQuestion, unknown: str) -> CalibrationAnswer:
    """Solves for the number named `unknown`. Raises `AccountingError` if no value suffices."""
    if question.sites:
        refuse(config_of(question))
    if unknown != "cohort":
        refuse_unaccountable(cost_of(question).event(1.0), question.accountant)
    if unknown == "noise_multiplier" and question.sampling_rate is None:
        plan = plan_of(question)
        complete = replace(_as_chosen(question, plan), noise_multiplier=plan.noise_multiplier)
        return _planned(complete, unknown, plan)
    complete = _completed(question, unknown)
    if complete.sampling_rate is None:
        return _planned(complete, unknown, plan_of(complete))
    return CalibrationAnswer(complete, unknown, guarantee_of(complete), cost_of(complete))


def _as_chosen(question: CalibrationQuestion, plan: Plan) -> CalibrationQuestion:
    """Returns `question` with the numbers of bands and groups that the plan solved for."""
    mechanism = plan.config.mechanism
    if isinstance(mechanism, InBands):
        question = replace(question, bands=mechanism.bands)
    if isinstance(plan.config.sampler, InGroups):
        question = replace(question, groups=plan.cost.witness.separation)
    return question


def _planned(complete: CalibrationQuestion, unknown: str, plan: Plan) -> CalibrationAnswer:
    """Returns the answer with the guarantees of `plan`, including that of distributed noise."""
    assert complete.rounds is not None
    other_party = plan.other_party(complete.rounds)
    return CalibrationAnswer(complete, unknown, plan.guarantee, plan.cost, other_party)


def _completed(question: CalibrationQuestion, unknown: str) -> CalibrationQuestion:
    """Returns `question` with the number named `unknown`; an unknown epsilon stays None."""
    match unknown:
        case "noise_multiplier":
            return replace(question, noise_multiplier=_noise(question))
        case "rounds":
            return replace(question, rounds=_most_rounds(question))
        case "cohort":
            return _with_draw(question)
    return question


def _affordable(question: CalibrationQuestion) -> bool:
    """Whether the rounds of `question` spend at most its epsilon."""
    return guarantee_of(question).epsilon <= _budget(question)


def _budget(question: CalibrationQuestion) -> float:
    """Returns the given epsilon, which a search for another number must not exceed."""
    assert question.epsilon is not None
    return question.epsilon


def _noise(question: CalibrationQuestion) -> float:
    """Returns the smallest noise multiplier within the budget."""
    assert question.rounds is not None
    budget, delta = _budget(question), question.delta
    return cost_of(question).solve(question.rounds, budget, delta, question.accountant)


def _most_rounds(question: CalibrationQuestion) -> int:
    """Returns the largest number of rounds within the budget."""
    beyond = f"epsilon {_budget(question):g} allows more than {_MOST_ROUNDS} rounds"
    rounds = largest(lambda n: _affordable(replace(question, rounds=n)), _MOST_ROUNDS, beyond)
    return _some(rounds, "even one round", question)


def _with_draw(question: CalibrationQuestion) -> CalibrationQuestion:
    """Returns `question` with the largest cohort or rate, or smallest spacing, in the budget."""
    if question.spaced:
        return _spaced(question, _spacing(question))
    if question.population is not None:
        return replace(question, cohort=_cohort(question, question.population))
    if "rate" not in question.sampler_class.constants:
        raise Refused(
            f"--sampler is {question.sampler!r}, but --population is missing; give --population"
        )
    rate = largest_rate(lambda rate: _affordable(replace(question, sampling_rate=rate)))
    if rate is None:
        raise Unaccountable(
            f"epsilon is {_budget(question):g}, but every sampling rate from {_SMALLEST_RATE:g} "
            "spends more; raise the noise, epsilon or delta"
        )
    return replace(question, sampling_rate=rate)


def _cohort(question: CalibrationQuestion, population: int) -> int:
    """Returns the largest cohort within the budget; for truncated sampling, a large one."""
    most = min(population, question.cap or population)
    cut = "cap" in question.sampler_class.constants
    search = large_scanned if cut else largest
    cohort = search(lambda cohort: _affordable(replace(question, cohort=cohort)), most)
    return _some(cohort, "every cohort that was tried" if cut else "a cohort of one", question)


def _spaced(question: CalibrationQuestion, rounds: int) -> CalibrationQuestion:
    """Returns `question` with `rounds` as its `slots` or `separation`."""
    if question.spacing == "slots":
        return replace(question, slots=rounds)
    return replace(question, separation=rounds)


def _spacing(question: CalibrationQuestion) -> int:
    """Returns the smallest separation, or number of slots, within the budget.

    Values above the number of rounds need not be tried: they have the same cost.
    """
    least = len(mechanism_of(question).coefficients())
    most = max(question.rounds or 1, least)
    if not _affordable(_spaced(question, most)):
        raise Unaccountable(
            f"epsilon is {_budget(question):g}, but even one round per client spends more; raise "
            "the noise"
        )
    too_short = largest(
        lambda n: not _affordable(_spaced(question, least + n - 1)), most - least + 1
    )
    return least + too_short


def _some(count: int, smallest: str, question: CalibrationQuestion) -> int:
    """Returns `count`. Raises `Unaccountable` for 0: even `smallest` exceeds the budget."""
    if count == 0:
        raise Unaccountable(
            f"epsilon is {_budget(question):g}, but {smallest} spends more; raise the noise, "
            "epsilon or delta"
        )
    return count


def alternatives(answer: CalibrationAnswer) -> Iterator[tuple[str, CalibrationAnswer]]:
    """Yields the answers to questions with one number changed, each with the name of the change.

    The changes are those of `_variants`. Questions without an answer are left out.
    """
    for words, question in _variants(_unsolved(answer), answer.solved):
        try:
            yield words, solve(question)
        except Refused:
            continue


def _unsolved(answer: CalibrationAnswer) -> CalibrationQuestion:
    """Returns the question of `answer` without the number that was solved for."""
    match answer.solved:
        case "cohort":
            return replace(
                answer.question, cohort=None, sampling_rate=None, separation=None, slots=None
            )
        case "rounds":
            return replace(answer.question, rounds=None)
        case "epsilon":
            return replace(answer.question, epsilon=None)
    return replace(answer.question, noise_multiplier=None)


def _variants(
    question: CalibrationQuestion, unknown: str
) -> Iterator[tuple[str, CalibrationQuestion]]:
    """Yields questions with one number changed, and the name of the change.

    The changes are: twice the cohort or the rate (unless `unknown` is "cohort"), half the rounds, a
    tenth of delta, twice epsilon, and twice the noise multiplier. Numbers that are None, a single
    round, an infinite epsilon and a noise multiplier of 0 are not changed.
    """
    if unknown != "cohort":
        yield from _doubled_cohort(question)
    if question.rounds is not None and question.rounds > 1:
        yield "half the rounds", replace(question, rounds=question.rounds // 2)
    yield "a tenth of delta", replace(question, delta=question.delta / 10)
    if question.epsilon is not None and math.isfinite(question.epsilon):
        yield "2x epsilon", replace(question, epsilon=2 * question.epsilon)
    if question.noise_multiplier:
        yield "2x the noise", replace(question, noise_multiplier=2 * question.noise_multiplier)


def _doubled_cohort(question: CalibrationQuestion) -> Iterator[tuple[str, CalibrationQuestion]]:
    """Yields the question with twice the rate, or else with twice the cohort and cap.

    Yields nothing if neither rate nor cohort is given.
    """
    if question.sampling_rate is not None:
        yield "2x the cohort", replace(question, sampling_rate=2 * question.sampling_rate)
    elif question.cohort is not None:
        cap = question.cap and 2 * question.cap
        yield "2x the cohort", replace(question, cohort=2 * question.cohort, cap=cap)
