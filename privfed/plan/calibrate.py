"""What `privfed calibrate` answers: any one of noise, rounds, cohort or epsilon from the others.

A question becomes the configuration of a run, and its answer is that run's plan: hostile and
colluding clients, aborts and few bits cost here what they cost there, and what is refused there is
refused here. A sampling rate alone stands for a population of that quotient, without a secure sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from accounting.calibration import largest
from accounting.errors import AccountingError, Unaccountable
from accounting.guarantee import Guarantee, guarantee, refuse_unaccountable
from accounting.releases import LARGEST_NOISE
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.errors import Refused
from privfed.parts import find
from privfed.plan.plan import Plan, plan
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.privacy.shared_noise import shares_noise

_SMALLEST_RATE = 1e-9
_MOST_CLIENTS = 10**15
"""Of the population that stands for a sampling rate: quotients as fine as floats are."""
_MOST_ROUNDS = 1_000_000
_UNKNOWN = ("epsilon", "noise_multiplier", "rounds", "cohort")
_FLAGS = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"
_KEYS = {
    "mechanism": "privacy.mechanism",
    "sampler": "cohort.sampler",
    "delta": "privacy.delta",
    "accountant": "privacy.accountant",
    "cap": "cohort.cap",
    "separation": "cohort.separation",
    "bands": "privacy.bands",
    "bits": "secure.bits",
    "minimum": "secure.minimum",
    "threshold": "secure.threshold",
    "colluders": "secure.colluders",
    "byzantine": "aggregation.byzantine",
    "dropout": "cohort.dropout",
    "sizing": "privacy.sizing",
    "rounds": "run.rounds",
}
"""A number that may be given, and the key of a run file that it is."""
_ASKED_BY = {
    "rate": ("--sampling-rate", "--population", "--cohort"),
    "clients": ("--population",),
    "size": ("--cohort",),
    "cap": ("--cap",),
    "separation": ("--separation",),
}
"""A constant that the rule of a draw follows from, and the flags that give it."""


@dataclass(frozen=True)
class Question:
    """A mechanism over a sampler, one of whose numbers is None: that is asked for.

    `population` and `cohort` are whole clients; `rate` replaces both where the draw follows from
    their quotient alone, and `separation` under cyclic draws. What is None or 0 takes the part's
    own default. Noise that clients share follows from the `dimension` of an update, and from the
    secure sum's numbers: `protocol` is "masks" there if nothing else is given.
    """

    mechanism: str
    sampler: str
    delta: float
    accountant: str
    population: int | None = None
    cohort: int | None = None
    rate: float | None = None
    cap: int | None = None
    separation: int | None = None
    bands: int | None = None
    protocol: str | None = None
    bits: int | None = None
    dimension: int | None = None
    minimum: int | None = None
    threshold: float | None = None
    colluders: float | None = None
    byzantine: int | None = None
    dropout: float | None = None
    sizing: str | None = None
    against: str | None = None
    rounds: int | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None

    @property
    def drawing(self) -> type[Any]:
        """The class of the sampler."""
        return find("sampler", self.sampler, "--sampler")

    @property
    def noising(self) -> type[Any]:
        """The class of the mechanism."""
        return find("mechanism", self.mechanism, "--mechanism")

    @property
    def distributed(self) -> bool:
        """Whether clients share the noise, in a secure sum."""
        return bool(self.noising.trust == "sum")

    @property
    def secured(self) -> bool:
        return self.protocol is not None or self.distributed

    @property
    def spaced(self) -> bool:
        """Whether a separation is what a draw follows from."""
        return "separation" in self.drawing.constants

    @property
    def whoever(self) -> bool:
        """Whether nothing is amplified, so that it does not matter who is drawn."""
        return bool(self.noising.trust == "client") and not self.spaced

    @property
    def unknown(self) -> str:
        """Which one is asked for. Raises `Refused` unless it is exactly one."""
        draw = {"rate", "size", "separation"} & {*self.drawing.constants}
        drawn = self.cohort or self.rate or self.separation or not draw or self.whoever
        given = (self.epsilon, self.noise_multiplier, self.rounds, drawn or None)
        missing = [name for name, value in zip(_UNKNOWN, given, strict=True) if value is None]
        if len(missing) != 1:
            what = "nothing is left to solve for" if not missing else f"{len(missing)} are missing"
            raise Refused(f"give all but one of {_FLAGS}: that one is solved for; {what}")
        return missing[0]

    def refuse_unused(self) -> None:
        """Raises `Refused` for numbers that the sampler or mechanism would ignore."""
        given = {
            "--population": self.population,
            "--cohort": self.cohort,
            "--sampling-rate": self.rate,
            "--cap": self.cap,
            "--separation": self.separation,
        }
        used = tuple(flag for name in self.drawing.constants for flag in _ASKED_BY.get(name, ()))
        if self.whoever:
            used = ()
        if self.secured:
            used = (*used, "--population")
        wrong = [flag for flag, value in given.items() if value is not None and flag not in used]
        if wrong:
            raise Refused(
                f"{', '.join(wrong)}: not for {self.mechanism} with the sampler {self.sampler!r}, "
                f"which takes {', '.join(used) or 'neither population nor cohort'}"
            )
        if self.rate is not None and not 0.0 < self.rate <= 1.0:
            raise Refused(f"--sampling-rate is {self.rate}; expected a number above 0, up to 1")
        if self.rate is not None and (self.population or self.cohort):
            raise Refused("--sampling-rate is --cohort / --population; give either it or these")
        if self.rate is not None and self.secured:
            raise Refused("sums have whole clients: give --population and --cohort, no rate")
        self._refuse_unsecured()
        if self.bands and "bands" not in self.noising.model_fields:
            raise Refused("--bands is for --mechanism banded; leave it out, or choose that")

    def _refuse_unsecured(self) -> None:
        """Raises `Refused` for numbers of a secure sum without one, and for one without these."""
        sums = ("bits", "minimum", "threshold", "colluders", "dropout")
        shared = ("dimension", "sizing", "against")
        for names, right in ((sums, self.secured), (shared, self.distributed)):
            wrong = [f"--{name}" for name in names if getattr(self, name) is not None]
            if wrong and not right:
                also = "" if names is shared else ", or with a --protocol"
                raise Refused(
                    f"{', '.join(wrong)}: for --mechanism skellam or discrete_gaussian{also}"
                )
        if self.distributed and not (self.bits and self.dimension):
            raise Refused(f"{self.mechanism} needs --bits and --dimension: they make its grid")
        if self.distributed and not (self.cohort or self.population):
            raise Refused(f"{self.mechanism} needs --cohort, or --population (full, cyclic)")

    def config(self) -> Config:
        """A run like this. Raises `Refused`."""
        raw: Raw = {"secure": {}, "data": {}}
        for name, key in _KEYS.items():
            if (value := getattr(self, name)) is not None:
                section, _, key = key.partition(".")
                raw.setdefault(section, {})[key] = value
        if self.secured:
            raw["secure"]["protocol"] = self.protocol or "masks"
        if self.against:
            raw["privacy"]["against"] = self.against
        if self.noise_multiplier is not None:
            raw["privacy"]["noise_multiplier"] = self.noise_multiplier
        elif self.epsilon is not None:
            raw["privacy"]["epsilon"] = self.epsilon
        raw["data"]["clients"] = self._clients()
        if not self.drawing.derives_size:
            raw["cohort"]["size"] = self.cohort or 1
        return assembled(raw)

    def _clients(self) -> int:
        """How many are declared; with a separation, as many of them as it divides."""
        apart = (self.separation or 1) if self.spaced else 1
        return max(apart, (self.population or 1) // apart * apart)

    def cost(self) -> RoundCost:
        """What a round costs. Raises `Refused` where a number is missing or does not fit."""
        if self.rate is not None:
            mechanism = self.noising(**({"bands": self.bands} if self.bands else {}))
            quotient = Fraction(self.rate).limit_denominator(_MOST_CLIENTS)
            drawn = self.drawing(size=quotient.numerator)
            return RoundCost(mechanism, drawn.witness(0, quotient.denominator))
        counted = {"size", "rate"} & {*self.drawing.constants} and not self.whoever
        if counted and (self.population is None or self.cohort is None):
            raise Refused(f"the sampler {self.sampler!r} needs --population and --cohort")
        return round_cost(self.config(), self._length)

    def plan(self) -> Plan:
        """What `privfed check` would answer. Raises `Refused`."""
        return plan(self.config(), length=self._length)

    @property
    def _length(self) -> int:
        return self.dimension or 1

    def guarantee(self) -> Guarantee:
        """Of all rounds. Raises `AccountingError`."""
        assert self.rounds is not None
        event = self.cost().event(self.noise_multiplier)
        return guarantee(Counter({event: self.rounds}), self.delta, self.accountant)


@dataclass(frozen=True)
class Answer:
    """A question with nothing missing, and what it guarantees."""

    question: Question
    solved: str
    bound: Guarantee
    cost: RoundCost

    def to_json(self) -> Mapping[str, Any]:
        """What `privfed calibrate --json` prints."""
        asked, witness = self.question, self.cost.witness
        return {
            "epsilon": self.bound.epsilon,
            "accountants": self.bound.by_accountant,
            "accountant": asked.accountant,
            "noise_multiplier": asked.noise_multiplier,
            "sampling_rate": witness.rate,
            "rounds": asked.rounds,
            "delta": asked.delta,
            "relation": self.bound.relation,
            "sampler": asked.sampler,
            "unit": self.bound.unit,
            "mechanism": asked.mechanism,
            "population": asked.population,
            "cohort": asked.cohort,
            "separation": witness.separation,
            "solved": self.solved,
            **self.sum_json(),
        }

    def sum_json(self) -> Mapping[str, Any]:
        """Of a secure sum: how likely it aborts; of shared noise: its grid and a client's share."""
        asked = self.question
        if not asked.secured:
            return {}
        stated = {"aborts": self.cost.aborts, "admitted": self.cost.limits.admitted}
        mechanism = self.cost.mechanism.at(asked.noise_multiplier)
        if not shares_noise(mechanism):
            return stated
        grid = mechanism.grid()
        return {
            **stated,
            "honest": mechanism.honest,
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
            refuse_unaccountable(question.cost().event(1.0), question.accountant)
        if question.rate is None and unknown == "noise_multiplier":
            planned = question.plan()
            whole = replace(question, noise_multiplier=planned.noise_multiplier)
            return Answer(whole, unknown, planned.guarantee, planned.cost)
        whole = replace(question, **_solved(question, unknown))
        if whole.rate is None:
            planned = whole.plan()
            return Answer(whole, unknown, planned.guarantee, planned.cost)
        return Answer(whole, unknown, whole.guarantee(), whole.cost())
    except AccountingError as error:
        hint = "; or more --bits, as rounding alone makes rows longer" if question.bits else ""
        raise Refused(f"{error}{hint}") from error


def _solved(asked: Question, unknown: str) -> dict[str, Any]:
    if unknown == "epsilon":
        return {}
    epsilon = asked.epsilon
    assert epsilon is not None
    if unknown == "noise_multiplier":
        assert asked.rounds is not None
        return {unknown: asked.cost().solve(asked.rounds, epsilon, asked.delta, asked.accountant)}

    def fits(tried: Question) -> bool:
        return tried.guarantee().epsilon <= epsilon

    if unknown == "rounds":
        beyond = f"epsilon {epsilon:g} allows more than {_MOST_ROUNDS} rounds"
        most = largest(lambda n: fits(replace(asked, rounds=n)), _MOST_ROUNDS, beyond)
        return {unknown: _some(most, "even one round", epsilon)}
    return _cohort(asked, fits, epsilon)


def _cohort(asked: Question, fits: Callable[[Question], bool], epsilon: float) -> dict[str, Any]:
    """The largest cohort, or rate, or the smallest separation, within `epsilon`."""
    constants = asked.drawing.constants
    if asked.spaced:
        return {"separation": _separation(asked, fits, epsilon)}
    if asked.population is None and "rate" in constants:
        return {"rate": _rate(lambda rate: fits(replace(asked, rate=rate)), epsilon)}
    if asked.population is None:
        raise Refused(f"the sampler {asked.sampler!r} needs --population")
    most = min(asked.population, asked.cap or asked.population)

    def drawn(n: int) -> bool:
        return fits(replace(asked, cohort=n))

    if "cap" in constants:
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
    mechanism = asked.noising(**({"bands": asked.bands} if asked.bands else {}))
    least = len(mechanism.coefficients())
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


def _some(count: int, what: str, epsilon: float) -> int:
    if count == 0:
        raise Unaccountable(
            f"{what} spends more than epsilon {epsilon:g}; raise the noise, epsilon or delta"
        )
    return count


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
        changes["2x the cohort"] = {"cohort": 2 * asked.cohort, "cap": asked.cap and 2 * asked.cap}
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
