"""The sections of a run file: their own keys, and the parts that they name.

Each part's file defines its further keys; `privfed.config.config` assembles the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from accounting.noises import LARGEST_NOISE
from privfed.config.attack_keys import AttackKeys
from privfed.core.parts import Part, or_auto
from privfed.models.start import Start
from privfed.sampling.availability import Devices


class Run(Part):
    rounds: int = Field(120, ge=1, le=999_999)
    """The number of rounds; fewer if the budget is spent earlier."""
    randomness: Literal["secret", "seeded"] = "secret"
    """"secret": noise and cohorts come from the operating system. "seeded": all randomness derives
    from `seed`; the run is a simulation, and is labelled so wherever epsilon is stated."""
    seed: int = Field(0, ge=0)
    """The seed of data splits, partitions and model initialisation and, if seeded, of all
    randomness."""
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda', or 'cuda:' and a number",
    )
    """The device on which clients train; "auto" takes a GPU if there is one."""
    workers: int = Field(1, ge=1, le=256)
    """Processes on this machine that divide each cohort among them."""
    threads: int = Field(1, ge=1, le=1024)
    """Threads of each process; one is fastest for small models."""
    trainer: Literal["auto", "stacked", "loop"] = "auto"
    """"stacked": all models of a chunk as one computation. "loop": one after the other. "auto": the
    faster of the two, as measured when the run starts."""
    chunk: int = Field(0, ge=0)
    """The number of clients trained together, limited by a GPU's memory; 0: measured when the run
    starts."""
    precision: Literal["full", "mixed", "fast"] = "full"
    """Precision of local steps. "mixed" computes them in bfloat16 where that is safe and faster,
    and nothing else (`privfed.models.precision`). "fast": "mixed" if it is accurate and 1.1 times
    as fast or more, as measured when the run starts."""
    evaluate_every: int = Field(5, ge=1)
    """The number of rounds between evaluations of the model; the last round is evaluated too."""
    simulation_metrics: bool = False
    """Whether quantities that no epsilon covers are also written: cohorts, examples, bytes, times
    of devices. Simulations only."""
    client_measures: bool = False
    """Whether clients' losses, accuracies and differences are measured, which no epsilon covers.
    Simulations only."""
    checkpoint_every: int = Field(10, ge=1)
    """The number of rounds between checkpoints; in between, only releases are written."""
    heads: str = ""
    """A file outside of the run directory that receives each head of the ledger: see
    `privfed.store.kept_heads`. It is stored as an absolute path."""

    watch: list[str] = []
    """Further receivers of each evaluation (`privfed.run.watch`): "csv", "tensorboard", "mlflow",
    "wandb", or a class of your own, "module:name"."""

    @field_validator("watch")
    @classmethod
    def _distinct(cls, watch: list[str]) -> list[str]:
        if len(set(watch)) < len(watch):
            raise ValueError("expected each name once")
        return watch

    @field_validator("heads")
    @classmethod
    def _absolute(cls, heads: str) -> str:
        return str(Path(heads).absolute()) if heads else ""


class Data(Part):
    clients: int = Field(500, ge=1, le=100_000_000)
    """The approximate number of clients: a declared public constant, never counted."""
    population: str = ""
    """A name for the population: runs with the same name can be composed."""
    holdout: Literal["test", "clients", "examples", "none"] = "test"
    """The public evaluation data: "test" examples of the source, a fraction of the "clients", or a
    fraction of every client's "examples", which is a simulation. "none": there are none, and only
    clients can evaluate the model (`evaluation.by`)."""
    holdout_fraction: float = Field(0.2, gt=0, lt=1)
    """The fraction of examples or clients that is held out. The source "synthetic" generates this
    fraction of further clients instead. Other sources' own test sets do not depend on it."""
    setting: Literal["cross_device", "cross_silo"] = "cross_device"
    """"cross_device": clients need not return. "cross_silo": they return, and may keep state."""
    sites: int = Field(0, ge=0, le=10_000)
    """The number of sites that have the clients' data, such as hospitals: a declared public
    constant, never counted. 0: there are no sites. A site may have no clients."""
    sites_per_client: int = Field(1, ge=1, le=64)
    """The declared largest number of sites at which one client has rows; more are refused."""
    site_partition: Literal["even", "size", "label", "elsewhere"] = "even"
    """The assignment of clients to sites if no column states it. "even": numbers of clients that
    differ by at most one. "size": expected numbers proportional to 1, 1/2, …. "label": by their
    most frequent label. "elsewhere": sites run on their own machines (`privfed federation run`)."""
    site_delays: list[Annotated[int, Field(ge=0, le=1000)]] = []
    """The delay of each site, in rounds (`privfed.sampling.site_delays`); empty: none."""
    storage_keys: ClassVar[frozenset[str]] = frozenset(
        {"sites", "sites_per_client", "site_partition", "site_delays"}
    )

    @model_validator(mode="after")
    def _consistent_sites(self) -> Self:
        if not self.sites and (self.sites_per_client > 1 or self.site_partition != "even"):
            key = "sites_per_client" if self.sites_per_client > 1 else "site_partition"
            raise ValueError(
                f"{key} is {getattr(self, key)!r}, but sites is 0; declare the number of sites, a "
                "public constant"
            )
        if self.sites and self.sites_per_client > self.sites:
            raise ValueError(
                f"sites_per_client is {self.sites_per_client}, but sites is {self.sites}; expected "
                f"at most {self.sites}"
            )
        return self


class Client(Part):
    lr: float = Field(
        0.5, ge=0, description="a number of at least 0, or 'auto'", json_schema_extra=or_auto
    )
    """The learning rate of local steps, or "auto": chosen when the run starts, without private data
    (`privfed.run.rates`). The default is "auto" for networks, and the recommendation of the loss
    for linear models."""
    epochs: int = Field(2, ge=1, le=10_000)
    """The number of local epochs in a round."""
    steps: int = Field(0, ge=0)
    """The largest number of local steps in a round; 0: no limit beyond `epochs`."""
    local_epochs: int = Field(0, ge=0)
    """The number of first epochs of a round that train only the local part of the model
    (`model.local`); the others train the shared part. 0: all train both."""
    batch_size: int = Field(10, ge=1)
    """The number of examples in a local step; the last step of an epoch may have fewer."""
    stragglers: float = Field(0.0, ge=0, le=1)
    """The probability with which a client trains fewer epochs, drawn for each client and round."""
    drop_stragglers: bool = False
    """Whether stragglers' updates are left out instead of counted."""


class CohortKeys(Part):
    dropout: float = Field(0.0, ge=0, lt=1)
    """The probability with which a sampled client, or a site if sites are the parties, drops out of
    a sum: with equal probability before sharing keys, before sending, or before unmasking
    (`privfed.secure.limits`)."""


class Privacy(Part):
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=True)
    """The privacy budget: noise is calibrated so that all rounds together spend it. Infinite:
    clipping without noise."""
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    """The noise multiplier, the standard deviation divided by the clipping norm, instead of a
    budget; epsilon follows."""
    delta: float = Field(1e-4, gt=0, lt=1)
    """The delta of (epsilon, delta)-differential privacy."""
    accountant: Literal["tightest", "rdp", "pld"] = "tightest"
    """The accountant whose upper bound is stated; "tightest": the smallest proved bound."""
    against: Literal["server", "readers"] = "server"
    """The party against which the budget holds, if noise is distributed and there are two
    guarantees."""
    prior: list[str] = []
    """Directories of earlier runs over the same clients; their spending counts before the first
    round."""
    disjoint: list[str] = []
    """Directories of runs that share no client with this one: starting from their models needs no
    accounting (`privfed.auditing.prior_runs`)."""


class Aggregation(Part):
    before: list[str] = []
    """Pre-aggregators, in order, that mix rows before the aggregation rule."""
    bucket_size: int = Field(2, ge=1, le=10_000)
    """The number of rows that a bucket of `before = ["bucketing"]` averages."""
    clipping_radius: float | None = Field(None, gt=0)
    """The norm to which `before = ["clipping"]` clips rows."""
    root: int = Field(0, ge=0)
    """The number of public test examples that the server trains on; they are not used for
    evaluation."""
    weights: Literal["auto", "uniform", "examples"] = "auto"
    """Weights of clients in a sum. "auto": uniform under privacy and for robust rules, otherwise by
    their numbers of examples."""
    most_examples: int = Field(0, ge=0)
    """The largest number of examples that enters one client's weight; 0: no bound."""
    silo_weights: list[Annotated[float, Field(ge=0)]] = []
    """One declared weight for each silo, instead of `weights`."""
    byzantine: int = Field(0, ge=0)
    """The assumed number of Byzantine clients in a cohort."""


class Secure(Part):
    parties: Literal["auto", "clients", "sites"] = "auto"
    """The parties of secure sums: "clients", each for itself, or "sites", each of which sends one
    sum of its clients' rows with noise for all of them. "auto": sites if there are any."""
    capacity: int = Field(0, ge=0, le=100_000_000)
    """The largest cohort that a sum can hold; 0: the largest that can be sampled."""
    minimum: int = Field(0, ge=0)
    """The smallest number of survivors (clients, or sites if these are the parties); with fewer the
    sum aborts."""
    simulate: Literal["messages", "arithmetic"] = "messages"
    """"messages": every party executes the protocol. "arithmetic": the same sums without
    cryptography."""
    deadline: float = Field(0.0, ge=0, le=86_400)
    """The time in seconds after which a site on its own machine sends its row, whichever clients
    were sampled. 0: the site sends as soon as it can, which is a simulation."""


class Audit(Part):
    canaries: int = Field(0, ge=0, le=1_000_000)
    """The number of canary clients that test the guarantee
    (`privfed.auditing.canaries.clients`)."""
    kind: Literal["update", "input"] = "update"
    """"update": a canary sends a secret direction with the clipping norm. "input": it trains on
    synthetic examples as any client does, and is scored by what the final model has learned of them
    (`privfed.auditing.canaries.learned`)."""
    examples: int = Field(8, ge=1, le=10_000)
    """The number of examples of an input canary."""
    craft_steps: int = Field(20, ge=0, le=10_000)
    """The number of steps that optimise a canary's examples at public models; 0: random ones."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """The confidence level of the lower bounds on epsilon."""

    @property
    def by_inputs(self) -> bool:
        """Whether there are canaries of the kind "input", which train on examples."""
        return self.canaries > 0 and self.kind == "input"

    @model_validator(mode="after")
    def _consistent_inputs(self) -> Self:
        defaults = type(self).model_fields
        for key in ("examples", "craft_steps"):
            if self.kind == "update" and getattr(self, key) != defaults[key].default:
                raise ValueError(
                    f"{key} is {getattr(self, key)}, but canaries that send updates hold no "
                    'examples; set kind = "input", or remove the key'
                )
        return self


class EvaluationKeys(Part):
    by: Literal["test", "clients"] = "test"
    """The evaluators of the model: the public "test" set only, or "clients" as well, on held-out
    examples of their own, in separate rounds, which are charged (`privfed.metrics`)."""
    every: int = Field(0, ge=0)
    """The interval, in rounds, of evaluations by clients, which replace training; run.rounds has to
    be a multiple of it. 0: the value of run.evaluate_every."""
    measures: list[str] = ["accuracy"]
    """The metrics that clients measure; they share one noisy release."""
    group: str = ""
    """A declared column of categories, or "label". Clients measure every metric also for each of
    its groups. On the public test set, only the loss's first metric is measured for each group,
    with the differences between groups."""
    holdout: float = Field(0.2, ge=0, lt=1)
    """The fraction of a client's examples held out for evaluation, spread evenly; 0: the client
    evaluates on all its training examples."""
    size: int = Field(0, ge=0)
    """The expected cohort size of an evaluation; 0: the one of training."""
    personal: bool = False
    """Whether clients evaluate their personal models, if they have any."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """The confidence level of the intervals."""

    @field_validator("measures")
    @classmethod
    def _distinct(cls, measures: list[str]) -> list[str]:
        if not measures or len(set(measures)) < len(measures):
            raise ValueError("expected at least one name, and each once")
        return measures


class Stop(Part):
    patience: int = Field(0, ge=0)
    """The number of successive evaluations without improvement that ends the run; 0: no limit."""
    by: str = ""
    """The metric that has to improve; "": the first metric."""


class Budget(Part):
    evaluation: float = Field(0.05, gt=0, lt=1)
    """The fraction of the run's variance budget (the sum of its 1/z²) for evaluation by clients."""
    statistics: float = Field(0.0, ge=0, lt=1)
    """The fraction of the budget that a description of the same clients takes before the run
    (`privfed describe`); 0: `--epsilon` is required."""


@dataclass(frozen=True)
class Section:
    """A section of a run file: the class of its own keys, and its parts.

    `field` is the attribute of `Config` with its own keys, or "". `parts` maps the key that names
    a part to (kind of part, default name).
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
