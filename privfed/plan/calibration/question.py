"""The flags of `privfed calibrate`: what they ask for, and which of them contradict each other."""

from __future__ import annotations

from dataclasses import dataclass

from accounting.releases import LARGEST_NOISE
from privfed.errors import Refused
from privfed.parts import find
from privfed.privacy.mechanism import Mechanism
from privfed.sampling.cohort import Sampler

_ALL_BUT_ONE = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"
_SOLVABLE = frozenset({"rate", "size", "separation"})
"""The constants of a draw that can be solved for."""
_FLAGS_OF = {
    "rate": ("--sampling-rate", "--population", "--cohort"),
    "clients": ("--population",),
    "size": ("--cohort",),
    "cap": ("--cap",),
    "separation": ("--separation",),
}
"""A constant that the rule of a draw follows from, and the flags that give it."""
_OF_SUMS = ("bits", "minimum", "threshold", "colluders", "dropout")
_OF_SHARED_NOISE = ("dimension", "sizing", "against")


@dataclass(frozen=True)
class CalibrationQuestion:
    """A mechanism over a sampler, one of whose numbers is None: that is asked for.

    Each field is a flag of `privfed calibrate`. `population` and `cohort` are whole clients; `rate`
    replaces both where the draw follows from their quotient alone, and `separation` under cyclic
    draws. What is None or 0 takes the part's own default. Noise that clients share follows from the
    `dimension` of an update, and from the secure sum's numbers: `protocol` is "masks" there if
    nothing else is given.
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
    def sampler_class(self) -> type[Sampler]:
        """What `sampler` names. Raises `Refused`."""
        return find("sampler", self.sampler, "--sampler")

    @property
    def mechanism_class(self) -> type[Mechanism]:
        """What `mechanism` names. Raises `Refused`."""
        return find("mechanism", self.mechanism, "--mechanism")

    @property
    def shares_noise(self) -> bool:
        """Whether clients make up the noise together, in a secure sum."""
        return self.mechanism_class.trust == "sum"

    @property
    def secured(self) -> bool:
        """Whether rows are summed by a protocol that shows nobody's."""
        return self.protocol is not None or self.shares_noise

    @property
    def spaced(self) -> bool:
        """Whether a separation is what a draw follows from."""
        return "separation" in self.sampler_class.constants

    @property
    def draw_is_irrelevant(self) -> bool:
        """Whether nothing is amplified: clients noise their own rows, whoever else is drawn."""
        return self.mechanism_class.trust == "client" and not self.spaced

    @property
    def draw_is_given(self) -> bool:
        """Whether nothing of the draw is left to solve for."""
        solvable = _SOLVABLE & {*self.sampler_class.constants}
        given = self.cohort or self.rate or self.separation
        return bool(given or not solvable or self.draw_is_irrelevant)

    @property
    def unknown(self) -> str:
        """Which of four numbers is asked for. Raises `Refused` unless it is exactly one."""
        known = {
            "epsilon": self.epsilon is not None,
            "noise_multiplier": self.noise_multiplier is not None,
            "rounds": self.rounds is not None,
            "cohort": self.draw_is_given,
        }
        missing = [name for name, given in known.items() if not given]
        if len(missing) != 1:
            what = "nothing is left to solve for" if not missing else f"{len(missing)} are missing"
            raise Refused(f"give all but one of {_ALL_BUT_ONE}: that one is solved for; {what}")
        return missing[0]


def refuse_contradictory_question(question: CalibrationQuestion) -> None:
    """Raises `Refused` for flags that would be ignored, or that cannot be meant together."""
    _refuse_ignored(question)
    _refuse_rate(question)
    _refuse_flags_of_sums(question)
    if question.bands and "bands" not in _fields(question):
        raise Refused("--bands is for --mechanism banded; leave it out, or choose that")
    noise, epsilon = question.noise_multiplier, question.epsilon
    if noise is not None and not 0.0 <= noise <= LARGEST_NOISE:
        raise Refused(f"--noise-multiplier is {noise}; expected a number up to {LARGEST_NOISE:g}")
    if epsilon is not None and not epsilon > 0:
        raise Refused(f"--epsilon is {epsilon}; expected a positive number")


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
    if shares_noise and not (question.cohort or question.population):
        raise Refused(f"{question.mechanism} needs --cohort, or --population (full, cyclic)")


def _refuse_given(
    question: CalibrationQuestion, names: tuple[str, ...], have_meaning: bool, alternative: str
) -> None:
    """Raises `Refused` where any flag of these `names` is given and has no meaning."""
    given = [f"--{name}" for name in names if getattr(question, name) is not None]
    if given and not have_meaning:
        raise Refused(
            f"{', '.join(given)}: for --mechanism skellam or discrete_gaussian{alternative}"
        )
