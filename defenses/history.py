"""Rules that keep state per client between rounds: their interface and the state they are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from defenses.deferred import Tensor, torch
from defenses.types import RowRule


@dataclass(frozen=True)
class Histories:
    """State that a rule receives with n rows of n clients.

    Attributes:
      clients: k numbers of state for the client of each row, float32 `[n, k]`; zeros for a new
        client.
      run: public state of the run, tensors by name (`Rule.memory`); they depend on models and
        aggregates alone.
      model: the model `[d]` from which clients start in this round.
    """

    clients: Tensor
    run: Mapping[str, Tensor]
    model: Tensor


class HistoryRule(RowRule):
    """A rule on rows that knows which client sent each row, and uses state of each client.

    The rule is a pure function: it returns the new state, and the caller stores it. The `keeps`
    numbers of each client are as secret as the client's rows; the result of `memory_after` is as
    public as models and aggregates. If each row already contains noise, both are post-processing.
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"histories"} if self.keeps(1) else ())

    def warm_up_rounds(self) -> int:
        """Returns the number of first rounds in which the rule cannot yet judge any client by its
        history; by default 0.
        """
        return 0

    def __call__(
        self,
        rows: Tensor,
        byzantine: int,
        *,
        histories: Histories | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the aggregate `[d]` of `rows` `[n, d]`; `histories` of None are those of a first
        round.

        Attackers that know the rule evaluate it this way; the new state is discarded.
        """
        histories = histories or self.newcomers(rows)
        return self.with_histories(rows, byzantine, histories, generator)[0]

    def newcomers(self, rows: Tensor) -> Histories:
        """Returns the histories of a first round for `rows` `[n, d]`: zeros, also for the model."""
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
        """Returns the aggregate `[d]` and the new state of the rows' clients.

        Args:
          rows: client updates, float32 or float64, shape [n, d].
          byzantine: upper bound on the number of Byzantine rows.
          histories: state of the rows' clients and of the run.
          generator: source of randomness, for rules that need one.

        Returns:
          The aggregate, shape [d], and the new state of each client, float32, shape [n, k].

        Raises:
          ValueError: if `byzantine` exceeds what the rule tolerates.
          TypeError: if rows are neither float32 nor float64.
        """
