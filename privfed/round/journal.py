"""What a round has released so far: durable before it is sent or shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from accounting.ledger import Charge
from privfed.privacy.mechanism import PublicState
from privfed.round.world import World


@dataclass
class Journal:
    """Keeps the releases of one charged round, in order."""

    charge: Charge
    world: World
    releases: list[Tensor] = field(default_factory=list)

    def keep(self, released: Tensor, state: PublicState) -> None:
        """Begin to make a release durable, with the mechanism's public `state` after it.

        What is remembered of clients is durable before it. Copies are written: whoever is given
        `released` may compute in place while that goes on.
        """
        self.releases.append(released.clone())
        for memory in self.world.remembered:
            memory.keep()
        world, releases = self.world, list(self.releases)
        public = {name: value.clone() for name, value in state.items()}
        write = partial(world.store.write, self.charge, releases, public)
        world.ranks.first(lambda: world.writing.begin(write))

    def settle(self) -> None:
        """Return when all that was released in this round is durable."""
        if self.releases:
            self.world.ranks.first(self.world.writing.settle)
