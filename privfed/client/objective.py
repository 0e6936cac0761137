"""A local objective: SGD on a client's own loss, with a corrected gradient.

A client's training is a course: it begins at `origin` with what `carry` gives it, each step goes
`along` a direction and changes what is carried, and `message` makes a row of where it ended and of
what it carries then. A drift correction is a vector added to the local gradient, so most methods
differ only in `direction`, the short form of `along`, and in what they need broadcast or
remembered. Everything is stacked over the clients of a chunk.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.client.exchange import Broadcast, Exchange
from privfed.core.deferred import Tensor
from privfed.core.streams import Keys
from privfed.core.vector import Layout

Anchor = Literal["", "all", "batch"]
Measures = Literal["", "loss", "fisher"]
ServerStep = Literal["any", "plain", "only_plain"]
Memory = Mapping[str, "Tensor"]
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
class LocalStep:
    """A step of c clients, before it is taken.

    `w` `[c, d]` are their models, `grad` `[c, d]` the gradients there of the mean loss of a batch
    each, and `anchor` `[c, d]` those of the same batches at the objective's `anchor`, where it has
    one. `state` `[c, k]` and `carried` `[c, j]` are as in `Objective`. `number` steps came before
    it, and `epoch` `[c]` epochs were over, both counted from 0; each client takes `steps` `[c]` in
    all. A step moves a model by `-lr` times its direction.
    """

    w: Tensor
    grad: Tensor
    anchor: Tensor | None
    state: Tensor | None
    carried: Tensor | None
    number: int
    epoch: Tensor
    steps: Tensor
    lr: float


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


class ClientState(Protocol):
    """What a stateful objective remembers of each client between rounds: `[k]` per client.

    Bounded or memory-mapped, secret (it lies under private/), committed every round.
    """

    def begin(self, round: int) -> None: ...

    def gather(self, ids: NDArray[np.int64], unseen: Tensor) -> tuple[Tensor, Tensor]:
        """States `[c, k]` (`unseen` `[k]` where there is none yet), and who has one `[c]`."""
        ...

    def scatter(self, ids: NDArray[np.int64], values: Tensor) -> None: ...

    def keep(self) -> None:
        """Make the round's states durable; before its release is."""
        ...

    def discard(self) -> None:
        """Forget what was scattered since `begin`: the round was aborted."""
        ...

    def replay(self, round: int, released: bool) -> None: ...

    def settle(self, round: int) -> None: ...


class Objective(Protocol):
    """What a client descends along, what it sends of it, and what the server makes of that.

    c clients at once: w `[c, d]` are their models, `state` `[c, k]` what each keeps from round to
    round, `carried` `[c, j]` what each has from step to step of one round; or None. The broadcast
    "params" is one model `[d]`; or b of them behind one another, `[b d]`, where `prelude` says so
    and `origin` makes models of them. What clients begin with and carry follows from released
    values and their own examples and state: like their models, it costs nothing beyond the message,
    which is clipped.
    """

    keeps: ClassVar[int]
    """Vectors `[d]` that each client keeps between rounds, without the odd number beside them;
    above 0, clients have to return."""
    exchanges: ClassVar[int]
    """Exchanges before and with training; fixed, so that the round's event is known beforehand."""
    unproven: ClassVar[str]
    """Why it is refused under privacy; empty where its messages have a proven bound."""
    anchored: ClassVar[Anchor]
    """Which other gradient of a client is asked for, if any: that of all its examples at its
    `origin` ("all"), which is then its `state`, so not with `keeps`; or at each step that of the
    same batch at its `anchor` ("batch").
    """
    measures: ClassVar[Measures]
    """What `message` is told besides: see `Work`."""
    server_step: ClassVar[ServerStep]
    """What step of the server its paper has: "any"; "plain": the next model is the model plus what
    `conclude` returns, and any other step is another algorithm, which rests at the same points, as
    `check` says; "only_plain": any other is refused, since `conclude` moves models that clients are
    sent by itself, and only under a plain step the run's model is one of them.
    """

    @property
    def least_steps(self) -> int:
        """The local steps that a client needs to take: with fewer it sends its plain update."""
        ...

    @property
    def broadcasts(self) -> int:
        """Vectors `[d]` that each client is sent with the question to train."""
        ...

    @property
    def grouping(self) -> Grouping | None:
        """The public groups of clients, where `message` is told each one's (`Work.groups`).

        It follows from the client's own rows: what a message makes of it is clipped with the rest.
        """
        ...

    @property
    def plain(self) -> bool:
        """Whether steps go along the gradient, so that each parameter can step by itself.

        Nothing is carried then.
        """
        ...

    @property
    def sends_updates_alone(self) -> bool:
        """Whether a message is the model update, and nothing more."""
        ...

    @property
    def sums_states(self) -> bool:
        """Whether the server works out from sums what all clients keep together.

        Then every row weighs one, sums are divided by the expected cohort's size, a constant, and
        no rule but a plain sum goes with it.
        """
        ...

    def state_length(self, d: int) -> int:
        """k, how many numbers each client keeps between rounds: mostly `keeps` vectors."""
        ...

    def layout(self, d: int) -> Layout:
        """The row a client sends after training. Its part "delta" is the model update `[d]`, or `[b
        d]` where b models are broadcast.
        """
        ...

    def init(self, params: Tensor) -> Memory:
        """The memory before round 1."""
        ...

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        """Exchanges before training, e.g. of gradients. Each `yield` returns what was released.

        Its return value is what training broadcasts besides "params".
        """
        ...

    def unseen(self, broadcast: Broadcast) -> Tensor:
        """The state `[k]` of a client that has none yet."""
        ...

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        """Where clients begin `[c, d]`, or `[d]` where all do alike: mostly the broadcast model.

        `measured` `[c, b]` are their losses, where the part `measures` these.
        """
        ...

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        """What clients carry before the first step `[c, j]`, or `[j]` all alike; None: nothing."""
        ...

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        """Where an `anchored` "batch" has its other gradient, `[c, d]` or `[d]`.

        Mostly at the broadcast model.
        """
        ...

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        """The direction `[c, d]` of a step, and what is carried after it, not in place.

        Mostly `direction`, and what was carried. A coordinate whose direction is 0 stays: so a part
        of a model is trained alone, for as many epochs as `step.epoch` says. Clients whose batch is
        empty neither move nor change what they carry, whatever is said of them here.
        """
        ...

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        """The corrected gradient `[c, d]` to descend along: the short form of `along`.

        Under `anchored` "batch", `state` is the gradient at the anchor.
        """
        ...

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        """Rows `[c, m]` after local training, and the clients' new state."""
        ...

    def admitted(self, rows: Tensor) -> Tensor:
        """Rows `[c, m]` with what no honest client could send cut off, for all to see that it is.

        Honest rows stay as they are. It is applied to all rows that are summed, but for those of
        attackers who ignore bounds. Rules on rows are given updates alone, which any client could
        send.
        """
        ...

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        """The server's update `[d]` from what training released `[m]`, and the new memory."""
        ...
