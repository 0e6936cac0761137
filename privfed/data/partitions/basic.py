"""Random partitions, and the source's own partition; those by label are in `label_skew`."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from pydantic import Field

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples


class Partition(Protocol):
    """A rule that assigns each example to a client."""

    natural: ClassVar[bool]
    """Whether owners are the source's own clients."""
    by_chance: ClassVar[bool]
    """Whether examples are assigned uniformly at random, whatever their labels and owners."""
    assigns: ClassVar[bool]
    """Whether examples are assigned to clients other than their owners."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        """Returns the client `[N]` of each example: a number from 0.

        The number is below `clients` for simulated clients.

        Args:
          examples: all examples to assign.
          clients: declared number of clients.
          streams: random streams of the run.
        """


class Simulated(Part):
    """A simulated partition, with the keys that all such partitions share.

    The r-th largest client's share of the examples is proportional to r^-size_exponent (Zipf's law;
    Li et al. 2020, section 5.1, "power law"); the exponent 0 gives equal shares. The order of
    clients is random.
    """

    size_exponent: float = Field(0.0, ge=0, le=10)
    """Exponent of the power law of clients' sizes; 0: equal sizes."""
    natural: ClassVar[bool] = False
    by_chance: ClassVar[bool] = False
    assigns: ClassVar[bool] = True

    def sizes(self, examples: int, clients: int, rng: np.random.Generator) -> Indices:
        """Returns the number of examples of each client `[clients]`, in total `examples`.

        The order is random; with `size_exponent` 0 the numbers differ by at most 1.
        """
        shares = np.arange(1, clients + 1) ** -self.size_exponent
        ends = np.round(np.concatenate([[0.0], np.cumsum(shares / shares.sum())]) * examples)
        return rng.permutation(np.diff(ends).astype(np.int64))


class Iid(Simulated):
    """A random assignment: clients' sizes differ by at most one, or follow a power law."""

    by_chance: ClassVar[bool] = True

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        sizes = self.sizes(len(examples), clients, rng)
        return rng.permutation(np.repeat(np.arange(clients), sizes))


class Natural(Part):
    """The source's own partition: each example belongs to the client it came from.

    Sources that state no owners are refused.
    """

    natural: ClassVar[bool] = True
    by_chance: ClassVar[bool] = False
    assigns: ClassVar[bool] = False

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        if examples.owners is None:
            raise Refused(
                'data.partition is "natural", but this source does not state the owner of '
                'each example; name its column of clients, or use "iid" or "dirichlet"'
            )
        return examples.owners


class Shuffled(Part):
    """A control without heterogeneity: natural clients' sizes, with all examples shuffled.

    This is a simulation, since clients get other clients' examples.
    """

    natural: ClassVar[bool] = True
    by_chance: ClassVar[bool] = True
    assigns: ClassVar[bool] = True

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        if examples.owners is None:
            raise Refused(
                'data.partition is "shuffled", which keeps the sizes of clients, but this source '
                'does not state the owner of each example; use "iid"'
            )
        return np.asarray(streams.at("partition").generator().permutation(examples.owners))
