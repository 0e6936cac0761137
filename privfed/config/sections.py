"""The sections of a run file: their own keys, and which parts they name.

Each part's file owns its further keys; `privfed.config.config` assembles the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from accounting.noises import LARGEST_NOISE
from privfed.config.attack_keys import AttackKeys
from privfed.core.parts import Part
from privfed.models.start import Start
from privfed.sampling.availability import Devices


class Run(Part):
    rounds: int = Field(120, ge=1, le=999_999)
    """How many rounds; fewer where the budget is spent before."""
    randomness: Literal["secret", "seeded"] = "secret"
    """"secret": noise and cohorts come from the operating system. "seeded": all follow from `seed`,
    which is a simulation, and said wherever epsilon is."""
    seed: int = Field(0, ge=0)
    """Where data are split and dealt, models start and, if seeded, all else is drawn from."""
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda', or 'cuda:' and a number",
    )
    """Where clients train; "auto" takes a GPU where there is one."""
    workers: int = Field(1, ge=1, le=256)
    """Processes on this machine, that share each cohort."""
    threads: int = Field(1, ge=1, le=1024)
    """Threads of each process; one is fastest for small models."""
    trainer: Literal["auto", "stacked", "loop"] = "auto"
    """"stacked": all models of a chunk as one computation. "loop": one after the other. "auto":
    what is faster, as measured when the run starts."""
    chunk: int = Field(0, ge=0)
    """How many clients are trained together, or as many of them as a GPU's memory holds; 0:
    measured when the run starts."""
    precision: Literal["full", "mixed", "fast"] = "full"
    """Of local steps: "mixed" computes them in bfloat16 where that is safe and pays, and nothing
    else (`privfed.models.precision`). "fast": "mixed" where that is faster, as measured when the
    run starts."""
    evaluate_every: int = Field(5, ge=1)
    """The model is scored after every so many rounds, and after the last."""
    simulation_metrics: bool = False
    """Whether what no epsilon covers is written too: cohorts, examples, bytes, times of devices.
    Only simulations may."""
    client_measures: bool = False
    """Whether clients' losses, accuracies and differences are measured, which no epsilon covers.
    Only simulations may."""
    checkpoint_every: int = Field(10, ge=1)
    """A checkpoint is written after every so many rounds; between them lie releases."""
    heads: str = ""
    """A file outside of the run directory that gets each head of the ledger: see
    `privfed.store.kept_heads`. It is kept as an absolute path."""

    watch: list[str] = []
    """Who else is told of each evaluation (`privfed.run.watch`): "csv", "tensorboard", or a class
    of your own, "module:name"."""

    @field_validator("watch")
    @classmethod
    def _once(cls, watch: list[str]) -> list[str]:
        if len(set(watch)) < len(watch):
            raise ValueError("expected each name once")
        return watch

    @field_validator("heads")
    @classmethod
    def _absolute(cls, heads: str) -> str:
        return str(Path(heads).absolute()) if heads else ""


class Data(Part):
    clients: int = Field(500, ge=1, le=100_000_000)
    """About how many clients there are: a declared public constant, never counted."""
    population: str = ""
    """A name for these people: runs of one name can be composed."""
    holdout: Literal["test", "clients", "examples", "none"] = "test"
    """What is public and scored on: "test" examples of the source, a part of the "clients", or a
    part of every client's "examples", which is a simulation. "none": nothing is, and who wants to
    know how good a model is asks clients (`evaluation.by`)."""
    holdout_fraction: float = Field(0.2, gt=0, lt=1)
    """That part, where the source has no test set of its own."""
    setting: Literal["cross_device", "cross_silo"] = "cross_device"
    """"cross_device": clients need not return. "cross_silo": they do, and may keep a state."""
    sites: int = Field(0, ge=0, le=10_000)
    """How many sites hold the clients, as hospitals do patients: a declared public constant, never
    counted. 0: there are none. A site may hold nobody."""
    sites_per_client: int = Field(1, ge=1, le=64)
    """At how many sites, at most, one client has rows: declared, and refused beyond it."""
    site_partition: Literal["even", "size", "label", "elsewhere"] = "even"
    """Where no column says at which site a row is: "even": as many clients at each. "size": shares
    1, 1/2, 1/3, … of them. "label": by their most frequent label, so that sites' labels differ.
    "elsewhere": clients are at sites on machines of their own (`privfed federation run`)."""
    whereabouts: ClassVar[frozenset[str]] = frozenset(
        {"sites", "sites_per_client", "site_partition"}
    )

    @model_validator(mode="after")
    def _consistent_sites(self) -> Self:
        if not self.sites and (self.sites_per_client > 1 or self.site_partition != "even"):
            key = "sites_per_client" if self.sites_per_client > 1 else "site_partition"
            raise ValueError(
                f"{key} is {getattr(self, key)!r}, but sites is 0; declare how many sites there "
                "are, a public constant"
            )
        if self.sites and self.sites_per_client > self.sites:
            raise ValueError(
                f"sites_per_client is {self.sites_per_client}, but there are {self.sites} sites "
                "(sites); expected at most as many"
            )
        return self


class Client(Part):
    lr: float = Field(0.5, ge=0)
    """The learning rate of local steps; left out, what suits the loss."""
    epochs: int = Field(2, ge=1, le=10_000)
    """How often a client goes through its examples in a round."""
    steps: int = Field(0, ge=0)
    """Local steps of a round at most, where it then ends; 0: as many as `epochs` has."""
    local_epochs: int = Field(0, ge=0)
    """So many of a round's epochs, the first, train what stays with a client (`model.local`) alone,
    and the others what is shared; 0: all train both."""
    batch_size: int = Field(10, ge=1)
    """Examples in a local step."""
    stragglers: float = Field(0.0, ge=0, le=1)
    """The part of a cohort that does fewer epochs, drawn each round."""
    drop_stragglers: bool = False
    """Whether stragglers' updates are left out, instead of counted."""


class CohortKeys(Part):
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of the drawn, or of sites where these are the parties, who drops out of a sum: a third each
    before sharing keys, before sending, and before unmasking (`privfed.secure.limits`)."""


class Privacy(Part):
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=True)
    """The budget: noise is calibrated so that all rounds spend it. Infinite: clipped, and no
    noise."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """The noise's deviation over the clip, instead of a budget; epsilon follows."""
    delta: float = Field(1e-4, gt=0, lt=1)
    """The probability that epsilon's promise may fail with."""
    accountant: Literal["tightest", "rdp", "pld"] = "tightest"
    """Whose upper bound counts; "tightest" is the least of those that are proved."""
    against: Literal["server", "readers"] = "server"
    """Whose guarantee the budget gates, where noise is distributed and there are two."""
    prior: list[str] = []
    """Directories of earlier runs over the same clients, whose spending counts before the first
    round."""
    disjoint: list[str] = []
    """Runs of whose clients nobody is in this one: a model of theirs is a start that needs no
    counting (`privfed.auditing.prior_runs`)."""


class Aggregation(Part):
    before: list[str] = []
    """Pre-aggregators, in order, whose mixtures of rows the rule is given."""
    bucket_size: int = Field(2, ge=1, le=10_000)
    """How many rows a bucket of `before = ["bucketing"]` averages."""
    clipping_radius: float | None = Field(None, gt=0)
    """The norm that `before = ["clipping"]` cuts rows to."""
    root: int = Field(0, ge=0)
    """So many of the public test examples are the server's own, to train on; none is scored."""
    weights: Literal["auto", "uniform", "examples"] = "auto"
    """Of clients in a sum. "auto": alike under privacy and for robust rules, else by their
    examples."""
    most_examples: int = Field(0, ge=0)
    """Where clients weigh by their examples, none counts for more than so many; 0: no bound."""
    silo_weights: list[Annotated[float, Field(ge=0)]] = []
    """One declared weight for each silo, instead of `weights`."""
    byzantine: int = Field(0, ge=0)
    """How many of a cohort may be hostile."""


class Secure(Part):
    parties: Literal["auto", "clients", "sites"] = "auto"
    """Who takes part in sums: "clients", each for itself, or "sites", each of which sends one sum
    of its clients' rows and adds noise for all of them. "auto": sites where there are sites."""
    capacity: int = Field(0, ge=0, le=100_000_000)
    """The largest cohort that a sum can hold; 0: the largest that can be drawn."""
    minimum: int = Field(0, ge=0)
    """Abort where fewer clients sent their row; where sites are the parties, fewer sites."""
    simulate: Literal["messages", "arithmetic"] = "messages"
    """"messages": every party plays its part. "arithmetic": the same sums without cryptography."""
    deadline: float = Field(0.0, ge=0, le=86_400)
    """Seconds that a site on a machine of its own has to train, whoever it drew: its row leaves
    when they are over. 0: as soon as it can, which is a simulation."""


class Audit(Part):
    canaries: int = Field(0, ge=0, le=1_000_000)
    """Made-up clients that test the claim (`privfed.auditing.canaries.clients`)."""
    kind: Literal["update", "input"] = "update"
    """"update": a canary sends a secret direction at the clip. "input": it holds made-up examples
    and trains on them as anybody does, and is scored by what the final model has learned of them
    (`privfed.auditing.canaries.learned`)."""
    examples: int = Field(8, ge=1, le=10_000)
    """How many examples a canary of inputs holds."""
    craft_steps: int = Field(20, ge=0, le=10_000)
    """How many steps its examples are improved in, at public models; 0: they are random."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """Of the lower bounds on epsilon."""

    @property
    def by_inputs(self) -> bool:
        """Whether there are canaries that hold examples."""
        return self.canaries > 0 and self.kind == "input"

    @model_validator(mode="after")
    def _consistent_inputs(self) -> Self:
        defaults = type(self).model_fields
        for key in ("examples", "craft_steps"):
            if self.kind == "update" and getattr(self, key) != defaults[key].default:
                raise ValueError(
                    f"{key} is {getattr(self, key)}, and canaries that send updates hold no "
                    'examples; set kind = "input", or remove the key'
                )
        return self


class EvaluationKeys(Part):
    by: Literal["test", "clients"] = "test"
    """Who scores the model: nobody's data but the public "test" set; or "clients" as well, on
    examples that they hold back, in rounds of their own, which are charged (`privfed.metrics`)."""
    every: int = Field(0, ge=0)
    """Every so many rounds, one evaluates by clients instead of training; run.rounds is a multiple
    of it. 0: as often as run.evaluate_every says."""
    measures: list[str] = ["accuracy"]
    """What clients measure; their one noise covers all of it."""
    group: str = ""
    """A declared column of categories, or "label": every measure for each of its groups, too. On
    the public test set it is the first measure, and how far groups lie apart."""
    holdout: float = Field(0.2, ge=0, lt=1)
    """The part of its examples that each client holds back to score on, evenly over them; 0: it
    scores on all those that it trains on."""
    size: int = Field(0, ge=0)
    """The expected cohort that evaluates; 0: as many as train."""
    personal: bool = False
    """Whether clients score the models that they use for themselves, where they have such."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """Of the intervals."""

    @field_validator("measures")
    @classmethod
    def _once(cls, measures: list[str]) -> list[str]:
        if not measures or len(set(measures)) < len(measures):
            raise ValueError("expected at least one name, and each once")
        return measures


class Stop(Part):
    patience: int = Field(0, ge=0)
    """So many evaluations in a row without a better one end the run; 0: none does."""
    by: str = ""
    """The measure that has to get better; "": the first one."""


class Budget(Part):
    evaluation: float = Field(0.05, gt=0, lt=1)
    """The part of the run's variance budget (of all its 1/z²) that evaluation by clients takes."""
    statistics: float = Field(0.0, ge=0, lt=1)
    """The part of all that a description of the same people takes before the run (`privfed
    describe`); 0: it is told what it may cost."""


@dataclass(frozen=True)
class Section:
    """Keys of its own, and the parts named in it: naming key -> (kind, default name).

    `field` is where a `Config` holds its own keys; empty where it has none.
    """

    field: str
    keys: type[Part]
    parts: Mapping[str, tuple[str, str]]


SECTIONS = {
    "run": Section("run", Run, {}),
    "data": Section(
        "data",
        Data,
        {
            "source": ("source", "digits"),
            "partition": ("partition", ""),
            "shift": ("shift", "none"),
        },
    ),
    "model": Section(
        "start", Start, {"name": ("model", "logistic"), "loss": ("loss", "cross_entropy")}
    ),
    "client": Section(
        "client",
        Client,
        {"objective": ("objective", "sgd"), "schedule": ("client_schedule", "constant")},
    ),
    "client.privacy": Section("", Part, {"mechanism": ("client_mechanism", "none")}),
    "compression": Section("", Part, {"name": ("compression", "none")}),
    "server": Section(
        "",
        Part,
        {"optimizer": ("optimizer", "fedavgm"), "schedule": ("server_schedule", "constant")},
    ),
    "cohort": Section(
        "cohort",
        CohortKeys,
        {"sampler": ("sampler", "poisson"), "availability": ("availability", "always")},
    ),
    "privacy": Section("privacy", Privacy, {"mechanism": ("mechanism", "gaussian")}),
    "aggregation": Section("aggregation", Aggregation, {"rule": ("rule", "mean")}),
    "secure": Section("secure", Secure, {"protocol": ("protocol", "none")}),
    "attack": Section("attackers", AttackKeys, {"name": ("attack", "none")}),
    "audit": Section("audit", Audit, {}),
    "evaluation": Section("evaluation", EvaluationKeys, {}),
    "stop": Section("stop", Stop, {}),
    "budget": Section("budget", Budget, {}),
    "devices": Section("devices", Devices, {}),
}


FORMAT = 1
