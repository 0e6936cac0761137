r"""Flower's accounted central DP, run on two neighbouring populations and tested against its claim.

    privfed audit --function experiments.audits_elsewhere.flower_central_dp:twice_as_many \
        --delta 1e-5

Flower's code runs unchanged and without a network. `FedAvg.configure_train` samples the cohort,
`DifferentialPrivacyServerSideFixedClipping.aggregate_train` clips, averages and adds noise, and its
`RdpAccountant` states epsilon. Clients' replies are made here: the target sends one direction, and
all others the opposite one.

The claimed relation is add-or-remove-one: the accountant charges noise of `NOISE_MULTIPLIER` times
the clipping norm, without amplification. But the cohort has a fixed size. If the population is
larger, a target that joins displaces another client: the sum moves by two clipping norms, with the
probability that the target is sampled. If the target is present and sends nothing instead
(zero-out), the sum moves by one, as charged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
COHORT, LENGTH, CLIP, NOISE_MULTIPLIER, DELTA = 5, 4, 1.0, 1.0, 1e-5
_PULL = 100.0
_LEAST = 1e-12
"""A row that is practically zero, because Flower's clipping divides by its norm."""
_TARGET = 1
"""The number of the target's node."""

logging.getLogger("flwr").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Nodes:
    """The part of Flower's grid that a strategy uses: the ids of connected nodes."""

    ids: tuple[int, ...]

    def get_node_ids(self) -> list[int]:
        """Returns all nodes' ids."""
        return list(self.ids)


def accountant(clients: int) -> Any:
    """Returns Flower's accountant for `clients` clients, in the mode that the strategy uses."""
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    config = PrivacyConfig(DELTA, clients, relation, SamplingMethod.NO_AMPLIFICATION)
    return RdpAccountant(config)


def strategy(clients: int, cohort: int) -> Any:
    """Returns Flower's accounted strategy, which samples `cohort` of `clients` in every round."""
    averaging = FedAvg(
        fraction_train=0.5 * cohort / clients,  # at least the cohort takes part
        fraction_evaluate=0.0,
        min_train_nodes=cohort,
        min_available_nodes=cohort,
    )
    return DifferentialPrivacyServerSideFixedClipping(
        averaging, NOISE_MULTIPLIER, CLIP, cohort, accountant=accountant(clients)
    )


def model_of(arrays: Any) -> Numbers:
    """Returns the numbers `[k]` of a model of one array."""
    return np.asarray(arrays.to_numpy_ndarrays()[0], dtype=float)


def reply(message: Any, model: Numbers) -> Any:
    """Returns a client's answer: its `model` `[k]`, and equal weights, as required."""
    content = {"arrays": ArrayRecord([model]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def outside_of_a_run() -> None:
    """Allows Flower to make messages without a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@dataclass(frozen=True)
class CentralDp:
    """One round of Flower's server over a population of `clients`, with or without the target.

    If `leaves`, the neighbour has one client fewer (add/remove one). Otherwise the target is
    present and sends almost nothing (zero-out). As a member it sends `row` in its first number.
    """

    clients: int
    leaves: bool
    row: float = _PULL

    def __call__(self, member: bool, generator: np.random.Generator) -> Numbers:
        """Returns the new model `[LENGTH]` from a start of zeros; Flower uses its own
        generators.
        """
        outside_of_a_run()
        server = strategy(self.clients, COHORT)
        present = member or not self.leaves
        others = range(_TARGET + 1, _TARGET + self.clients)
        nodes = Nodes((_TARGET, *others) if present else (*others,))
        instructions = server.configure_train(
            1, ArrayRecord([np.zeros(LENGTH)]), ConfigRecord({}), nodes
        )
        replies = [reply(message, self._row(message, member)) for message in instructions]
        return model_of(server.aggregate_train(1, replies)[0])

    def profile(self, delta: float) -> float:
        """Returns the epsilon that Flower's own accountant states at `delta` after the round."""
        flower = accountant(self.clients)
        flower.compose(GaussianPrivacyEvent(NOISE_MULTIPLIER, COHORT, self.clients))
        return float(flower.get_epsilon(delta))

    def _row(self, message: Any, member: bool) -> Numbers:
        """Returns the row `[LENGTH]` of the client that `message` addresses."""
        row = np.zeros(LENGTH)
        row[0] = -_PULL
        if message.metadata.dst_node_id == _TARGET:
            row[0] = self.row if member else _LEAST
        return row


one_more = CentralDp(COHORT + 1, leaves=True)
twice_as_many = CentralDp(2 * COHORT, leaves=True)
ten_times_as_many = CentralDp(10 * COHORT, leaves=True)
everybody_takes_part = CentralDp(COHORT, leaves=False)
its_place_stays = CentralDp(2 * COHORT, leaves=False)
sends_no_number = CentralDp(COHORT, leaves=False, row=float("nan"))
