"""The clients, the methods that give them a model, and the tuned values of each method."""

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
"""Changes to the run file."""
RATES = (0.1, 0.3, 1.0)
CLIPS = {inf: (30.0,), 8.0: (1.0, 3.0), 2.0: (0.3, 1.0)}
"""Clipping norms over which all methods are tuned; under noise, with the two higher rates only.
Updates never reach the clipping norm of the case without noise.
"""
SINGLE_PROCESS, FINE_TUNED = "alone", "fine-tuned"


@dataclass(frozen=True)
class Adaptation:
    """A client's local fine-tuning: the rate and epochs of plain SGD."""

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
    """Changes to the run file, and the candidate values of the method's own keys.

    With `adapts`, clients fine-tune the run's model locally; with `shared` they also use it
    unchanged. Other methods have personal models.
    """

    changes: Changes = ()
    options: tuple[Changes, ...] = ((),)
    adapts: bool = False
    shared: bool = False

    def combinations(self, epsilon: float) -> Iterator[Changes]:
        """Yields the candidates at `epsilon`: rates and, if there is noise, clipping norms."""
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
ARMS = (SINGLE_PROCESS, "FedAvg", FINE_TUNED, *list(METHODS)[1:])
"""All ways in which a client obtains a model; fine-tuned models start from FedAvg's."""


def method_of(arm: str) -> str:
    """Returns the method by which an arm trains."""
    return "FedAvg" if arm in (SINGLE_PROCESS, FINE_TUNED) else arm


def configured(
    setting: str, arm: str, epsilon: float, seed: int, chosen: Changes = (), *further: str
) -> Config:
    """Returns the configuration of a run."""
    changes = (*SETTINGS[setting], *METHODS[method_of(arm)].changes, *chosen)
    return load(
        HERE / "run.toml", (*changes, f"privacy.epsilon={epsilon}", f"run.seed={seed}", *further)
    )
