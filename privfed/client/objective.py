"""The interface of local objectives: a client's loss, descent direction and message.

A client's training begins at `origin` with the vectors of `carry`. Each step moves against the
direction of `along`, which also updates the carried vectors. `message` computes a row from the
final model and the carried vectors. Most objectives of the literature add a vector to the local
gradient (a drift correction): they override only `direction`, a simpler form of `along`, and the
values that are broadcast or remembered. Others change the loss (`losses`). All tensors are stacked
over the clients of a chunk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from privfed.client.descent import Correction, LocalLoss
from privfed.client.exchange import Broadcast, Exchange
from privfed.core.deferred import Tensor
from privfed.core.parts import Part
from privfed.core.streams import Keys
from privfed.core.vector import Layout

Measures = Literal["", "loss", "fisher"]
ServerStep = Literal["any", "plain", "only_plain"]
Memory = Mapping[str, Tensor]
"""An objective's memory of earlier rounds: public functions of released values, checkpointed."""


@dataclass(frozen=True)
class Work:
    """The completed local training of c clients.

    Attributes:
      steps: Local steps of each client, shape `[c]`.
      lr: Learning rate.
      measured: The measurement that the objective's `measures` names; None without one. "loss"
        `[c, b]`: the mean loss over all of a client's examples at each of the b broadcast models
        (usually one). "fisher" `[c, d]`: the mean over its examples of the squared gradient at the
        trained model.
      returning: Mask `[c]` of clients that have a state from an earlier round; None if clients
        keep none.
      carried: The carried vectors after the last step, shape `[c, j]`; None if there are none.
      keys: The clients' own random streams of the round, which also shuffle their examples.
      groups: Group of each client, shape `[c]`, if the objective has a `grouping`; -1 for clients
        without examples.
    """

    steps: Tensor
    lr: float
    measured: Tensor | None = None
    returning: Tensor | None = None
    carried: Tensor | None = None
    keys: Keys | None = None
    groups: Tensor | None = None


@dataclass(frozen=True)
class Grouping:
    """The rule that assigns clients to groups.

    Attributes:
      by: the value of `client.group`: a declared column, "label" or "site".
      count: declared number of groups; 0 permits any number.
      least: smallest permitted number of groups: the number of values of `client.<key>`, which has
        one value per group; 0 without such a key.
      key: name of that key in the run file's [client]; read only if `least` is not 0.
    """

    by: str
    count: int
    least: int = 0
    key: str = "groups"


@dataclass(frozen=True)
class Cohorts:
    """Public constants of the population and the cohort.

    Attributes:
      clients: declared number of clients.
      size: expected size of a cohort.
      period: number of consecutive rounds (an epoch) in which every client participates exactly
        once; 1 if clients are sampled independently in each round, or all participate in it.
    """

    clients: int
    size: float
    period: int = 1

    def joined(self, rounds: int) -> float:
        """Returns the expected number of clients that take part in any of `rounds` rounds."""
        if self.period > 1:
            return min(rounds * self.size, float(self.clients))
        return self.clients * (1 - (1 - self.size / self.clients) ** rounds)


class Message(Part):
    """A client's message and state, and the server's update from the released aggregate."""

    unproven: ClassVar[str] = ""
    """The reason for refusal under privacy; empty if the privacy of messages is proved."""
    measures: ClassVar[Measures] = ""
    """The additional measurement that `message` receives: see `Work.measured`."""
    server_step: ClassVar[ServerStep] = "any"
    """The server step that the objective's paper assumes. "any": any server optimizer. "plain": the
    next model is the model plus the result of `conclude`; `check` reports that any other step is
    another algorithm with the same fixed points. "only_plain": any other step is refused, since
    `conclude` moves the models that are sent to clients, and the run's model is one of these only
    with a plain step.
    """

    @property
    def keeps(self) -> int:
        """Number of vectors `[d]` that each client keeps between rounds, not counting scalars.

        If it is above 0, clients have to take part repeatedly.
        """
        return 0

    @property
    def exchanges(self) -> int:
        """Number of exchanges of a round, up to and including training; the charge counts them."""
        return 1

    @property
    def least_steps(self) -> int:
        """Least number of local steps for the objective's message.

        Clients that take fewer steps send their model update instead.
        """
        return 0

    @property
    def broadcasts(self) -> int:
        """Number of vectors `[d]` that each client receives with the request to train."""
        return 1

    @property
    def grouping(self) -> Grouping | None:
        """The rule of clients' groups; None if `message` does not read groups (`Work.groups`).

        A client's group depends on its own examples only, and affects only its clipped message.
        """
        return None

    @property
    def sends_updates_alone(self) -> bool:
        """Whether the message has no part other than the model update ("delta")."""
        return tuple(name for name, _ in self.layout(1).parts) == ("delta",)

    @property
    def needs_only_the_model(self) -> bool:
        """Whether clients receive a model alone, and the server adds the aggregate of updates.

        True unless `prelude` or `conclude` is overridden: they read the current model and memory,
        but a client may have received an earlier model.
        """
        kind = type(self)
        return kind.prelude is Message.prelude and kind.conclude is Message.conclude

    @property
    def sums_states(self) -> bool:
        """Whether the server computes the total of all client states from the sums of all rounds.

        Then every row has weight one, sums are divided by the expected cohort size, a constant, and
        the only supported aggregation is a sum. The default is true if `keeps` is above 0.
        """
        return self.keeps > 0

    @property
    def personalises(self) -> bool:
        """Whether clients have personal models: `personal` is overridden."""
        return type(self).personal is not Message.personal

    def state_length(self, d: int) -> int:
        """Returns k, the number of values that a client keeps between rounds; default keeps * d."""
        return self.keeps * d

    def layout(self, d: int) -> Layout:
        """Returns the layout of the row a client sends after training.

        Its part "delta" is the model update `[d]`, or `[b d]` if b models are broadcast.
        """
        return Layout((("delta", d),))

    def init(self, params: Tensor) -> Memory:
        """Returns the objective's memory before round 1, which is empty by default."""
        return {}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Yields exchanges before training, such as of gradients; each `yield` returns a release.

        Args:
          params: the current model, shape [d].
          memory: the objective's memory of earlier rounds.

        Returns:
          Values that training broadcasts in addition to "params".
        """
        yield from ()
        return {}

    def initial_client_state(self, broadcast: Broadcast) -> Tensor:
        """Returns the state `[k]` of a client that has none yet; by default zeros."""
        params = broadcast["params"]
        return params.new_zeros(self.state_length(len(params)))

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the clients' rows after local training, and their new state.

        Args:
          w: trained models, shape [c, d].
          broadcast: released values by name.
          state: client states, shape [c, k], or None.
          work: the completed local training.

        Returns:
          The rows [c, m] and the new states [c, k]; None instead of these if clients keep none.
        """
        return w - broadcast["params"], state

    def admitted(self, rows: Tensor) -> Tensor:
        """Returns rows `[c, m]` projected onto the set that an honest client can send.

        Honest rows do not change. The projection applies to all rows that are summed, except those
        of simulated attackers that ignore bounds. It does not apply to aggregation rules on single
        rows, which receive only model updates: any vector may be an honest update.
        """
        return rows

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        """Returns the clients' personal models `[c, d]`, or `[d]` if all share one.

        The arguments are those of `origin`.
        """
        return broadcast["params"]

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        """Returns the server's update `[d]` from the release of training `[m]`, and the new memory.

        Args:
          broadcast: released values by name.
          released: the released aggregate of rows, shape [m].
          memory: the objective's memory of earlier rounds.
          cohorts: public constants of the population and the cohort.
        """
        return released, memory


class Objective(LocalLoss, Correction, Message):
    """A local objective: the loss, the direction of local steps, the message, and its aggregation.

    The defaults are plain SGD with the model update as message; a subclass overrides what differs.
    The broadcast "params" is one model `[d]`, or b concatenated models `[b d]` if `prelude` and
    `origin` define that.
    """

    @property
    def plain(self) -> bool:
        """Whether each step is a plain gradient step on the run's loss.

        True unless `direction`, `along` or the loss is overridden. Parameters can then be updated
        one by one.
        """
        kind = type(self)
        steps = kind.direction is Correction.direction and kind.along is Correction.along
        return steps and not self.changes_loss


class Sgd(Objective):
    """Plain local SGD, the local objective of FedAvg (McMahan et al. 2017, Algorithm 1).

    A client steps against its gradient. It sends its update, local model - broadcast model: d
    numbers.
    """
