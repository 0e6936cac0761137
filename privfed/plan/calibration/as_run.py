"""The run that a question of `privfed calibrate` describes.

A question is converted to a run's configuration, and answered by that run's plan. Therefore,
Byzantine and colluding clients, aborts and a small number of bits have the same cost as in the run,
and the same combinations are refused. If only a sampling rate is given, the answer uses integer
numbers of clients with this ratio, and there is no secure sum.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from accounting.guarantee import Guarantee, guarantee
from accounting.noises import LARGEST_NOISE
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.plan import Plan, plan
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.plan.solved_parts import with_solved_parts
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.setting import whole_sites
from privfed.sampling.cohort import Witness

_OF_CLIENTS = ("sites_per_client",)
_OF_CLIENT_PARTIES = {
    "against": (
        "distinguishes the server from readers, but with --sites one guarantee holds against both"
    ),
    "byzantine": "counts clients, but with --sites the sites add the noise; count Byzantine sites "
    "among --colluders",
    "sampling_rate": "is given, but --sites needs numbers of clients; give --population and "
    "--cohort",
}
"""Flags that have no meaning or no proof if sites are the parties, with the reasons."""


def given_flags(question: CalibrationQuestion, names: Iterable[str]) -> list[str]:
    """Returns the flags of the fields in `names` that are not None."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(question, name) is not None]


def part_of_sites(question: CalibrationQuestion) -> float | None:
    """Returns `secure.colluders`: with sites, `--colluders` divided by the number of sites.

    Without sites, `--colluders` is already a fraction of a cohort. None if it is not given.
    """
    if question.colluders is None or not question.sites:
        return question.colluders
    return question.colluders / question.sites


def refuse_contradictory_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags that need --sites if it is absent, or exclude it if given."""
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
    """Raises `Refused` for `--sites-per-client` or a number of colluders without `--sites`."""
    if flags := given_flags(question, _OF_CLIENTS):
        raise Refused(
            f"{flags[0]} is given, but --sites is missing; set --sites to the number of sites"
        )
    if question.colluders is not None and not 0 <= question.colluders < 1:
        raise Refused(
            f"--colluders is {question.colluders:g}; expected a fraction of a cohort below 1, "
            "or with --sites a number of sites"
        )


def _refuse_colluders_that_are_no_sites(question: CalibrationQuestion) -> None:
    """Raises `Refused` unless `--colluders` (with sites) is None or one of 1, ..., sites - 1."""
    sites, colluders = question.sites, question.colluders
    if colluders is None or not sites:
        return
    if sites == 1:
        raise Refused(
            "--sites is 1, but with --colluders no site would remain whose noise counts; set "
            "--sites to 2 or more"
        )
    if colluders != int(colluders):
        raise Refused(
            f"--colluders is {colluders:g}, but with --sites it is an integer number of sites; "
            f"{_instead_of_part(colluders, sites)}"
        )
    if not 1 <= colluders < sites:
        raise Refused(
            f"--colluders is {colluders:g} of {sites} sites; expected at least 1, since any site "
            f"may be curious, and at most {sites - 1}, so that the noise of at least one site "
            "counts"
        )


def _instead_of_part(part: float, sites: int) -> str:
    """Returns advice on an integer to use instead of `part`, a value of `--colluders`.

    That is the same fraction of the `sites`, if below `sites`; else any from 1 to `sites` - 1.
    """
    if 0 < part < 1 and (count := whole_sites(part, sites)) < sites:
        return f"use {count}, which is secure.colluders = {part:g} of {sites} sites"
    return f"use an integer from 1 to {sites - 1}"


_MOST_CLIENTS = 10**15
"""Largest population by which a sampling rate is represented as a ratio of integers."""
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
"""Keys of a run file by optional flag; `part_of_sites` converts --colluders."""


def config_of(question: CalibrationQuestion) -> Config:
    """Returns the configuration of the run of `question`. Raises `Refused` if it is invalid."""
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
    """Returns the result of `config_of` with the values that its parts solve for.

    Raises `Refused` for an invalid configuration, and if no values are possible.
    """
    return with_solved_parts(config_of(question), {})


def _clients(question: CalibrationQuestion) -> int:
    """Returns the population (1 if it is not given), as a number that the sampler can divide.

    It is rounded down to a positive multiple of `separation` or `slots`, if the sampler uses one.
    """
    apart = (getattr(question, question.spacing) or 1) if question.spaced else 1
    return max(apart, (question.population or 1) // apart * apart)


def plan_of(question: CalibrationQuestion) -> Plan:
    """Returns the plan of the run of `question`. Raises `Refused` if there is none."""
    return plan(solved_config_of(question), length=question.dimension or 1)


def cost_of(question: CalibrationQuestion) -> RoundCost:
    """Returns the cost of a round of the run of `question`. Raises `Refused` if there is none."""
    if question.sampling_rate is not None:
        return RoundCost(mechanism_of(question), _witness_of(question, question.sampling_rate))
    counted = {"size", "rate"} & {*question.sampler_class.constants}
    complete = question.population is not None and question.cohort is not None
    if counted and not question.draw_is_irrelevant and not complete:
        raise Refused(
            f"--sampler is {question.sampler!r}, but --population or --cohort is missing; give both"
        )
    return round_cost(solved_config_of(question), question.dimension or 1)


def guarantee_of(question: CalibrationQuestion) -> Guarantee:
    """Returns the guarantee over `question.rounds`. Raises `AccountingError` if there is none."""
    assert question.rounds is not None
    event = cost_of(question).event(question.noise_multiplier)
    return guarantee(Counter({event: question.rounds}), question.delta, question.accountant)


def mechanism_of(question: CalibrationQuestion) -> Mechanism:
    """Returns the mechanism that `question` names, with default keys except for `bands`."""
    bands = {"bands": question.bands} if question.bands else {}
    mechanism: Mechanism = find("mechanism", question.mechanism, "--mechanism")(**bands)
    return mechanism


def _witness_of(question: CalibrationQuestion, rate: float) -> Witness:
    """Returns the sampling rule for a cohort size and number of clients with about this `rate`."""
    quotient = Fraction(rate).limit_denominator(_MOST_CLIENTS)
    sampler = find("sampler", question.sampler, "--sampler")(size=quotient.numerator)
    witness: Witness = sampler.witness(0, quotient.denominator)
    return witness


_FLAGS_OF = {
    "rate": ("--sampling-rate", "--population", "--cohort"),
    "clients": ("--population",),
    "size": ("--cohort",),
    "cap": ("--cap",),
    "separation": ("--separation",),
    "slots": ("--slots",),
    "groups": ("--groups",),
}
"""The flags that determine each constant of a sampling rule."""
_OF_SUMS = ("bits", "minimum", "threshold", "colluders", "dropout")
_OF_SHARED_NOISE = ("dimension", "sizing", "against")


def refuse_contradictory_question(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags that would be ignored or contradict each other."""
    refuse_contradictory_sites(question)
    _refuse_ignored(question)
    _refuse_rate(question)
    _refuse_flags_of_sums(question)
    _refuse_numbers_of_other_mechanisms(question)
    if question.in_bands and question.slots is None:
        raise Refused(
            "--slots is missing, but it cannot be solved for, since the noise is not monotone in "
            "the number of slots; set --slots"
        )
    noise, epsilon = question.noise_multiplier, question.epsilon
    if noise is not None and not 0.0 <= noise <= LARGEST_NOISE:
        raise Refused(
            f"--noise-multiplier is {noise}; expected a number from 0 to {LARGEST_NOISE:g}"
        )
    if epsilon is not None and not epsilon > 0:
        raise Refused(f"--epsilon is {epsilon}; expected a positive number")


def _refuse_numbers_of_other_mechanisms(question: CalibrationQuestion) -> None:
    """Raises `Refused` for --bands or --buffers with a mechanism that has none."""
    for name, mechanism in (("bands", "banded"), ("buffers", "blt")):
        if getattr(question, name) and name not in _fields(question):
            raise Refused(
                f"--{name} is given, but has an effect only with --mechanism {mechanism}; set "
                f"that mechanism, or remove --{name}"
            )


def _fields(question: CalibrationQuestion) -> set[str]:
    return {*find("mechanism", question.mechanism, "--mechanism").model_fields}


def _refuse_ignored(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags of sampling without effect for this sampler and mechanism."""
    given = {
        "--population": question.population,
        "--cohort": question.cohort,
        "--sampling-rate": question.sampling_rate,
        "--cap": question.cap,
        "--separation": question.separation,
        "--slots": question.slots,
        "--groups": question.groups,
    }
    constants = () if question.draw_is_irrelevant else question.sampler_class.constants
    used = [flag for constant in constants for flag in _FLAGS_OF.get(constant, ())]
    if question.secured:
        used.append("--population")
    ignored = [flag for flag, value in given.items() if value is not None and flag not in used]
    if ignored:
        raise Refused(
            f"{', '.join(ignored)} is given, but has no effect for {question.mechanism} with the "
            f"sampler {question.sampler!r}, which uses "
            f"{', '.join(used) or 'neither population nor cohort'}; leave {', '.join(ignored)} out"
        )


def _refuse_rate(question: CalibrationQuestion) -> None:
    """Raises `Refused` for a rate outside (0, 1], or with numbers of clients or a secure sum."""
    if question.sampling_rate is None:
        return
    if not 0.0 < question.sampling_rate <= 1.0:
        raise Refused(
            f"--sampling-rate is {question.sampling_rate}; expected a number above 0, up to 1"
        )
    if question.population or question.cohort:
        raise Refused(
            "--sampling-rate is given together with --cohort or --population, but equals --cohort "
            "/ --population; give either the rate or the other two"
        )
    if question.secured:
        raise Refused(
            "--sampling-rate is given, but a secure sum needs integer numbers of clients; give "
            "--population and --cohort instead"
        )


def _refuse_flags_of_sums(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags of a secure sum if there is none, and if a sum lacks a flag."""
    shares_noise = question.shares_noise
    _refuse_given(question, _OF_SUMS, question.secured, ", or with a --protocol")
    _refuse_given(question, _OF_SHARED_NOISE, shares_noise, "")
    if shares_noise and not (question.bits and question.dimension):
        raise Refused(
            f"--mechanism is {question.mechanism}, but --bits or --dimension is missing, and both "
            "determine the grid of its noise; give both"
        )
    if question.mechanism_class.joint and not question.population:
        raise Refused(
            f"--mechanism is {question.mechanism}, but --population, the number of clients that "
            "add noise together, is missing; give --population"
        )
    if shares_noise and not (question.cohort or question.population):
        raise Refused(
            f"--mechanism is {question.mechanism}, but the size of a cohort is missing; give "
            "--cohort or, with the samplers full and cyclic, --population"
        )


def _refuse_given(
    question: CalibrationQuestion, names: tuple[str, ...], have_meaning: bool, alternative: str
) -> None:
    """Raises `Refused` for given flags unless `have_meaning`; its text ends with `alternative`."""
    given = given_flags(question, names)
    if given and not have_meaning:
        raise Refused(
            f"{', '.join(given)} is given, but has an effect only with --mechanism "
            f"discrete_gaussian or skellam{alternative}"
        )
