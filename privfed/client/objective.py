"""The contract of local objectives: loss, descent direction and message of a client.

A client's training begins at `origin` with the vectors of `carry`. Each step moves in the direction
of `along`, which also updates the carried vectors. `message` computes a row from the final model
and the carried vectors. A drift correction is a vector added to the local gradient, so most methods
differ only in `direction`, the short form of `along`, and in the values they broadcast or remember;
others change the loss (`losses`). Everything is stacked over the clients of a chunk.
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
"""An objective's memory of earlier rounds: functions of released values, public, checkpointed."""


@dataclass(frozen=True)
class Work:
    """The completed local training of c clients.

    Attributes:
      steps: Local steps of each client, shape `[c]`.
      lr: Learning rate.
      measured: The part's `measures`: "loss" `[c, b]`, the mean loss over all of a client's
        examples at each of the b broadcast models, mostly one; "fisher" `[c, d]`, the mean over its
        examples of the squared gradient at the trained model.
      returning: Mask `[c]` of clients that have a state from an earlier round.
      carried: The carried vectors after the last step, shape `[c, j]`.
      keys: The clients' own random streams of the round, which also shuffle their examples.
      groups: Group of each client, shape `[c]`, if the part has a `grouping`; -1 for clients
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
    """The rule that gives a client its group: a declared column, "label" or "site".

    `by` is the value of `client.group`. `count` groups are declared; 0 is any number. The key
    `client.<key>` has a value for each of `least` groups, and fewer groups are refused.
    """

    by: str
    count: int
    least: int = 0
    key: str = "groups"


@dataclass(frozen=True)
class Cohorts:
    """Public constants: the declared number of `clients`, and the expected cohort `size`.

    `period`: number of rounds in which every client participates once.
    """

    clients: int
    size: float
    period: int = 1

    def joined(self, rounds: int) -> float:
        """Expected number of clients that participate at least once in `rounds` rounds."""
        if self.period > 1:
            return min(rounds * self.size, float(self.clients))
        return self.clients * (1 - (1 - self.size / self.clients) ** rounds)


class Message(Part):
    """A client's message and state, and the server-side aggregation of the released sum."""

    unproven: ClassVar[str] = ""
    """The reason for refusal under privacy; empty if its messages have a proven bound."""
    measures: ClassVar[Measures] = ""
    """The additional measurement passed to `message`: see `Work`."""
    server_step: ClassVar[ServerStep] = "any"
    """The server step of its paper: "any"; "plain": the next model is the model plus the result of
    `conclude`, and any other step is another algorithm with the same fixed points, as `check`
    reports; "only_plain": any other step is refused, since `conclude` itself moves the models sent
    to clients, and only under a plain step the run's model is one of them.
    """

    @property
    def keeps(self) -> int:
        """Number of `[d]` state vectors each client keeps between rounds (scalars not counted).

        Above 0, clients have to return.
        """
        return 0

    @property
    def exchanges(self) -> int:
        """Number of exchanges up to and including training; fixed, and so is a round's event."""
        return 1

    @property
    def least_steps(self) -> int:
        """Smallest number of local steps; clients with fewer send their plain update."""
        return 0

    @property
    def broadcasts(self) -> int:
        """Number of vectors `[d]` sent to each client with the request to train."""
        return 1

    @property
    def grouping(self) -> Grouping | None:
        """The public groups of clients, if `message` reads each client's group (`Work.groups`).

        A group follows from the client's own rows; its effect on a message is clipped with the
        rest.
        """
        return None

    @property
    def sends_updates_alone(self) -> bool:
        """Whether a message is the model update, and nothing more."""
        return tuple(name for name, _ in self.layout(1).parts) == ("delta",)

    @property
    def sums_states(self) -> bool:
        """Whether the server computes the total of all client states from sums.

        Then every row has weight one, sums are divided by the expected cohort's size, a constant,
        and only a plain sum is supported. The default is true for clients that keep any state.
        """
        return self.keeps > 0

    @property
    def personalises(self) -> bool:
        """Whether clients have personal models: `personal` is overridden."""
        return type(self).personal is not Message.personal

    def state_length(self, d: int) -> int:
        """Returns k, the number of values each client keeps between rounds: `keeps` vectors."""
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
        """Yields exchanges before training, e.g. of gradients; each `yield` returns the release.

        Args:
          params: the current model, shape [d].
          memory: the objective's memory of earlier rounds.

        Returns:
          Values that training broadcasts in addition to "params".
        """
        yield from ()
        return {}

    def unseen(self, broadcast: Broadcast) -> Tensor:
        """Returns the state `[k]` of a client that has none yet: zeros."""
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
          work: what the clients did.

        Returns:
          The rows [c, m] and the new states [c, k].
        """
        return w - broadcast["params"], state

    def admitted(self, rows: Tensor) -> Tensor:
        """Returns rows `[c, m]` projected onto the set that an honest client can send.

        Honest rows do not change. The projection applies to all summed rows, except those of
        attackers that ignore bounds. Rules on rows receive updates only, and any vector is a
        possible update.
        """
        return rows

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        """Returns the personal models of clients, `[c, d]` or `[d]`.

        `state` and `measured` are those of the clients, as in `origin`.
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
    """A client-side objective: the local update direction, the message, and its aggregation.

    The defaults are plain SGD with the model update as message; a subclass overrides what differs.
    The broadcast "params" is one model `[d]`, or b concatenated models `[b d]` if `prelude` and
    `origin` define that.
    """

    @property
    def plain(self) -> bool:
        """Whether steps follow the gradient of the run's loss, and nothing is carried.

        Each parameter can then step separately.
        """
        kind = type(self)
        steps = kind.direction is Correction.direction and kind.along is Correction.along
        return steps and not self.changes_loss
