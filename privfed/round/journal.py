"""What a round has released so far: durable before it is used or shown."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        """Make a release durable, with the mechanism's public `state` after it.

        What is remembered of clients is durable before it.
        """
        self.releases.append(released)
        for memory in self.world.remembered:
            memory.keep()
        self.world.ranks.first(lambda: self.world.store.write(self.charge, self.releases, state))
