"""A local objective: what a client minimises, how it descends, what it sends.

A client's training is a course: it begins at `origin` with what `carry` gives it, each step goes
`along` a direction and changes what is carried, and `message` makes a row of where it ended and of
what it carries then. A drift correction is a vector added to the local gradient, so most methods
differ only in `direction`, the short form of `along`, and in what they need broadcast or
remembered; others change the loss (`losses`). Everything is stacked over the clients of a chunk.
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
"""What an objective keeps of former rounds: functions of released values, public, checkpointed."""


@dataclass(frozen=True)
class Work:
    """What a client did: local `steps` `[c]` at rate `lr`, and what was measured of it.

    `measured` is the part's `measures`: "loss" `[c, b]`, the mean loss over all of a client's
    examples at each of the b models broadcast, mostly one; "fisher" `[c, d]`, the mean over its
    examples of the squared gradient at the trained model. `returning` `[c]` says which clients have
    a state from a former round. `carried` `[c, j]` is what they carry after the last step. `keys`
    are the clients' own coins of the round, which shuffle their examples. `groups` `[c]` are
    theirs, where the part has a `grouping`; -1: without an example there is none.
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
    """What tells a client's group: a declared column, "label" or "site", as `client.group` says.

    `count` groups are declared; 0: any number. The key `client.<key>` says something of each of
    `least` groups: fewer are refused.
    """

    by: str
    count: int
    least: int = 0
    key: str = "groups"


@dataclass(frozen=True)
class Cohorts:
    """Public constants: how many `clients` are declared, and the expected cohort's `size`.

    `period`: in so many rounds everybody takes part once.
    """

    clients: int
    size: float
    period: int = 1

    def joined(self, rounds: int) -> float:
        """How many are expected to have taken part at least once in so many rounds."""
        if self.period > 1:
            return min(rounds * self.size, float(self.clients))
        return self.clients * (1 - (1 - self.size / self.clients) ** rounds)


class Message(Part):
    """What a client sends and keeps, and what the server makes of the released sum."""

    unproven: ClassVar[str] = ""
    """Why it is refused under privacy; empty where its messages have a proven bound."""
    measures: ClassVar[Measures] = ""
    """What `message` is told besides: see `Work`."""
    server_step: ClassVar[ServerStep] = "any"
    """What step of the server its paper has: "any"; "plain": the next model is the model plus what
    `conclude` returns, and any other step is another algorithm, which rests at the same points, as
    `check` says; "only_plain": any other is refused, since `conclude` moves models that clients are
    sent by itself, and only under a plain step the run's model is one of them.
    """

    @property
    def keeps(self) -> int:
        """Vectors `[d]` that each client keeps between rounds, without the odd number beside them.

        Above 0, clients have to return.
        """
        return 0

    @property
    def exchanges(self) -> int:
        """Exchanges before and with training; fixed, so that a round's event is known before."""
        return 1

    @property
    def least_steps(self) -> int:
        """The local steps that a client needs to take: with fewer it sends its plain update."""
        return 0

    @property
    def broadcasts(self) -> int:
        """Vectors `[d]` that each client is sent with the question to train."""
        return 1

    @property
    def grouping(self) -> Grouping | None:
        """The public groups of clients, where `message` is told each one's (`Work.groups`).

        It follows from the client's own rows: what a message makes of it is clipped with the rest.
        """
        return None

    @property
    def sends_updates_alone(self) -> bool:
        """Whether a message is the model update, and nothing more."""
        return tuple(name for name, _ in self.layout(1).parts) == ("delta",)

    @property
    def sums_states(self) -> bool:
        """Whether the server works out from sums what all clients keep together.

        Then every row weighs one, sums are divided by the expected cohort's size, a constant, and
        no rule but a plain sum goes with it. By default wherever clients keep anything.
        """
        return self.keeps > 0

    @property
    def personalises(self) -> bool:
        """Whether clients end up with models of their own: where `personal` is overridden."""
        return type(self).personal is not Message.personal

    def state_length(self, d: int) -> int:
        """Return k, how many numbers each client keeps between rounds: `keeps` vectors."""
        return self.keeps * d

    def layout(self, d: int) -> Layout:
        """Return the layout of the row a client sends after training.

        Its part "delta" is the model update `[d]`, or `[b d]` where b models are broadcast.
        """
        return Layout((("delta", d),))

    def init(self, params: Tensor) -> Memory:
        """Return the memory before round 1."""
        return {}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Yield exchanges before training, e.g. of gradients; each `yield` returns the release.

        Its return value is what training broadcasts besides "params".
        """
        yield from ()
        return {}

    def unseen(self, broadcast: Broadcast) -> Tensor:
        """Return the state `[k]` of a client that has none yet: zeros."""
        params = broadcast["params"]
        return params.new_zeros(self.state_length(len(params)))

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        """Return rows `[c, m]` after local training, and the clients' new state."""
        return w - broadcast["params"], state

    def admitted(self, rows: Tensor) -> Tensor:
        """Return rows `[c, m]` without what no honest client could send.

        Honest rows stay as they are. It is applied to all rows that are summed, but for those of
        attackers who ignore bounds. Rules on rows are given updates alone, which any client could
        send.
        """
        return rows

    def personal(
        self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None
    ) -> Tensor:
        """Return the models `[c, d]` or `[d]` that clients use for themselves.

        `state` and `measured` are theirs, as in `origin`.
        """
        return broadcast["params"]

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        """Return the server's update `[d]` from what training released `[m]`, and the memory."""
        return released, memory


class Objective(LocalLoss, Correction, Message):
    """A local objective: what a client minimises, how it descends, what it sends.

    The defaults are plain SGD, which sends the model update: a subclass overrides what its method
    has otherwise. The broadcast "params" is one model `[d]`; or b of them behind one another,
    `[b d]`, where `prelude` says so and `origin` makes models of them.
    """

    @property
    def plain(self) -> bool:
        """Whether steps go along the gradient of the run's loss, and nothing is carried.

        Each parameter can then step by itself.
        """
        kind = type(self)
        steps = kind.direction is Correction.direction and kind.along is Correction.along
        return steps and not self.changes_loss
