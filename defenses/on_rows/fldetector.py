"""FLDetector: removes clients whose updates are inconsistent with their own earlier updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.finite import usable
from defenses.history import Histories, HistoryRule
from defenses.on_rows.median import Median
from defenses.quasi_newton import hessian_product
from defenses.two_groups import upper_group
from defenses.types import require_floats
from defenses.weighing import refuse_too_many


class FlDetector(HistoryRule):
    """The coordinate-wise median of the updates of clients that have not been removed as detected.

    An update is predicted from the same client's update of the round before: x^_i = x_i' + B (w -
    w'), where w and w' are the models of both rounds, and B v is an L-BFGS product over the last N
    differences of the model and of the aggregate. A round's score is |x_i - x^_i| over its mean
    among the predicted clients; a client's score is the mean of its last N. If gap statistics find
    more than one group among these scores, the clients of the higher of two groups (2-means) are
    removed permanently. At most `byzantine` clients of a cohort are removed in all, those of the
    highest scores first.

    The bound of `byzantine` removals is an addition to the published rule, in which removals are
    unbounded. Gap statistics find two groups even in scores without any Byzantine client: for
    uniform scores of 12, 40 and 100 clients, in 14, 20 and 19 % of the judgements. Repeated in each
    round, they would eventually remove nearly all clients. With `byzantine` = 0 the rule is
    therefore the median, and without an attack up to `byzantine` honest clients may be removed.

    Needs rows, client identities, the model, and d + N + 3 numbers per client (its last update, N
    scores); per run, 2 N + 2 vectors. Only clients that took part in the round before are
    predicted, so clients must take part often; no client is judged before round 2 N + 1. Detects
    clients whose updates contradict their own earlier ones. No kappa: until round 2 N + 1, and
    against undetected clients, the tolerance is that of the median. O(n d + N^2 d + n d log n).

    In the published algorithm, training restarts without the detected clients. Here training
    continues and they remain excluded; to restart, begin a new run without them. The published
    detection works with any rule; here the rule is the median.

    Source: Zhang, Cao, Jia & Gong 2022, "FLDetector: defending federated learning against model
    poisoning attacks via detecting malicious clients", sections 4.1 to 4.3, algorithms 1 and 2.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    >>> FlDetector()(rows, byzantine=1)
    tensor([1., 1.])
    """

    window: int = Field(10, ge=1, le=100)
    """Number of rounds N whose model differences and scores are stored."""
    references: int = Field(20, ge=2, le=1000)
    """Number of uniform samples that gap statistics compare scores with."""

    tolerance: ClassVar[str] = "fewer than half, if their updates are inconsistent over rounds"

    def needs(self) -> frozenset[str]:
        return frozenset({"histories", "generator"})

    def warm_up_rounds(self) -> int:
        return 2 * self.window

    def keeps(self, d: int) -> int:
        return d + 3 + self.window

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        nothing = model.new_zeros(self.window, len(model))
        count = torch.zeros((), dtype=torch.int64, device=model.device)
        return {
            "model": model.clone(),
            "aggregate": torch.zeros_like(model),
            "moves": nothing,
            "changes": nothing.clone(),
            "pairs": count,
            "rounds": count.clone(),
        }

    def memory_after(
        self, memory: Mapping[str, Tensor], model: Tensor, aggregate: Tensor
    ) -> dict[str, Tensor]:
        move, change = model - memory["model"], aggregate - memory["aggregate"]
        after = {
            **memory,
            "model": model.clone(),
            "aggregate": aggregate.clone(),
            "rounds": memory["rounds"] + 1,
        }
        if int(memory["rounds"]) and bool(move.any()):  # no information without a move
            after["moves"] = torch.cat([memory["moves"][1:], move[None]])
            after["changes"] = torch.cat([memory["changes"][1:], change[None]])
            after["pairs"] = (memory["pairs"] + 1).clamp(max=self.window)
        return after

    def with_histories(
        self,
        rows: Tensor,
        byzantine: int,
        histories: Histories,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        refuse_too_many(len(rows), byzantine, (), self)
        require_floats(rows)
        rows, good = rows.detach(), usable(rows)
        clients = _Clients(histories.clients.clone(), rows.shape[1])
        before = histories.run["rounds"]
        predicted = good & (clients.rounds == before) & (before > 0) & ~clients.removed
        if int(histories.run["pairs"]) == self.window and bool(predicted.any()):
            move = histories.model - histories.run["model"]
            moved = hessian_product(histories.run["moves"], histories.run["changes"], move)
            clients.score(predicted, _distances(rows, clients.updates, moved, predicted))
            suspects = self._suspects(clients, predicted, generator)
            clients.remove(suspects, byzantine - int(clients.removed.sum()))
        clients.update(good, rows, before + 1)
        left = rows[good & ~clients.highest(clients.removed, byzantine)]
        return Median()(left, min(byzantine, Median().most(len(left)))), clients.numbers

    def _suspects(
        self, clients: _Clients, predicted: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Returns a mask `[n]` of the clients in the higher group of scores.

        Only clients in the mask `predicted` `[n]` that were scored in N rounds are grouped; others
        are False, and all are if there is one group.

        Raises `ValueError` without a generator.
        """
        if generator is None:
            raise ValueError("gap statistics draw random samples; pass a generator")
        judged = predicted & (clients.scored >= self.window)
        suspects = judged.clone()
        suspects[judged] = upper_group(clients.scores[judged], self.references, generator)
        return suspects


class _Clients:
    """The state of n clients, a tensor `numbers` `[n, d + 3 + N]` that methods modify in place.

    Its columns: the last update, its round (counted from 1), whether the client was removed, the
    number of rounds in which it was scored (up to N), and its scores, the newest first.
    """

    def __init__(self, numbers: Tensor, d: int) -> None:
        self.numbers, self._d = numbers, d

    @property
    def updates(self) -> Tensor:
        return self.numbers[:, : self._d]

    @property
    def rounds(self) -> Tensor:
        return self.numbers[:, self._d]

    @property
    def removed(self) -> Tensor:
        return self.numbers[:, self._d + 1] > 0

    @property
    def scored(self) -> Tensor:
        return self.numbers[:, self._d + 2]

    @property
    def scores(self) -> Tensor:
        """The mean of each client's last N scores, `[n]`; missing scores count as 0."""
        return self.numbers[:, self._d + 3 :].mean(1)

    def score(self, who: Tensor, distances: Tensor) -> None:
        """Stores this round's scores of the m clients in the mask `who`, from their prediction
        errors `[m]`.
        """
        window = self.numbers[who, self._d + 3 :]
        mean = distances.mean().clamp(min=torch.finfo(distances.dtype).tiny)
        newest = (distances / mean).nan_to_num(nan=1.0).to(window)[:, None]  # inf / inf is NaN
        self.numbers[who, self._d + 3 :] = torch.cat([newest, window[:, :-1]], dim=1)
        self.numbers[who, self._d + 2] = (self.scored[who] + 1).clamp(max=window.shape[1])

    def highest(self, who: Tensor, count: int) -> Tensor:
        """Returns a mask `[n]` of up to `count` clients in `who` `[n]` with the highest scores.

        If `who` has more clients, those tied with the first one left out are left out, too, so the
        order of rows does not matter.
        """
        scores, count = self.scores, max(count, 0)
        marked = scores[who].sort(descending=True).values
        if len(marked) <= count:
            return who
        return who & (scores > marked[count])

    def remove(self, who: Tensor, count: int) -> None:
        """Removes up to `count` clients in the mask `who` `[n]`, those with the highest scores."""
        self.numbers[self.highest(who, count), self._d + 1] = 1.0

    def update(self, who: Tensor, rows: Tensor, round: Tensor) -> None:
        """Stores the `rows` `[n, d]` of this round, and the number `round`, for the clients in the
        mask `who`.
        """
        self.numbers[who, : self._d] = rows[who].to(self.numbers)
        self.numbers[who, self._d] = round.to(self.numbers)


def _distances(rows: Tensor, updates: Tensor, moved: Tensor, who: Tensor) -> Tensor:
    """Returns the prediction errors `[m]` of the rows in the mask `who`.

    A prediction is the client's last update (`updates`) plus `moved` `[d]`.

    Rows are processed one at a time, so that they are not copied.
    """
    places = who.nonzero().squeeze(1).tolist()
    gaps = (rows[place] - updates[place].to(rows) - moved.to(rows) for place in places)
    return torch.stack([torch.linalg.vector_norm(gap, dtype=torch.float64) for gap in gaps])
