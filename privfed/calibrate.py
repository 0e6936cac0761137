"""What `privfed calibrate` answers: any one of noise, rounds, cohort or epsilon from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accounting.calibration import largest, most_rounds, noise_multiplier
from accounting.errors import AccountingError, Unaccountable
from accounting.events import ADD_REMOVE, Event
from accounting.guarantee import Guarantee, guarantee
from accounting.releases import LARGEST_NOISE, PoissonSampled
from privfed.cohort import Sampler, Witness
from privfed.errors import Refused
from privfed.parts import find
from privfed.privacy.mechanism import Mechanism

_SMALLEST_RATE, _LONGEST = 1e-9, 1_000_000
_UNKNOWN = ("epsilon", "noise_multiplier", "rounds", "cohort")
_FLAGS = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"


@dataclass(frozen=True)
class Question:
    """A mechanism over a sampler, one of whose numbers is None: that is asked for.

    `population` and `cohort` are whole clients; `rate` replaces both under Poisson sampling, and
    `separation` under cyclic. `cap` 0 and `bands` 0 take the part's own default.
    """

    mechanism: str
    sampler: str
    delta: float
    accountant: str
    population: int | None = None
    cohort: int | None = None
    rate: float | None = None
    cap: int = 0
    separation: int | None = None
    bands: int = 0
    rounds: int | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None

    @property
    def unknown(self) -> str:
        """Which one is asked for. Raises `Refused` unless it is exactly one."""
        drawn = self.cohort or self.rate or self.separation or self.sampler == "full"
        given = (self.epsilon, self.noise_multiplier, self.rounds, drawn or None)
        missing = [name for name, value in zip(_UNKNOWN, given, strict=True) if value is None]
        if len(missing) != 1:
            found = "nothing is left to solve for" if not missing else f"{len(missing)} are missing"
            raise Refused(f"give all but one of {_FLAGS}: that one is solved for; {found}")
        return missing[0]

    def witness(self) -> Witness:
        """The rule of the draw. Raises `Refused` where a number is missing or does not fit."""
        if self.sampler == "poisson" and self.rate is not None:
            return Witness("poisson", self.rate, ADD_REMOVE, partial(PoissonSampled, self.rate))
        if self.rate is not None:
            raise Refused(
                f"--sampling-rate is not enough for the sampler {self.sampler!r}; give "
                "--population and --cohort"
            )
        part = find("sampler", self.sampler, "--sampler")
        if self.sampler == "cyclic":
            return _witness(part(separation=self.separation or 1), self.separation or 1)
        if self.sampler == "full":
            return _witness(part(), self.population or 1)
        if self.population is None or self.cohort is None:
            raise Refused(f"the sampler {self.sampler!r} needs --population and --cohort")
        keys = {"cap": self.cap} if self.sampler == "truncated_poisson" else {}
        return _witness(part(size=self.cohort, **keys), self.population)

    def event(self, noise: float) -> Event:
        return self.part(noise).event(self.witness(), 1)

    def part(self, noise: float | None = None) -> Mechanism:
        keys = {"bands": self.bands} if self.bands else {}
        part = find("mechanism", self.mechanism, "--mechanism")
        mechanism: Mechanism = part(noise_multiplier=noise, **keys)
        return mechanism

    def guarantee(self) -> Guarantee:
        """Of all rounds. Raises `AccountingError`."""
        assert self.noise_multiplier is not None
        assert self.rounds is not None
        spending = {self.event(self.noise_multiplier): self.rounds}
        return guarantee(spending, self.delta, self.accountant)


@dataclass(frozen=True)
class Answer:
    """A question with nothing missing, and what it guarantees."""

    question: Question
    solved: str
    bound: Guarantee

    def to_json(self) -> Mapping[str, Any]:
        """What `privfed calibrate --json` prints."""
        asked = self.question
        return {
            "epsilon": self.bound.epsilon,
            "accountants": self.bound.by_accountant,
            "accountant": asked.accountant,
            "noise_multiplier": asked.noise_multiplier,
            "sampling_rate": asked.witness().rate,
            "rounds": asked.rounds,
            "delta": asked.delta,
            "relation": self.bound.relation,
            "sampler": asked.sampler,
            "unit": self.bound.unit,
            "mechanism": asked.mechanism,
            "population": asked.population,
            "cohort": asked.cohort,
            "separation": asked.witness().separation,
            "solved": self.solved,
        }


def solve(question: Question) -> Answer:
    """Raises `Refused` where there is no answer, or not exactly one question."""
    unknown = question.unknown
    if question.bands and question.mechanism != "banded":
        raise Refused("--bands is for --mechanism banded; leave it out, or choose that")
    noise = question.noise_multiplier
    if noise is not None and not 0.0 <= noise <= LARGEST_NOISE:
        raise Refused(f"--noise-multiplier is {noise}; expected a number up to {LARGEST_NOISE:g}")
    try:
        whole = replace(question, **_solved(question, unknown))
        return Answer(whole, unknown, whole.guarantee())
    except AccountingError as error:
        raise Refused(str(error)) from error


def _solved(asked: Question, unknown: str) -> dict[str, Any]:
    if unknown == "epsilon":
        return {}
    epsilon, rounds, noise = asked.epsilon, asked.rounds, asked.noise_multiplier
    assert epsilon is not None
    if unknown == "noise_multiplier":
        assert rounds is not None
        if epsilon == math.inf:
            return {unknown: 0.0}
        found = noise_multiplier(asked.event, rounds, epsilon, asked.delta, asked.accountant)
        return {unknown: found}
    assert noise is not None
    if unknown == "rounds":
        most = most_rounds(asked.event(noise), epsilon, asked.delta, asked.accountant)
        return {unknown: _some(most, "even one round", epsilon)}
    return _cohort(asked, epsilon)


def _cohort(asked: Question, epsilon: float) -> dict[str, Any]:
    """The largest cohort, or rate, or the smallest separation, within `epsilon`."""

    def fits(tried: Question) -> bool:
        return tried.guarantee().epsilon <= epsilon

    if asked.sampler == "cyclic":
        least = getattr(asked.part(), "bands", 1)
        short = largest(lambda n: not fits(replace(asked, separation=least + n - 1)), _LONGEST)
        if short == _LONGEST:
            raise Unaccountable(f"no separation up to {_LONGEST} keeps epsilon below {epsilon:g}")
        return {"separation": least + short}
    if asked.population is None and asked.sampler == "poisson":
        return {"rate": _rate(lambda rate: fits(replace(asked, rate=rate)), epsilon)}
    if asked.population is None:
        raise Refused(f"the sampler {asked.sampler!r} needs --population")
    found = largest(lambda n: fits(replace(asked, cohort=n)), asked.population)
    return {"cohort": _some(found, "a cohort of one", epsilon)}


def _rate(fits: Callable[[float], bool], epsilon: float) -> float:
    """The largest sampling rate that fits, to four digits."""
    low = 1.0
    while not fits(low):
        low /= 4
        if low < _SMALLEST_RATE:
            raise Unaccountable(f"no sampling rate keeps epsilon below {epsilon:g}")
    high = min(4 * low, 1.0)
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _witness(sampler: Sampler, clients: int) -> Witness:
    return sampler.of(clients).witness(0, clients)


def _some(found: int, what: str, epsilon: float) -> int:
    if found == 0:
        raise Unaccountable(
            f"{what} spends more than epsilon {epsilon:g}; raise the noise, epsilon or delta"
        )
    return found


def alternatives(answer: Answer) -> Iterator[tuple[str, Answer]]:
    """What the solved number would be with other constants, in words; those without an answer not.

    Each changes one number that was given.
    """
    asked, solved = answer.question, answer.solved
    blank: dict[str, Any] = {solved: None}
    if solved == "cohort":
        blank = {"cohort": None, "rate": None, "separation": None}
    unsolved = replace(asked, **blank)
    changes: dict[str, dict[str, Any]] = {}
    if solved != "cohort" and asked.rate is not None:
        changes["2x the cohort"] = {"rate": 2 * asked.rate}
    elif solved != "cohort" and asked.cohort is not None:
        changes["2x the cohort"] = {"cohort": 2 * asked.cohort, "cap": 2 * asked.cap}
    if solved != "rounds" and asked.rounds is not None and asked.rounds > 1:
        changes["half the rounds"] = {"rounds": asked.rounds // 2}
    changes["a tenth of delta"] = {"delta": asked.delta / 10}
    if solved != "epsilon" and asked.epsilon is not None and math.isfinite(asked.epsilon):
        changes["2x epsilon"] = {"epsilon": 2 * asked.epsilon}
    if solved != "noise_multiplier" and asked.noise_multiplier:
        changes["2x the noise"] = {"noise_multiplier": 2 * asked.noise_multiplier}
    for words, change in changes.items():
        try:
            yield words, solve(replace(unsolved, **change))
        except Refused:
            continue
