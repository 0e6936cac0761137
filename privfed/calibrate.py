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
from accounting.guarantee import Guarantee, guarantee, refuse_unaccountable
from accounting.releases import LARGEST_NOISE, PoissonSampled
from privfed.cohort import Sampler, Witness
from privfed.errors import Refused
from privfed.parts import find
from privfed.privacy.mechanism import Mechanism, Setting

_SMALLEST_RATE = 1e-9
_UNKNOWN = ("epsilon", "noise_multiplier", "rounds", "cohort")
_USES = (
    ("poisson", ("--sampling-rate", "--population", "--cohort")),
    ("truncated_poisson", ("--population", "--cohort", "--cap")),
    ("fixed_size", ("--population", "--cohort")),
    ("full", ("--population",)),
    ("cyclic", ("--separation",)),
)
_FLAGS = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"


@dataclass(frozen=True)
class Question:
    """A mechanism over a sampler, one of whose numbers is None: that is asked for.

    `population` and `cohort` are whole clients; `rate` replaces both under Poisson sampling, and
    `separation` under cyclic. `cap` 0 and `bands` 0 take the part's own default. Distributed noise
    also follows from the secure sum's `bits`, the `dimension` of an update, how many survive at
    least (`minimum`; four fifths of the cohort) and which part of their noise is `honest`: not of
    hostile clients, nor, against the server, of colluding ones.
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
    bits: int | None = None
    dimension: int | None = None
    minimum: int | None = None
    honest: float = 1.0
    sizing: str | None = None
    against: str = "server"
    rounds: int | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None

    @property
    def unknown(self) -> str:
        """Which one is asked for. Raises `Refused` unless it is exactly one."""
        drawn = self.cohort or self.rate or self.separation or self.sampler == "full"
        drawn = drawn or (self.mechanism == "local_gaussian" and self.sampler != "cyclic")
        given = (self.epsilon, self.noise_multiplier, self.rounds, drawn or None)
        missing = [name for name, value in zip(_UNKNOWN, given, strict=True) if value is None]
        if len(missing) != 1:
            found = "nothing is left to solve for" if not missing else f"{len(missing)} are missing"
            raise Refused(f"give all but one of {_FLAGS}: that one is solved for; {found}")
        return missing[0]

    def witness(self) -> Witness:
        """The rule of the draw. Raises `Refused` where a number is missing or does not fit."""
        part = find("sampler", self.sampler, "--sampler")
        if self.sampler == "cyclic":
            return _witness(part(separation=self.separation or 1), self.separation or 1)
        if self.sampler == "full" or self.mechanism == "local_gaussian":
            return _witness(find("sampler", "full", "--sampler")(), self.population or 1)
        if self.rate is not None:
            rate = self.rate
            return Witness("poisson", rate, ADD_REMOVE, partial(PoissonSampled, rate))
        if self.population is None or self.cohort is None:
            raise Refused(f"the sampler {self.sampler!r} needs --population and --cohort")
        keys = {"cap": self.cap} if self.sampler == "truncated_poisson" else {}
        return _witness(part(size=self.cohort, **keys), self.population)

    def refuse_unused(self) -> None:
        """Raises `Refused` for numbers that the sampler or mechanism would ignore."""
        given = {
            "--population": self.population,
            "--cohort": self.cohort,
            "--sampling-rate": self.rate,
            "--cap": self.cap or None,
            "--separation": self.separation,
        }
        used = dict(_USES)[self.sampler]
        if self.mechanism == "local_gaussian" and self.sampler != "cyclic":
            used = ()  # nothing is amplified there, whoever is drawn
        if self.distributed and self.sampler == "cyclic":
            used = (*used, "--population")
        wrong = [flag for flag, value in given.items() if value is not None and flag not in used]
        if wrong:
            raise Refused(
                f"{', '.join(wrong)}: not for {self.mechanism} with the sampler {self.sampler!r}, "
                f"which takes {', '.join(used) or 'neither population nor cohort'}"
            )
        if self.rate is not None and (self.population or self.cohort):
            raise Refused("--sampling-rate is --cohort / --population; give either it or these")
        distributed = {
            "--bits": self.bits,
            "--dimension": self.dimension,
            "--minimum": self.minimum,
            "--sizing": self.sizing,
        }
        if not self.distributed and (wrong := [f for f, v in distributed.items() if v is not None]):
            raise Refused(f"{', '.join(wrong)}: for --mechanism skellam or discrete_gaussian")
        if self.distributed and not (self.bits and self.dimension):
            raise Refused(f"{self.mechanism} needs --bits and --dimension: they make its grid")
        if self.bands and self.mechanism != "banded":
            raise Refused("--bands is for --mechanism banded; leave it out, or choose that")

    def event(self, noise: float) -> Event:
        return self.part(noise).event(self.witness(), 1)

    def part(self, noise: float | None = None) -> Mechanism:
        keys: dict[str, Any] = {"bands": self.bands} if self.bands else {}
        keys |= {"sizing": self.sizing} if self.sizing else {}
        part = find("mechanism", self.mechanism, "--mechanism")
        mechanism: Mechanism = part(noise_multiplier=noise, **keys)
        return mechanism.resolved(self._setting()) if self.distributed else mechanism

    @property
    def distributed(self) -> bool:
        return self.mechanism in ("skellam", "discrete_gaussian")

    def _setting(self) -> Setting:
        """The constants that distributed noise depends on."""
        size = self.cohort or self.population
        if size is None:
            raise Refused(f"{self.mechanism} needs --cohort, or --population (full, cyclic)")
        if self.sampler == "cyclic":
            size = max(1, size // (self.separation or 1))
        random = self.sampler == "poisson"
        return Setting(
            size=size,
            capacity=self.population or size if random else size,
            minimum=self.minimum or math.ceil(0.8 * size),
            honest=self.honest,
            added=self.honest if self.against == "readers" else 1.0,
            bits=self.bits or 32,
            length=self.dimension or 1,
            against=self.against,
            fewest=self.minimum or math.ceil(0.8 * size),
        )

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
            **self.grid_json(),
        }

    def grid_json(self) -> Mapping[str, Any]:
        """Of distributed noise: its grid, a client's share, and the price of few bits."""
        asked = self.question
        if not asked.distributed:
            return {}
        mechanism: Any = asked.part(asked.noise_multiplier)
        grid = mechanism.grid()
        return {
            "step": grid.step,
            "share_deviation": grid.share * grid.step,
            "encoded": grid.l2 * grid.step / mechanism.clip,
            "wraps": grid.wraps,
            "bytes_per_client": grid.length * (asked.bits or 0) / 8,
            "clip": mechanism.clip,
        }


def solve(question: Question) -> Answer:
    """Raises `Refused` where there is no answer, or not exactly one question."""
    unknown = question.unknown
    question.refuse_unused()
    noise = question.noise_multiplier
    if noise is not None and not 0.0 <= noise <= LARGEST_NOISE:
        raise Refused(f"--noise-multiplier is {noise}; expected a number up to {LARGEST_NOISE:g}")
    if question.epsilon is not None and not question.epsilon > 0:
        raise Refused(f"--epsilon is {question.epsilon}; expected a positive number")
    try:
        if unknown != "cohort":
            refuse_unaccountable(question.event(1.0), question.accountant)
        whole = replace(question, **_solved(question, unknown))
        return Answer(whole, unknown, whole.guarantee())
    except AccountingError as error:
        hint = "; or more --bits, as rounding alone makes rows longer" if question.bits else ""
        raise Refused(f"{error}{hint}") from error


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
        return {"separation": _separation(asked, fits, epsilon)}
    if asked.population is None and asked.sampler == "poisson":
        return {"rate": _rate(lambda rate: fits(replace(asked, rate=rate)), epsilon)}
    if asked.population is None:
        raise Refused(f"the sampler {asked.sampler!r} needs --population")
    most = min(asked.population, asked.cap or asked.population)

    def drawn(n: int) -> bool:
        return fits(replace(asked, cohort=n))

    if asked.sampler == "truncated_poisson":
        return {"cohort": _some(_scanned(drawn, most), "every cohort that was tried", epsilon)}
    return {"cohort": _some(largest(drawn, most), "a cohort of one", epsilon)}


def _scanned(fits: Callable[[int], bool], most: int) -> int:
    """A large count that fits: small ones need not where larger do (they are cut more often).

    Not proved to be the largest: counts a fifth apart are tried, from above, then those between.
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


def _separation(asked: Question, fits: Callable[[Question], bool], epsilon: float) -> int:
    """The smallest separation that fits; none above the number of rounds changes anything."""
    least = getattr(asked.part(), "bands", 1)
    most = max(asked.rounds or 1, least)

    def short(n: int) -> bool:
        return not fits(replace(asked, separation=least + n - 1))

    if not fits(replace(asked, separation=most)):
        raise Unaccountable(
            f"even one round per client spends more than epsilon {epsilon:g}; raise the noise"
        )
    return least + largest(short, most - least + 1)


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
