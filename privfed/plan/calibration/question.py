"""The flags of `privfed calibrate`: what they ask for."""

from __future__ import annotations

from dataclasses import dataclass

from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.noise_on_model import InBands
from privfed.sampling.cohort import InGroups, Sampler

_ALL_BUT_ONE = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"
_SPACINGS = ("separation", "slots")
"""Constants of draws that say in how many rounds a client takes part once."""
RUN_FILE_KEYS = {"clients": "population", "size": "cohort"}
"""Keys of a run file, and the flags that ask about the same."""
_SOLVABLE = frozenset({"rate", "size", *_SPACINGS})
"""The constants of a draw that can be solved for."""


@dataclass(frozen=True)
class CalibrationQuestion:
    """A mechanism over a sampler, one of whose numbers is None: that is asked for.

    Each field is a flag of `privfed calibrate`. `population` and `cohort` are whole clients; `rate`
    replaces both where the draw follows from their quotient alone, and so do `separation` under
    cyclic draws and `slots` under random allocation. What is None or 0 takes the part's own
    default. Noise that clients share follows from the `dimension` of an update, and from the secure
    sum's numbers: `protocol` is "masks" there if nothing else is given. With `sites`, these hold
    the clients and are the parties: `minimum` and `colluders` are then whole sites, and without
    them `colluders` is a part of a cohort.
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
    slots: int | None = None
    groups: int | None = None
    sites: int | None = None
    sites_per_client: int | None = None
    bands: int | None = None
    buffers: int | None = None
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
    def by_sites(self) -> bool:
        """Whether sites add the noise, or are the parties of the sums."""
        return bool(self.sites) and (self.secured or self.mechanism_class.trust == "client")

    @property
    def secured(self) -> bool:
        """Whether rows are summed by a protocol that shows nobody's."""
        return self.protocol is not None or self.shares_noise

    @property
    def spacing(self) -> str:
        """The constant by which a draw spaces a client's rounds; empty where it does not."""
        return next((each for each in _SPACINGS if each in self.sampler_class.constants), "")

    @property
    def spaced(self) -> bool:
        """Whether a client takes part once in so many rounds."""
        return bool(self.spacing)

    @property
    def in_bands(self) -> bool:
        """Whether clients are in groups so that noise may have bands."""
        grouped = isinstance(self.sampler_class(), InGroups)
        return grouped and isinstance(self.mechanism_class(), InBands)

    @property
    def chooses_bands(self) -> bool:
        """Whether there are as many bands as need the least noise."""
        return not self.bands and self.in_bands

    @property
    def draw_is_irrelevant(self) -> bool:
        """Whether nothing is amplified: clients noise their own rows, whoever else is drawn."""
        own_noise = self.mechanism_class.trust == "client" and not self.by_sites
        return own_noise and not self.spaced and not self.mechanism_class.joint

    @property
    def draw_is_given(self) -> bool:
        """Whether nothing of the draw is left to solve for."""
        solvable = _SOLVABLE & {*self.sampler_class.constants}
        given = self.cohort or self.rate or self.separation or self.slots
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
