"""A simulated run, scored every ten rounds: by the public test set, by its clients, and exactly.

Charges and releases are not stored, and no epsilon covers the exact scores: not for real clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import nan

import numpy as np
from torch import Tensor

from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.ledger import Charge
from privfed.config.config import Config
from privfed.core.ranks import SINGLE_PROCESS
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.data.holdout import with_held_back
from privfed.round.round import run_round
from privfed.run.evaluation.charged_measures import charged_measures
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.run.world import shared_world

_DIGITS = 5


@dataclass(frozen=True)
class Scored:
    """A model after `round`: `accuracy` and `loss` on the public test set, and the spent epsilon.

    `estimate`, from `low` to `high`, is the clients' noised first measure, and `truth` the same
    without noise; NaN if clients did not evaluate.
    """

    case: str
    arm: str
    seed: int
    round: int
    accuracy: float
    loss: float
    epsilon: float
    truth: float = nan
    estimate: float = nan
    low: float = nan
    high: float = nan

    def cells(self) -> dict[str, str]:
        return {
            key: f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)
            for key, value in asdict(self).items()
        }

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Scored:
        kinds = {"str": str, "int": int, "float": float}
        return cls(**{key: kinds[cls.__annotations__[key]](text) for key, text in row.items()})


class Unkept:
    """A ledger and a release store that store nothing."""

    def charge(self, round: int, event: Event) -> Charge:
        return Charge(round, event, "")

    def write(self, *_: object) -> None: ...


def less_held_back(config: Config, streams: Streams) -> Federation:
    """Returns the run's clients without their held-out examples, although no client evaluates."""
    return with_held_back(load_population(config, streams), config.evaluation.holdout)[0]


def scored_rounds(config: Config, case: str, arm: str, held_back: bool = False) -> Iterator[Scored]:
    """Yields the run of `config`, scored at each of its regular rounds.

    With `held_back`, clients hold out the examples on which they would evaluate, and only a test
    set scores.
    """
    setup = prepare(config, load=less_held_back if held_back else load_population)
    books, state, run = Unkept(), setup.initial_state(), config.run
    world = shared_world(setup, books, books, SINGLE_PROCESS)
    for round in range(1, run.rounds + 1):
        state = run_round(round, setup.algorithm_in(round), state, world)
        if round % run.evaluate_every:
            continue
        public = setup.network.evaluate(state.params, setup.federation.test)
        yield Scored(
            case=case,
            arm=arm,
            seed=run.seed,
            round=round,
            accuracy=public["accuracy"],
            loss=public["loss"],
            epsilon=spent_after(setup, round),
            **_by_clients(setup, round, state.params, state.evaluation.get("released")),
        )


def spent_after(setup: Setup, round: int) -> float:
    """Returns epsilon of the charges up to `round`."""
    privacy = setup.plan.config.privacy
    return guarantee(setup.plan.spending(round), privacy.delta, privacy.accountant).epsilon


def _by_clients(
    setup: Setup, round: int, params: Tensor, released: Tensor | None
) -> dict[str, float]:
    """Returns the first measure as `released` in this round, and its exact value."""
    if released is None or round not in setup.plan.config.evaluation_rounds:
        return {}
    name, estimate = next(iter(charged_measures(setup, released).items()))
    return {
        "truth": truth(setup, round, params)[name],
        "estimate": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
    }


def truth(setup: Setup, round: int, params: Tensor) -> dict[str, float]:
    """Returns each measure over all clients, on their held-out examples, without noise."""
    measures = setup.executor.measures
    if measures is None:
        return {}
    everybody = np.arange(measures.federation.population_size)
    rows = measures.rows(everybody, params, round)
    estimates = measures.row.estimates(rows.double().sum(0), std=0.0, rate=1.0)[""]
    return {name: estimate.value for name, estimate in estimates.items()}
