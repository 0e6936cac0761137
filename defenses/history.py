"""Rules that remember their clients: what a rule is given beside rows, and what it keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from defenses.deferred import Tensor, torch
from defenses.types import RowRule


@dataclass(frozen=True)
class Histories:
    """What a rule remembers when it is given n rows, one of each of n clients.

    `clients` `[n, k]` float32 is what it kept of each row's client, zeros of one that is new.
    `run` is what it kept of the run, and follows from models and aggregates alone; `model` `[d]`
    is what clients start from in this round.
    """

    clients: Tensor
    run: Mapping[str, Tensor]
    model: Tensor


class HistoryRule(RowRule):
    """A rule on rows that knows whose they are, and remembers something of each client.

    It is a pure function: what it is to remember is returned, and whoever calls it keeps that.
    `keeps` numbers of each client are as secret as its rows; what `memory_after` returns is as
    public as models and aggregates. Where rows carry noise of their own, both are post-processing.
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"histories"} if self.keeps(1) else ())

    def unjudged(self) -> int:
        """How many rounds have to go by before it can judge anybody by a history."""
        return 0

    def __call__(
        self,
        rows: Tensor,
        byzantine: int,
        *,
        histories: Histories | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The aggregate `[d]` of rows `[n, d]`, as of the first round where no histories are given.

        An attacker who knows the rule tries it so: nothing is remembered of that.
        """
        histories = histories or self.newcomers(rows)
        return self.with_histories(rows, byzantine, histories, generator)[0]

    def newcomers(self, rows: Tensor) -> Histories:
        """What is known in round 1 of the clients of rows `[n, d]`, of a model that is 0."""
        model = rows.new_zeros(rows.shape[1])
        unknown = rows.new_zeros(len(rows), self.keeps(rows.shape[1])).float()
        return Histories(unknown, self.memory(model), model)

    @abstractmethod
    def with_histories(
        self,
        rows: Tensor,
        byzantine: int,
        histories: Histories,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The aggregate `[d]`, and what is kept of the rows' clients `[n, k]` float32.

        Raises as `RowRule` does.
        """
