"""IFCA: k models; each client trains the one that fits it best.

Source: Ghosh, Chung, Yin & Ramchandran 2020, "An efficient framework for clustered federated
learning", Algorithm 1, with model averaging.

With theta_1 .. theta_k broadcast, a client trains from the theta_j of least loss on its examples,
    w = SGD from theta_j,    and sends  (0, .., w - theta_j, .., 0;  0, .., s, .., 0)  in slots j.
The sums are then those of each cluster's updates, and s times its number of members:

    theta_j <- theta_j + (mean row's update j) / max(mean row's count j / s, f / k)

which is the mean over the members of cluster j if they are at least a fraction f / k of the cohort.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Measures, Memory, Objective, ServerStep, Work
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class Ifca(Objective):
    """IFCA: each client chooses one of k models by its own loss, and trains that model.

    A client sends k (d + 1) numbers and receives k d. Before round 1 fixed random numbers of
    standard deviation `spread` are added to the models. The run's own model is that of the largest
    cluster; all k models are in its checkpoint. Any server except `server.optimizer = "fedavg"` at
    rate 1 is refused: the run's model would then be none of the k. With one cluster it is FedAvg of
    the clients that have examples.

    Under privacy a client's row is one vector under one clip over (updates, count_scale * counts),
    one release, one event: that of FedAvg. The nonzero slots of the row depend on the client's
    choice, but its norm is at most the clip, so nothing else is charged. Means, and the choice of
    the largest cluster, are computed from noised sums; the lower bound of the divisor is a
    constant. The clip scales a row's update and count equally, so means remain weighted means.

    A Byzantine client counts as one member of one cluster if the server sees rows: `admitted`
    removes the rest. If rows are hidden or noised, no party sees how many slots a row fills. The
    clip bounds the norm of all k counts: a Byzantine client has at most the weight of
    clip / count_scale members of one cluster, or 1 / sqrt(k) of that in each; ε is unchanged.
    Without a clip its weight is unbounded. Robust rules on rows do not support these rows.
    """

    measures: ClassVar[Measures] = "loss"
    server_step: ClassVar[ServerStep] = "only_plain"

    clusters: int = Field(2, ge=1, le=1000)
    """Number of models k."""
    spread: float = Field(0.1, ge=0)
    """Standard deviation of the fixed numbers added to all models except the first,
    before round 1.
    """
    count_scale: float = Field(0.1, gt=0)
    """Weight s of a count relative to the update, under their joint clip."""
    least_share: float = Field(0.2, gt=0, le=1)
    """Lower bound f on the divisor of a cluster's sum, as a fraction of an equal share of the
    cohort.
    """

    @property
    def broadcasts(self) -> int:
        """The number of broadcast models: one for each cluster."""
        return self.clusters

    def layout(self, d: int) -> Layout:
        return Layout((("delta", self.clusters * d), ("counts", self.clusters)))

    def init(self, params: Tensor) -> Memory:
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(self.clusters - 1, len(params), generator=generator).to(params)
        others = params + self.spread * noise
        return {"clusters": torch.cat([params[None], others]), "model": params.clone()}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"params": memory["clusters"].flatten()}

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        return self._models(broadcast)[_choice(measured)]

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        return self.origin(broadcast, state, measured)

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        choice = _choice(work.measured)
        slots = torch.nn.functional.one_hot(choice, self.clusters).to(w)
        slots = slots * (work.steps > 0).to(w)[:, None]
        update = w - self._models(broadcast)[choice]
        updates = slots[:, :, None] * update[:, None, :]
        return torch.cat([updates.flatten(1), self.count_scale * slots], dim=1), state

    def admitted(self, rows: Tensor) -> Tensor:
        """Keeps of each row only the slot of its largest count, and sets that count to one member.

        Honest rows do not change. Rows without a positive count become zero.
        """
        updates, counts = rows[:, : -self.clusters], rows[:, -self.clusters :]
        largest = torch.nn.functional.one_hot(counts.argmax(1), self.clusters).to(rows)
        slots = largest * (counts > 0).to(rows)
        admitted = updates.view(len(rows), self.clusters, -1) * slots[:, :, None]
        return torch.cat([admitted.flatten(1), self.count_scale * slots], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        updates, counts = released[: -self.clusters], released[-self.clusters :]
        shares = counts / self.count_scale
        floored = shares.clamp(min=self.least_share / self.clusters)[:, None]
        clusters = memory["clusters"] + updates.view(self.clusters, -1) / floored
        model = clusters[shares.argmax()].clone()
        return model - memory["model"], {"clusters": clusters, "model": model}

    def _models(self, broadcast: Broadcast) -> Tensor:
        """Returns the k models `[k, d]` from which a client chooses."""
        return broadcast["params"].view(self.clusters, -1)


def _choice(measured: Tensor | None) -> Tensor:
    """Returns the index `[c]` of the smallest of each client's k losses `measured` `[c, k]`."""
    if measured is None:
        raise ValueError("IFCA needs each client's loss at every model, but got none")
    return measured.argmin(1)
