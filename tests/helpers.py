"""A small federation to run rounds in, and the checks that each privacy rule has to pass.

The checks are functions, so that a mutation test can show that they fail on a broken mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from scipy import stats

from accounting.ledger import Ledger
from attacks.types import Attack
from defenses.by_sums.mean import Mean
from defenses.types import RowRule
from privfed.client.byzantine import Attackers
from privfed.client.client_states import ClientStates
from privfed.client.exchange import Exchange
from privfed.client.executor import LocalExecutor
from privfed.client.objective import Objective, Sgd
from privfed.client.trainer import LocalTrainer
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.metrics.groups import ClientGroups
from privfed.models.build import build_network
from privfed.models.form import Form
from privfed.models.losses.cross_entropy import CrossEntropy
from privfed.models.network import Network
from privfed.models.recipes import Logistic
from privfed.models.start import Start
from privfed.privacy.mechanism import BoundedSum
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.by_sums import BySums
from privfed.round.round import run_round
from privfed.round.updates import ClientUpdates
from privfed.round.world import World
from privfed.sampling.cohort import Cohort
from privfed.sampling.samplers import Poisson
from privfed.secure.plain_sum import PlainSum
from privfed.server.fedopt import FedAvg

CPU = torch.device("cpu")
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FEATURES, CLASSES = 5, 3
D = (FEATURES + 1) * CLASSES


def population(sizes: Sequence[int], seed: int = 0) -> Federation:
    """Returns clients of the given sizes with random examples, independent between clients."""
    xs, ys = [], []
    for client, size in enumerate(sizes):
        rng = np.random.default_rng([seed, client])
        xs.append(rng.normal(size=(size, FEATURES)).astype(np.float32))
        ys.append(rng.integers(0, CLASSES, size))
    x, y = torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    examples = Examples(x, y, CLASSES)
    return Federation(examples, offsets, examples)


def built(
    recipe,
    shape,
    classes=3,
    *,
    seed=0,
    y=None,
    x=None,
    loss=None,
    constants=None,
    averages=False,
    **start,
):
    """Returns the network of `recipe` for examples of `shape`; `start` holds further keys of
    [model].
    """
    x = torch.zeros(2, *shape) if x is None else x
    y = torch.zeros(2, dtype=torch.int64) if y is None else y
    keys = Streams(seed, simulated=True).at("init")
    examples = Examples(x, y, classes)
    return build_network(
        recipe, examples, Start(**start), loss or CrossEntropy(), keys, CPU, constants, averages
    )


def trainer(federation: Federation, **changes) -> LocalTrainer:
    model, shape = changes.pop("model", Logistic()), changes.pop("shape", (FEATURES,))
    net = changes.pop("network", None) or built(model, shape, CLASSES)
    settings = {"lr": 0.5, "epochs": 2, "batch_size": 4, "way": "stacked"} | changes
    return LocalTrainer(federation, net, Sgd(), **settings)


def set_fields(frozen: object, **values: object) -> None:
    """Changes fields of a frozen dataclass that a test has built."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def follow(local: LocalTrainer, objective: Objective) -> None:
    """Makes `local` train by `objective`, with the groups that the objective needs."""
    set_fields(local, objective=objective)
    if grouping := objective.grouping:
        groups = ClientGroups.by(grouping.by, Form.of(local.federation.examples), 0)
        set_fields(local, groups=groups)


class Memory:
    """A release store that keeps every release in memory."""

    def __init__(self) -> None:
        self.releases: dict[int, list[torch.Tensor]] = {}

    def write(self, charge, released, state) -> None:
        self.releases[charge.round] = [tensor.clone() for tensor in released]


class Seen:
    """A watch that keeps each client's raw row."""

    def __init__(self) -> None:
        self.by_client: dict[int, torch.Tensor] = {}

    def rows(self, round, ids, rows, byzantine) -> None:
        self.by_client |= dict(zip(ids.tolist(), rows, strict=True))

    def judged(self, round, ids, rows, aggregate) -> None:
        pass

    def aggregate(self, round, aggregate) -> None:
        pass


def attackers(
    attack: Attack,
    fraction: float = 0.25,
    *,
    afresh: bool = False,
    unbounded: bool = False,
    clients: int = 8,
    **details,
) -> Attackers:
    """Returns attackers among `clients` clients, selected by a seed."""
    identities, streams = np.arange(clients), Streams(0, simulated=True)
    return Attackers(attack, fraction, afresh, unbounded, identities, streams, clients, **details)


class Rounds:
    """A tiny federation with a real ledger, to run single rounds in."""

    def __init__(
        self,
        folder: Path,
        sizes: Sequence[int] = (3, 9, 4, 1, 6, 12, 5, 2),
        *,
        seed: int = 0,
        simulated: bool = True,
        size: int = 4,
        clip: float = 0.3,
        noise: float = 1.0,
        lr: float = 0.5,
        chunk: int = 3,
        federation: Federation | None = None,
        network: Network | None = None,
        **algorithm,
    ) -> None:
        federation = federation or population(sizes)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "ledger.jsonl"
        self.path.unlink(missing_ok=True)
        self.store = Memory()
        self.local = trainer(federation, lr=lr, **({"network": network} if network else {}))
        self.algorithm = replace(
            Algorithm(
                objective=Sgd(),
                server=FedAvg(),
                rule=Mean(),
                mechanism=CentralGaussian(clip=clip, noise_multiplier=noise),
                sampler=Poisson(size=size),
                summation=PlainSum(),
                clients=len(sizes),
            ),
            **algorithm,
        )
        rule, d = self.algorithm.rule, self.local.network.shapes.length
        states, histories = (
            ClientStates(folder / name, "", federation.clients, width, 0) if width else None
            for name, width in (
                ("private", self.algorithm.objective.state_length(d)),
                ("histories", rule.keeps(d) if isinstance(rule, RowRule) else 0),
            )
        )
        follow(self.local, self.algorithm.objective)
        self.world = World(
            executor=LocalExecutor(
                self.local,
                streams := Streams(seed, simulated),
                chunk,
                by_examples=not (self.algorithm.fixed_divisor or self.algorithm.rule.robust),
                states=states,
            ),
            states=states,
            histories=histories,
            population=federation.population(),
            ledger=Ledger.create(self.path, {}),
            store=self.store,
            streams=streams,
            layers=self.local.network.shapes.sizes,
        )
        self.state = self.algorithm.initial_state(self.local.network.initial_params)

    def attacked_by(self, attackers: Attackers) -> Rounds:
        """Returns these rounds, with `attackers` among the clients."""
        executor = replace(self.world.executor, attackers=attackers)
        self.world = replace(self.world, attackers=attackers, executor=executor)
        return self

    def summed(self, exchange: Exchange, cohort: Cohort) -> BoundedSum:
        """Returns the sum of the first exchange of a round, of a cohort without Byzantine
        clients.
        """
        updates = ClientUpdates(self.algorithm, self.world, self.state, cohort)
        return BySums(self.algorithm.rule, updates).sum(exchange, 0)

    def run(self, rounds: int = 1) -> TrainingState:
        state = self.state
        for round in range(1, rounds + 1):
            state = run_round(round, self.algorithm, state, self.world)
        return state

    def released(self, rounds: int = 1) -> np.ndarray:
        """Runs `rounds` rounds and returns their releases `[rounds, d]`."""
        self.run(rounds)
        return self.released_so_far()

    def released_so_far(self) -> np.ndarray:
        return np.stack([self.store.releases[r][0].numpy() for r in sorted(self.store.releases)])


def rows_of(executor, exchange: Exchange, cohort: Cohort) -> torch.Tensor:
    """Returns the raw rows `[n, m]` of `executor`, in the order of the cohort."""
    chunks = list(executor.chunks(exchange, cohort))
    order = np.argsort(np.concatenate([chunk.ids for chunk in chunks]))
    return torch.cat([chunk.rows for chunk in chunks])[order]


class TwoExchanges(Sgd):
    """An objective with two exchanges per round: one in its prelude, one to train."""

    exchanges: ClassVar[int] = 2

    def prelude(self, params, memory):
        layout = self.layout(len(params))
        yield Exchange("train", {"params": params, "center": torch.zeros_like(params)}, layout)
        return {}


class MoreThanDeclared(TwoExchanges):
    """The same objective, but it declares one exchange."""

    exchanges: ClassVar[int] = 1


def assert_normal(sample: np.ndarray, std: float) -> None:
    """Asserts that `sample` is N(0, std^2), by shape (KS) and scale (chi-square), at 1e-6."""
    flat = np.asarray(sample, dtype=np.float64).ravel()
    shape = stats.kstest(flat / std, "norm").pvalue
    statistic = float((flat**2).sum()) / std**2
    tail = min(stats.chi2.cdf(statistic, len(flat)), stats.chi2.sf(statistic, len(flat)))
    assert shape > 1e-6, f"not N(0, {std:g}^2): KS p = {shape:.2g}"
    assert tail > 1e-6, f"wrong scale: {flat.std():g} for {std:g} (p = {tail:.2g})"
