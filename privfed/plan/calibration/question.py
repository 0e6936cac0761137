"""The flags of `privfed calibrate`, each declared once, and the question that they form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from privfed.core.errors import Refused

if TYPE_CHECKING:  # help texts need no parts
    from privfed.privacy.mechanism import Mechanism
    from privfed.sampling.cohort import Sampler

_ALL_BUT_ONE = "--epsilon, --noise-multiplier, --rounds, and the sampling rate or cohort"
_SPACINGS = ("separation", "slots")
"""Keys of samplers that state the number of rounds in which a client takes part once."""
RUN_FILE_KEYS = {"clients": "population", "size": "cohort"}
"""Name of a flag by key of a run file, if the names differ."""
_SOLVABLE = frozenset({"rate", "size", *_SPACINGS})
"""The constants of sampling that can be solved for."""
_KINDS = {"int": (Integral, "an integer"), "float": (Real, "a number")}
"""The number type of a field, and its name in messages, by annotation."""


def _flag(text: str, default: object = None, **limits: object) -> dict[str, Any]:
    """Returns metadata of a flag: its help, its default and its limits.

    Limits are `least` and `most` (inclusive), `above` and `below` (exclusive), or `choices`.
    """
    return {"help": text, "default": default, **limits}


def _optional(text: str, **limits: object) -> Any:
    """Returns a field that is None by default."""
    return field(default=None, metadata=_flag(text, **limits))


_CLIENTS = {"least": 1, "most": 10**12}
_ROUNDS = {"least": 1, "most": 10**6}


@dataclass(frozen=True)
class CalibrationQuestion:
    """A mechanism, a sampler and their numbers; the missing number is solved for.

    Each field is a flag of `privfed calibrate` and an argument of `privfed.calibrate`, with its
    type, help, default and limits. Exactly one of epsilon, noise multiplier, rounds and expected
    cohort must be missing; for other fields, None selects the default of the part.

    The expected cohort is given by `cohort` and `population`; by `sampling_rate`, if sampling
    depends only on their ratio; by `separation` for cyclic sampling; or by `slots` for random
    allocation. Distributed noise also depends on `dimension` and on the numbers of the secure sum,
    whose `protocol` is "masks" by default. With `sites`, sites hold the clients and are the
    parties, so `minimum` and `colluders` are numbers of sites. Without `sites`, `minimum` is a
    number of clients and `colluders` a fraction of a cohort. `examples`, `batch` and
    `gradient_ratio` belong to another question (`privfed.plan.calibration.example_sampling`).
    """

    mechanism: str = field(metadata=_flag("As privacy.mechanism.", "gaussian"))
    sampler: str = field(metadata=_flag("As cohort.sampler.", "poisson"))
    delta: float = field(metadata=_flag("δ, far below 1 / clients.", MISSING, above=0, below=1))
    accountant: str = field(
        metadata=_flag("As privacy.accountant.", "tightest", choices=("tightest", "rdp", "pld")),
    )
    sampling_rate: float | None = _optional(
        "poisson: sampling rate, expected cohort / clients.", above=0, most=1
    )
    population: int | None = _optional("Number of clients, a public constant.", **_CLIENTS)
    cohort: int | None = _optional(
        "Clients per round: expected number, or exact (fixed_size).", **_CLIENTS
    )
    cap: int | None = _optional(
        "truncated_poisson: largest cohort; default: 1.5 x cohort.", **_CLIENTS
    )
    separation: int | None = _optional(
        "cyclic: number of rounds in which a client takes part once.", **_ROUNDS
    )
    slots: int | None = _optional("allocation: number of rounds in an epoch.", **_ROUNDS)
    groups: int | None = _optional(
        "allocation: number of public groups; at least the number of bands.", **_CLIENTS
    )
    protocol: str | None = _optional("As secure.protocol; default for distributed noise: masks.")
    bands: int | None = _optional(
        "banded: number of bands; 0 with allocation: the best one.", least=0, most=10_000
    )
    buffers: int | None = _optional("blt: number of stored rows of noise.", least=1, most=8)
    bits: int | None = _optional("Bits per entry of the secure sum.", least=8, most=62)
    dimension: int | None = _optional(
        "distributed noise: number of entries of an update.", **_CLIENTS
    )
    minimum: int | None = _optional(
        "Smallest number of survivors of a sum: clients, or sites.", **_CLIENTS
    )
    threshold: float | None = _optional(
        "masks: the fraction of a cohort that has to survive.", above=0, most=1
    )
    sites: int | None = _optional("Number of sites that hold the clients.", least=1, most=10_000)
    sites_per_client: int | None = _optional(
        "Largest number of sites at which a client has rows.", least=1, most=64
    )
    colluders: float | None = _optional(
        "secure sums: fraction of a cohort that may collude; with --sites, a number of sites.",
        least=0,
    )
    byzantine: int | None = _optional(
        "Number of Byzantine clients in a cohort, which may add no noise.", **_CLIENTS
    )
    dropout: float | None = _optional(
        "secure sums: the fraction of a cohort that drops out.", least=0, below=1
    )
    sizing: str | None = _optional("As privacy.sizing.", choices=("minimum", "layers"))
    against: str | None = _optional(
        "distributed noise: adversary of the budget.", choices=("server", "readers")
    )
    examples: int | None = _optional(
        "Largest number of examples of a client; compares sampling of examples and of clients.",
        least=1,
        most=1024,
    )
    batch: int | None = _optional("With --examples: expected examples per round.", **_CLIENTS)
    gradient_ratio: float | None = _optional(
        "With --examples: norm of a client's average gradient / an example's; default: 1.",
        least=0,
        most=1,
    )
    rounds: int | None = _optional(
        "Number of rounds; left out: the largest possible one.", **_ROUNDS
    )
    epsilon: float | None = _optional("Budget ε; left out: solved for.", above=0)
    noise_multiplier: float | None = _optional(
        "Standard deviation / clipping norm; left out: solved for.", least=0
    )

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> CalibrationQuestion:
        """Returns the question of these flags by field name; missing flags have their defaults.

        Raises `Refused` for an unknown name or a value of another type.
        """
        known = {each.name: each for each in fields(cls)}
        if unknown := sorted(flags.keys() - known):
            from privfed.core.parts import expected

            meant = cls.flag_meant(unknown[0])
            instead = f"it is {meant!r} here" if meant else expected(unknown[0], [*known])
            raise Refused(f"unknown argument {unknown[0]!r}; {instead}")
        for name, value in flags.items():
            kind = _KINDS.get(str(known[name].type).partition(" ")[0])
            if kind and value is not None and not isinstance(value, kind[0]):
                raise Refused(f"{name} is {value!r}; expected {kind[1]}")
        defaults = {name: each.metadata["default"] for name, each in known.items()}
        return cls(**{**defaults, **flags})

    @classmethod
    def flag_meant(cls, name: str) -> str | None:
        """Returns the field that `name` means, a run file's key or another library's argument.

        Returns None if there is no such field.
        """
        from privfed.config.mistakes import named_elsewhere

        keys = [name, *(key.rpartition(".")[2] for key in named_elsewhere(name.replace("-", "_")))]
        flags = [RUN_FILE_KEYS.get(key, key) for key in keys]
        return next((flag for flag in flags if flag in {each.name for each in fields(cls)}), None)

    @property
    def sampler_class(self) -> type[Sampler]:
        """The class of the `sampler`. Raises `Refused` for an unknown name."""
        from privfed.core.parts import find

        return find("sampler", self.sampler, "--sampler")

    @property
    def mechanism_class(self) -> type[Mechanism]:
        """The class of the `mechanism`. Raises `Refused` for an unknown name."""
        from privfed.core.parts import find

        return find("mechanism", self.mechanism, "--mechanism")

    @property
    def shares_noise(self) -> bool:
        """Whether clients, or sites, contribute shares of the noise in a secure sum."""
        return self.mechanism_class.trust == "sum"

    @property
    def by_sites(self) -> bool:
        """Whether sites are the parties of secure sums, or add noise to their own sums."""
        return bool(self.sites) and (self.secured or self.mechanism_class.trust == "client")

    @property
    def secured(self) -> bool:
        """Whether a secure sum hides the rows of single clients."""
        return self.protocol is not None or self.shares_noise

    @property
    def spacing(self) -> str:
        """The name of the sampler's key for the rounds in which a client is sampled once, or ""."""
        return next((each for each in _SPACINGS if each in self.sampler_class.constants), "")

    @property
    def spaced(self) -> bool:
        """Whether the sampler lets a client take part once in a fixed number of rounds."""
        return bool(self.spacing)

    @property
    def in_bands(self) -> bool:
        """Whether the sampler can divide clients into public groups (`allocation` can, `cyclic`
        cannot), and the mechanism's number of bands depends on that of the groups.
        """
        from privfed.privacy.noise_on_model import InBands
        from privfed.sampling.cohort import InGroups

        grouped = isinstance(self.sampler_class(), InGroups)
        return grouped and isinstance(self.mechanism_class(), InBands)

    @property
    def chooses_bands(self) -> bool:
        """Whether the number of bands is solved for, to minimise the noise."""
        return not self.bands and self.in_bands

    @property
    def draw_is_irrelevant(self) -> bool:
        """Whether sampling does not affect epsilon, since each client adds noise to its own row."""
        own_noise = self.mechanism_class.trust == "client" and not self.by_sites
        return own_noise and not self.spaced and not self.mechanism_class.joint

    @property
    def draw_is_given(self) -> bool:
        """Whether the expected cohort need not be solved for.

        True if `cohort`, `sampling_rate`, `separation` or `slots` is given, if the sampler has no
        such number, or if sampling does not affect epsilon.
        """
        solvable = _SOLVABLE & {*self.sampler_class.constants}
        given = self.cohort or self.sampling_rate or self.separation or self.slots
        return bool(given or not solvable or self.draw_is_irrelevant)

    @property
    def unknown(self) -> str:
        """The name of the number to solve for. Raises `Refused` unless exactly one is missing."""
        known = {
            "epsilon": self.epsilon is not None,
            "noise_multiplier": self.noise_multiplier is not None,
            "rounds": self.rounds is not None,
            "cohort": self.draw_is_given,
        }
        missing = [name for name, given in known.items() if not given]
        if len(missing) != 1:
            what = "nothing is left to solve for" if not missing else f"{len(missing)} are missing"
            raise Refused(
                f"{what}, but exactly one of {_ALL_BUT_ONE} is solved for; give all of these "
                "except one"
            )
        return missing[0]
