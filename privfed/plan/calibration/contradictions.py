"""Which flags of `privfed calibrate` contradict each other, or would be ignored."""

from __future__ import annotations

from accounting.noises import LARGEST_NOISE
from privfed.errors import Refused
from privfed.parts import find
from privfed.plan.calibration.as_run import given_flags, refuse_contradictory_sites
from privfed.plan.calibration.question import CalibrationQuestion

_FLAGS_OF = {
    "rate": ("--sampling-rate", "--population", "--cohort"),
    "clients": ("--population",),
    "size": ("--cohort",),
    "cap": ("--cap",),
    "separation": ("--separation",),
    "slots": ("--slots",),
    "groups": ("--groups",),
}
"""A constant that the rule of a draw follows from, and the flags that give it."""
_OF_SUMS = ("bits", "minimum", "threshold", "colluders", "dropout")
_OF_SHARED_NOISE = ("dimension", "sizing", "against")


def refuse_contradictory_question(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags that would be ignored, or that cannot be meant together."""
    refuse_contradictory_sites(question)
    _refuse_ignored(question)
    _refuse_rate(question)
    _refuse_flags_of_sums(question)
    _refuse_numbers_of_other_mechanisms(question)
    if question.in_bands and question.slots is None:
        raise Refused(
            "how many slots are enough depends on how groups divide them, and more are not always "
            "better: give --slots"
        )
    noise, epsilon = question.noise_multiplier, question.epsilon
    if noise is not None and not 0.0 <= noise <= LARGEST_NOISE:
        raise Refused(f"--noise-multiplier is {noise}; expected a number up to {LARGEST_NOISE:g}")
    if epsilon is not None and not epsilon > 0:
        raise Refused(f"--epsilon is {epsilon}; expected a positive number")


def _refuse_numbers_of_other_mechanisms(question: CalibrationQuestion) -> None:
    """Raises `Refused` for keys of a mechanism that is not asked about."""
    for name, mechanism in (("bands", "banded"), ("buffers", "blt")):
        if getattr(question, name) and name not in _fields(question):
            raise Refused(f"--{name} is for --mechanism {mechanism}; leave it out, or choose that")


def _fields(question: CalibrationQuestion) -> set[str]:
    """The mechanism's own keys."""
    return {*find("mechanism", question.mechanism, "--mechanism").model_fields}


def _refuse_ignored(question: CalibrationQuestion) -> None:
    """Raises `Refused` for constants of a draw that neither sampler nor mechanism reads."""
    given = {
        "--population": question.population,
        "--cohort": question.cohort,
        "--sampling-rate": question.rate,
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
            f"{', '.join(ignored)}: not for {question.mechanism} with the sampler "
            f"{question.sampler!r}, which takes "
            f"{', '.join(used) or 'neither population nor cohort'}"
        )


def _refuse_rate(question: CalibrationQuestion) -> None:
    """Raises `Refused` for a sampling rate that is none, or beside what it stands for."""
    if question.rate is None:
        return
    if not 0.0 < question.rate <= 1.0:
        raise Refused(f"--sampling-rate is {question.rate}; expected a number above 0, up to 1")
    if question.population or question.cohort:
        raise Refused("--sampling-rate is --cohort / --population; give either it or these")
    if question.secured:
        raise Refused("sums have whole clients: give --population and --cohort, no rate")


def _refuse_flags_of_sums(question: CalibrationQuestion) -> None:
    """Raises `Refused` for numbers of a secure sum without one, and for one without these."""
    shares_noise = question.shares_noise
    _refuse_given(question, _OF_SUMS, question.secured, ", or with a --protocol")
    _refuse_given(question, _OF_SHARED_NOISE, shares_noise, "")
    if shares_noise and not (question.bits and question.dimension):
        raise Refused(f"{question.mechanism} needs --bits and --dimension: they make its grid")
    if question.mechanism_class.joint and not question.population:
        raise Refused(f"{question.mechanism} needs --population: who shares the noise")
    if shares_noise and not (question.cohort or question.population):
        raise Refused(f"{question.mechanism} needs --cohort, or --population (full, cyclic)")


def _refuse_given(
    question: CalibrationQuestion, names: tuple[str, ...], have_meaning: bool, alternative: str
) -> None:
    """Raises `Refused` where any flag of these `names` is given and has no meaning."""
    given = given_flags(question, names)
    if given and not have_meaning:
        raise Refused(
            f"{', '.join(given)}: for --mechanism skellam or discrete_gaussian{alternative}"
        )
