"""What `privfed calibrate` would answer to questions that differ in one number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from privfed.errors import Refused
from privfed.plan.calibration.answer import CalibrationAnswer
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.calibration.solving import solve


def alternatives(answer: CalibrationAnswer) -> Iterator[tuple[str, CalibrationAnswer]]:
    """What the solved number would be with other constants, in words; those without an answer not.

    Each changes one number that was given.
    """
    for words, question in _variants(_unsolved(answer), answer.solved):
        try:
            yield words, solve(question)
        except Refused:
            continue


def _unsolved(answer: CalibrationAnswer) -> CalibrationQuestion:
    """The question as it was asked."""
    match answer.solved:
        case "cohort":
            return replace(answer.question, cohort=None, rate=None, separation=None, slots=None)
        case "rounds":
            return replace(answer.question, rounds=None)
        case "epsilon":
            return replace(answer.question, epsilon=None)
    return replace(answer.question, noise_multiplier=None)


def _variants(
    question: CalibrationQuestion, unknown: str
) -> Iterator[tuple[str, CalibrationQuestion]]:
    """The same question with another number; `unknown` has none and keeps none."""
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
    """Twice the rate, or twice the clients of a round, with a cap that grows along."""
    if question.rate is not None:
        yield "2x the cohort", replace(question, rate=2 * question.rate)
    elif question.cohort is not None:
        cap = question.cap and 2 * question.cap
        yield "2x the cohort", replace(question, cohort=2 * question.cohort, cap=cap)
