"""The sections of a run file: their own keys, and which parts they name.

Each part's file owns its further keys; `privfed.config.config` assembles the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from accounting.releases import LARGEST_NOISE
from privfed.models.start import Start
from privfed.parts import Part
from privfed.sampling.devices import Devices


class Run(Part):
    rounds: int = Field(120, ge=1, le=999_999)
    randomness: Literal["secret", "seeded"] = "secret"
    seed: int = Field(0, ge=0)
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda', or 'cuda:' and a number",
    )
    workers: int = Field(1, ge=1, le=256)
    """Processes on this machine, that share each cohort."""
    threads: int = Field(1, ge=1, le=1024)
    trainer: Literal["auto", "stacked", "loop"] = "auto"
    chunk: int = Field(0, ge=0)
    precision: Literal["full", "mixed"] = "full"
    """Of local steps: see `privfed.models.precision`."""
    evaluate_every: int = Field(5, ge=1)
    simulation_metrics: bool = False
    client_measures: bool = False
    checkpoint_every: int = Field(10, ge=1)
    heads: str = ""
    """A file outside of the run directory that gets each head of the ledger: see
    `privfed.store.kept_heads`. It is kept as an absolute path."""

    @field_validator("heads")
    @classmethod
    def _absolute(cls, heads: str) -> str:
        return str(Path(heads).absolute()) if heads else ""


class Data(Part):
    clients: int = Field(500, ge=1, le=100_000_000)
    population: str = ""
    holdout: Literal["test", "clients", "examples"] = "test"
    holdout_fraction: float = Field(0.2, gt=0, lt=1)
    setting: Literal["cross_device", "cross_silo"] = "cross_device"


class Client(Part):
    lr: float = Field(0.5, ge=0)
    epochs: int = Field(2, ge=1, le=10_000)
    batch_size: int = Field(10, ge=1)
    stragglers: float = Field(0.0, ge=0, le=1)
    drop_stragglers: bool = False


class CohortKeys(Part):
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of the drawn, who drops out of a sum: a third each before sharing keys, before sending, and
    before unmasking (`privfed.secure.dropout`)."""


class Privacy(Part):
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=True)
    noise_multiplier: float | None = Field(None, ge=0, le=LARGEST_NOISE)
    delta: float = Field(1e-4, gt=0, lt=1)
    accountant: Literal["tightest", "rdp", "pld"] = "tightest"
    against: Literal["server", "readers"] = "server"
    """Whose guarantee the budget gates, where noise is distributed and there are two."""
    prior: list[str] = []
    disjoint: list[str] = []
    """Runs of whose clients nobody is in this one: a model of theirs is a start that needs no
    counting (`privfed.auditing.prior_runs`)."""


class Aggregation(Part):
    before: list[str] = []
    """Pre-aggregators, in order, whose mixtures of rows the rule is given."""
    bucket_size: int = Field(2, ge=1, le=10_000)
    root: int = Field(0, ge=0)
    """So many of the public test examples are the server's own, to train on; none is scored."""
    weights: Literal["auto", "uniform", "examples"] = "auto"
    silo_weights: list[Annotated[float, Field(ge=0)]] = []
    byzantine: int = Field(0, ge=0)


class Secure(Part):
    capacity: int = Field(0, ge=0, le=100_000_000)
    """The largest cohort that a sum can hold; 0: the largest that can be drawn."""
    minimum: int = Field(0, ge=0)
    """Abort where fewer clients sent their row."""
    simulate: Literal["messages", "arithmetic"] = "messages"


class AttackKeys(Part):
    fraction: float = Field(0.0, ge=0, lt=1)
    """The part of all clients that is byzantine, to the nearest whole client."""
    selection: Literal["once", "round"] = "once"
    stage: Literal["auto", "before_bound", "after_bound"] = "auto"
    """Whether attackers' rows are bounded like others': "auto" is so without a secure sum."""


class Audit(Part):
    canaries: int = Field(0, ge=0, le=1_000_000)
    """Made-up clients that test the claim (`privfed.auditing.canaries.clients`)."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """Of the lower bounds on epsilon."""


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
    "devices": Section("devices", Devices, {}),
}


FORMAT = 1
