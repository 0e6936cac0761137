"""Compares sampling of examples (ELS) with sampling of clients (ULS) at the same epsilon.

Both methods release, in each step, the sum of clipped gradients of a batch with Gaussian noise.
Both protect one client with all examples under add/remove, and average over the same expected
number of examples (Charles et al. 2024, arXiv 2407.07737: example-level and user-level sampling at
a fixed compute budget).

*ELS*: each of at most G examples of a client is in the batch by its own Bernoulli draw; the
gradient of each example is clipped to C. *ULS*: clients are sampled; a sampled client draws G of
its examples, and its average gradient is clipped. With N clients and B expected examples in a
batch, both sample at the rate B / (G N). Proofs: `accounting.bounds.several_sites` (ELS), Poisson
sampling (ULS).

*Noise* is the standard deviation of the noise in the average gradient, in units of C: z / B under
ELS, and z c G / B under ULS, whose clipping norm is c C. What c may be is an assumption on
gradients, not a proof. Let example gradients have norm C, and let the average over many examples of
a client have norm r C ("gradient ratio"). The cosine of two gradients of a client is then r^2 on
average, and the average of G has the root mean square norm c C with c^2 = r^2 + (1 - r^2) / G.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from accounting.bounds.several_sites import at_several_sites
from accounting.calibration import noise_multiplier
from accounting.errors import AccountingError
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import MOST_ROWS, PoissonSampled, Release
from privfed.core.errors import Refused
from privfed.plan.calibration.question import CalibrationQuestion

_NEEDED = ("epsilon", "rounds", "population", "examples", "batch")
_USED = {*_NEEDED, "delta", "accountant", "gradient_ratio"}
_EQUAL = 1e-4
"""Relative difference of noise below which ELS and ULS are called equal: the precision of
calibration."""
_FAR = 2.0
"""Factor over the least noise of ULS beyond which larger groups of examples are not tried."""


@dataclass(frozen=True)
class SampledGroups:
    """The noise of example-level (ELS) or user-level sampling (ULS), for G examples of a client.

    Attributes:
      examples: number G of examples of a client: in the training data (ELS), or in a round (ULS).
      rate: sampling rate of each example (ELS) or client (ULS).
      noise_multiplier: noise multiplier that the budget needs.
      noise: standard deviation of the noise in the average gradient, in clipping norms of an
        example.
    """

    examples: int
    rate: float
    noise_multiplier: float
    noise: float


@dataclass(frozen=True)
class SamplingComparison:
    """Noise of ELS (`els`) and ULS (`uls`) by number of examples per client, smallest first."""

    question: CalibrationQuestion
    els: tuple[SampledGroups, ...]
    uls: tuple[SampledGroups, ...]

    @property
    def best_els(self) -> SampledGroups:
        """The result for ELS with the least noise."""
        return min(self.els, key=lambda each: each.noise)

    @property
    def best_uls(self) -> SampledGroups:
        """The result for ULS with the least noise."""
        return min(self.uls, key=lambda each: each.noise)

    @property
    def relative(self) -> float:
        """The noise of the best ULS divided by that of the best ELS."""
        return self.best_uls.noise / self.best_els.noise

    @property
    def better(self) -> str:
        """The sampling with less noise: "els", "uls", or "equal"."""
        if abs(self.relative - 1) < _EQUAL:
            return "equal"
        return "uls" if self.relative < 1 else "els"

    @property
    def break_even(self) -> float | None:
        """The gradient ratio below which some ULS with G > 1 has less noise than the best ELS.

        At most 1; None if there is no such ratio.
        """
        least = self.best_els.noise_multiplier
        squares = [
            ((least / (each.examples * each.noise_multiplier)) ** 2 - 1 / each.examples)
            / (1 - 1 / each.examples)
            for each in self.uls
            if each.examples > 1
        ]
        largest = max(squares, default=-1.0)
        return math.sqrt(min(largest, 1.0)) if largest > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed calibrate --json` prints."""
        names = ("epsilon", "delta", "accountant", "rounds", "population", "examples", "batch")
        return {
            **{name: getattr(self.question, name) for name in names},
            "gradient_ratio": gradient_ratio(self.question),
            "unit": "client",
            "relation": "add/remove",
            "els": [vars(each) for each in self.els],
            "uls": [vars(each) for each in self.uls],
            "best_els": vars(self.best_els),
            "best_uls": vars(self.best_uls),
            "better": self.better,
            "relative": self.relative,
            "break_even": self.break_even,
        }


def asks_for_sampling(question: CalibrationQuestion) -> bool:
    """Whether a flag that only the comparison of ELS and ULS uses is given."""
    given = (question.examples, question.batch, question.gradient_ratio)
    return any(each is not None for each in given)


def gradient_ratio(question: CalibrationQuestion) -> float:
    """Returns the norm of a client's average gradient divided by an example's; 1 if not given."""
    return 1.0 if question.gradient_ratio is None else question.gradient_ratio


def compare_sampling(question: CalibrationQuestion) -> SamplingComparison:
    """Solves for the noise of ELS and ULS, for 1, 2, 4, ... examples per client.

    Args:
      question: the budget, the rounds, and the numbers of clients and examples.

    Returns:
      The noise of both. ULS is solved up to the batch size at most, and not beyond the first number
      of examples with more than `_FAR` times the least noise before it.

    Raises:
      Refused: for a missing number, a flag without effect, a batch with more examples than there
        are, and if no noise is enough.
    """
    _refuse_contradictory(question)
    population, batch, examples = _numbers(question)
    groups = _groups(population, batch, examples)
    try:
        els = tuple(_els(question, size) for size in groups)
        uls: list[SampledGroups] = []
        for size in groups:
            far = _FAR * min((each.noise for each in uls), default=math.inf)
            if uls and (size > batch or uls[-1].noise > far):
                break
            uls.append(_uls(question, size))
    except AccountingError as error:
        raise Refused(str(error)) from error
    return SamplingComparison(question, els, tuple(uls))


def _groups(population: int, batch: int, examples: int) -> list[int]:
    """Returns group sizes for which batch / (population * size), the rate, is at most 1, ascending.

    They are the smallest such size, the powers of two from it to `examples`, and `examples`.
    """
    least = -(-batch // population)
    powers = [2**power for power in range(examples.bit_length())]
    return sorted({least, *(size for size in powers if least <= size <= examples), examples})


def _els(question: CalibrationQuestion, size: int) -> SampledGroups:
    return _solved(question, size, lambda q, z: at_several_sites(q, size, Gaussian(z)), 1.0)


def _uls(question: CalibrationQuestion, size: int) -> SampledGroups:
    squared = gradient_ratio(question) ** 2
    norm = math.sqrt(squared + (1 - squared) / size)
    return _solved(question, size, lambda q, z: PoissonSampled(q, Gaussian(z)), norm * size)


def _solved(
    question: CalibrationQuestion,
    size: int,
    release: Callable[[float, float], Release],
    clip: float,
) -> SampledGroups:
    """Solves for the noise of `release`, a function of the rate and the noise multiplier.

    `clip` is the clipping norm of what is sampled: one example's gradient (ELS), or the sum of the
    gradients of `size` examples (ULS).
    """
    population, batch, _ = _numbers(question)
    assert question.epsilon is not None
    assert question.rounds is not None
    rate = batch / (size * population)
    z = noise_multiplier(
        lambda z: Event(release(rate, z), "poisson"),
        question.rounds,
        question.epsilon,
        question.delta,
        question.accountant,
    )
    return SampledGroups(size, rate, z, z * clip / batch)


def _numbers(question: CalibrationQuestion) -> tuple[int, int, int]:
    """Returns the numbers of clients, of examples in a batch, and of examples of a client."""
    assert question.population is not None
    assert question.batch is not None
    assert question.examples is not None
    return question.population, question.batch, question.examples


def _refuse_contradictory(question: CalibrationQuestion) -> None:
    """Raises `Refused` unless the numbers that the comparison uses are given, and no others."""
    for name in _NEEDED:
        if getattr(question, name) is None:
            raise Refused(
                f"--{name} is missing, but ELS and ULS are compared at one epsilon and batch; "
                f"give --{name}"
            )
    defaults = {each.name: each.metadata["default"] for each in fields(question)}
    ignored = [
        f"--{name.replace('_', '-')}"
        for name, default in defaults.items()
        if name not in _USED and getattr(question, name) != default
    ]
    if ignored:
        named = ", ".join(ignored)
        raise Refused(
            f"{named} is given, but has no effect on the comparison of ELS and ULS; leave {named} "
            "out"
        )
    population, batch, examples = _numbers(question)
    if not 1 <= examples <= MOST_ROWS:
        raise Refused(f"--examples is {examples}; expected 1 to {MOST_ROWS}")
    if not 0 <= gradient_ratio(question) <= 1:
        raise Refused(f"--gradient-ratio is {question.gradient_ratio}; expected 0 to 1")
    if not 1 <= batch <= population * examples:
        raise Refused(
            f"--batch is {batch}; expected 1 to {population * examples}, the number of examples of "
            "all clients"
        )
