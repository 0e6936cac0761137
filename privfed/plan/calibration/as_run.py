"""A question of `privfed calibrate` as the run that it is about.

A question becomes the configuration of a run, and its answer is that run's plan: hostile and
colluding clients, aborts and few bits cost here what they cost there, and what is refused there is
refused here. A sampling rate alone stands for a population of that quotient, without a secure sum.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from accounting.guarantee import Guarantee, guarantee
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.errors import Refused
from privfed.parts import find
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.plan import Plan, plan
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.plan.solved_parts import with_solved_parts
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.noise.site_noise import whole_sites
from privfed.sampling.cohort import Witness

_OF_CLIENTS = ("sites_per_client",)
_OF_CLIENT_PARTIES = {
    "against": "tells the server from readers, and with --sites one guarantee holds against both",
    "byzantine": "is about clients, who add no noise where sites do; hostile sites are among "
    "--colluders",
    "rate": "has no clients: with --sites give --population and --cohort",
}
"""What has no meaning, or no proof, where sites are the parties, and why."""


def given_flags(question: CalibrationQuestion, names: Iterable[str]) -> list[str]:
    """Those of the fields `names` that are given, as they are typed."""
    flags = {"rate": "--sampling-rate"}
    return [
        flags.get(name, f"--{name.replace('_', '-')}")
        for name in names
        if getattr(question, name) is not None
    ]


def part_of_sites(question: CalibrationQuestion) -> float | None:
    """The `secure.colluders` that makes whole sites of as many as may collude; None by default."""
    if question.colluders is None or not question.sites:
        return question.colluders
    return question.colluders / question.sites


def refuse_contradictory_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags of sites without any, and for those that sites leave no use."""
    if question.sites is None:
        _refuse_flags_without_sites(question)
        return
    if question.sites < 1:
        raise Refused(f"--sites is {question.sites}; expected one or more")
    for name, why in _OF_CLIENT_PARTIES.items():
        if flags := given_flags(question, [name]):
            raise Refused(f"{flags[0]} {why}; leave it out")
    _refuse_colluders_that_are_no_sites(question)


def _refuse_flags_without_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` where clients are to be at several of no sites, or to collude as sites do"""
    if flags := given_flags(question, _OF_CLIENTS):
        raise Refused(f"{flags[0]} is about sites; say with --sites how many there are")
    if question.colluders is not None and not 0 <= question.colluders < 1:
        raise Refused(
            f"--colluders is {question.colluders:g}; expected a part of a cohort below 1, or with "
            "--sites a whole number of them"
        )


def _refuse_colluders_that_are_no_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` for a part of sites, none of them, or all of them."""
    sites, colluders = question.sites, question.colluders
    if colluders is None or not sites:
        return
    if colluders != int(colluders):
        raise Refused(
            f"--colluders is {colluders:g}; with --sites it is a whole number of them "
            f"(secure.colluders = {colluders:g} would be {whole_sites(colluders, sites)})"
        )
    if not 1 <= colluders < sites:
        raise Refused(
            f"--colluders is {colluders:g} of {sites} sites; expected 1 or more, as every site is "
            f"curious, and at most {sites - 1}, so that one is left whose noise counts"
        )


_MOST_CLIENTS = 10**15
"""The most clients of a population that stands for a sampling rate: quotients as fine as floats."""
_KEYS = {
    "mechanism": "privacy.mechanism",
    "sampler": "cohort.sampler",
    "delta": "privacy.delta",
    "accountant": "privacy.accountant",
    "cap": "cohort.cap",
    "separation": "cohort.separation",
    "slots": "cohort.slots",
    "groups": "cohort.groups",
    "sites": "data.sites",
    "sites_per_client": "data.sites_per_client",
    "bands": "privacy.bands",
    "buffers": "privacy.buffers",
    "bits": "secure.bits",
    "minimum": "secure.minimum",
    "threshold": "secure.threshold",
    "byzantine": "aggregation.byzantine",
    "dropout": "cohort.dropout",
    "sizing": "privacy.sizing",
    "against": "privacy.against",
    "rounds": "run.rounds",
}
"""A flag that may be given, and the key of a run file that it is; colluders are `part_of_sites`."""


def config_of(question: CalibrationQuestion) -> Config:
    """A run like this. Raises `Refused`."""
    raw: Raw = {"secure": {}, "data": {}}
    for name, place in _KEYS.items():
        if (value := getattr(question, name)) is not None:
            section, _, key = place.partition(".")
            raw.setdefault(section, {})[key] = value
    if question.colluders is not None:
        raw["secure"]["colluders"] = part_of_sites(question)
    if question.secured:
        raw["secure"]["protocol"] = question.protocol or "masks"
    if question.noise_multiplier is not None:
        raw["privacy"]["noise_multiplier"] = question.noise_multiplier
    elif question.epsilon is not None:
        raw["privacy"]["epsilon"] = question.epsilon
    if question.chooses_bands:
        raw["privacy"]["bands"] = 0
    raw["data"]["clients"] = _clients(question)
    if not question.sampler_class.derives_size:
        raw["cohort"]["size"] = question.cohort or 1
    return assembled(raw)


@functools.lru_cache(maxsize=16)
def solved_config_of(question: CalibrationQuestion) -> Config:
    """The same with what its parts solve for when a run starts. Raises `Refused`."""
    return with_solved_parts(config_of(question), {})


def _clients(question: CalibrationQuestion) -> int:
    """How many clients are declared; where rounds of one are spaced, as many as that divides."""
    apart = (getattr(question, question.spacing) or 1) if question.spaced else 1
    return max(apart, (question.population or 1) // apart * apart)


def plan_of(question: CalibrationQuestion) -> Plan:
    """What `privfed check` would answer. Raises `Refused`."""
    return plan(solved_config_of(question), length=question.dimension or 1)


def cost_of(question: CalibrationQuestion) -> RoundCost:
    """What a round costs. Raises `Refused` where a number is missing or does not fit."""
    if question.rate is not None:
        return RoundCost(mechanism_of(question), _witness_of(question, question.rate))
    counted = {"size", "rate"} & {*question.sampler_class.constants}
    complete = question.population is not None and question.cohort is not None
    if counted and not question.draw_is_irrelevant and not complete:
        raise Refused(f"the sampler {question.sampler!r} needs --population and --cohort")
    return round_cost(solved_config_of(question), question.dimension or 1)


def guarantee_of(question: CalibrationQuestion) -> Guarantee:
    """What all `rounds` of it guarantee. Raises `AccountingError`."""
    assert question.rounds is not None
    event = cost_of(question).event(question.noise_multiplier)
    return guarantee(Counter({event: question.rounds}), question.delta, question.accountant)


def mechanism_of(question: CalibrationQuestion) -> Mechanism:
    """The mechanism by itself, without a run around it."""
    bands = {"bands": question.bands} if question.bands else {}
    mechanism: Mechanism = find("mechanism", question.mechanism, "--mechanism")(**bands)
    return mechanism


def _witness_of(question: CalibrationQuestion, rate: float) -> Witness:
    """The draw's rule for whole clients whose quotient is `rate`."""
    quotient = Fraction(rate).limit_denominator(_MOST_CLIENTS)
    sampler = find("sampler", question.sampler, "--sampler")(size=quotient.numerator)
    witness: Witness = sampler.witness(0, quotient.denominator)
    return witness
