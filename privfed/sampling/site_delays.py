"""Delays of sites: a slow site trains for several rounds, and no round waits for it.

A site of delay s receives the model of a round, and adds its rows to the sum s rounds later; its
next rows begin with the round after that. So it contributes to every (s + 1)-th round. In all
others it sends only its share of noise, or is a dropout. Delays are public constants.

*Privacy.* The charge of a round is that without delays, amplified by the sites' own sampling (rules
of proof, section 9.1). Each client of a site is sampled anew for every round to which the site
contributes. That sample affects no release before the round's: the releases between depend only on
earlier samples and on noise. A row is a function of the client's examples, the released model that
the site received, and randomness of its own. So, given all releases before, the sum of a round has
the two distributions of that section for a client with and without its rows. In rounds to which the
site does not contribute, both distributions are equal; they are charged too. Clients are sampled
before their round is charged, but no message, decision or time depends on that sample before the
charge is durable: clients do not evaluate in such runs, and `privfed.deploy.site.late_rows` states
the conditions on time. If a client has rows at several sites and only some contribute, its
other rows are zero, which the charge for clients at several sites covers (section 9.4).

Source: Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation" (FedBuff),
with fixed times in place of a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privfed.core.vector import Indices
from privfed.sampling.cohort import Cohort


@dataclass(frozen=True)
class SiteDelays:
    """The delay of each site in rounds, in the order of sites; empty: no site is late."""

    delays: tuple[int, ...] = ()

    @property
    def largest(self) -> int:
        """The largest delay; 0 without any."""
        return max(self.delays, default=0)

    def contributing(self, round: int) -> NDArray[np.bool_]:
        """Returns a mask `[sites]` of the sites with rows in `round`."""
        contributes: NDArray[np.bool_] = round % (np.array(self.delays) + 1) == 0
        return contributes

    def contributors(self, cohort: Cohort, sites: Indices) -> Cohort:
        """Returns the clients of `cohort` whose site contributes, with their staleness.

        Args:
          cohort: the clients that all sites sample for the round.
          sites: site of each client of the population, shape [N].
        """
        if not self.largest:
            return cohort
        present = self.contributing(cohort.round)[sites[cohort.clients]]
        staleness = np.array(self.delays)[sites]
        return replace(cohort, clients=cohort.clients[present], staleness=staleness)


def arrival(round: int, delay: int) -> int | None:
    """Returns the round of the rows that a site of this `delay` begins to train in `round`.

    None if it begins none, because it still trains.
    """
    return None if (round - 1) % (delay + 1) else round + delay
