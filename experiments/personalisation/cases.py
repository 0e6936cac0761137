"""Which clients there are, how they get a model, and what each way is tuned over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from privfed.config.config import Config
from privfed.config.reading import load

HERE = Path(__file__).parent
EPSILONS = (inf, 8.0, 2.0)
TUNING_SEED, SEEDS = 1000, (0, 1, 2)
Changes = tuple[str, ...]
SETTINGS: Mapping[str, Changes] = {
    "two readings": (
        "data.source=experiments.personalisation.small_images:TwoReadings",
        "data.partition=natural",
    ),
    "Dirichlet 0.1": (),
}
"""What differs from the run file."""
RATES = (0.1, 0.3, 1.0)
CLIPS = {inf: (30.0,), 8.0: (1.0, 3.0), 2.0: (0.3, 1.0)}
"""All methods are tuned over these; under noise, over the two higher rates. Updates are never as
long as the clip that goes with no noise."""
ALONE, FINE_TUNED = "alone", "fine-tuned"


@dataclass(frozen=True)
class Adaptation:
    """How a client trains a model on by itself: the rate and epochs of plain SGD."""

    rate: float
    epochs: int

    def __str__(self) -> str:
        return f"rate {self.rate:g} for {self.epochs}"

    @classmethod
    def read(cls, text: str) -> Adaptation:
        _, rate, _, epochs = text.split()
        return cls(float(rate), int(epochs))


def _ways(*epochs: int) -> tuple[Adaptation, ...]:
    return tuple(itertools.starmap(Adaptation, itertools.product(RATES, epochs)))


BY_ITSELF, AFTERWARDS = _ways(20, 60, 180), _ways(1, 5, 20)


@dataclass(frozen=True)
class Method:
    """What differs from the run file, and which of the values of a key of its own are tried.

    With `adapts` clients train the run's model on by themselves; with `shared` they use it as it
    is, too. Others have models of their own.
    """

    changes: Changes = ()
    options: tuple[Changes, ...] = ((),)
    adapts: bool = False
    shared: bool = False

    def combinations(self, epsilon: float) -> Iterator[Changes]:
        """What is tried at `epsilon`: rates and, where there is noise, clips."""
        rates = RATES if epsilon == inf else RATES[1:]
        for rate, clip, option in itertools.product(rates, CLIPS[epsilon], self.options):
            yield (f"client.lr={rate:g}", f"privacy.clip={clip:g}", *option)


METHODS: Mapping[str, Method] = {
    "FedAvg": Method(adapts=True, shared=True),
    "FedPer": Method(('model.local=["3*"]',)),
    "FedRep": Method(('model.local=["3*"]', "client.local_epochs=2")),
    "LG-FedAvg": Method(('model.local=["1*"]',)),
    "Ditto": Method(("client.objective=ditto", "client.strength=0.1")),
    "APFL": Method(
        ("client.objective=apfl",), (("client.adaptive=false",), ("client.adaptive=true",))
    ),
    "IFCA": Method(("client.objective=ifca",), (("client.spread=0.3",), ("client.spread=1",))),
    "Per-FedAvg": Method(("client.objective=per_fedavg", "client.inner_lr=0.1"), adapts=True),
}
ARMS = (ALONE, "FedAvg", FINE_TUNED, *list(METHODS)[1:])
"""All ways in which a client gets a model; those that are fine-tuned begin at FedAvg's."""


def method_of(arm: str) -> str:
    """By which method an arm trains."""
    return "FedAvg" if arm in (ALONE, FINE_TUNED) else arm


def configured(
    setting: str, arm: str, epsilon: float, seed: int, chosen: Changes = (), *further: str
) -> Config:
    """The configuration of a run."""
    changes = (*SETTINGS[setting], *METHODS[method_of(arm)].changes, *chosen)
    return load(
        HERE / "run.toml", (*changes, f"privacy.epsilon={epsilon}", f"run.seed={seed}", *further)
    )
