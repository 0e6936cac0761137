"""What every partition keeps: an owner for each example, by the run's seed, as it declares."""

from dataclasses import replace

import numpy as np
import torch
from contracts.registered import contract_tests

from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.partitions.basic import Iid, Natural

N, CLIENTS, CLASSES = 600, 12, 3
_RNG = np.random.default_rng(0)
EXAMPLES = Examples(
    torch.randn(N, 4), torch.arange(N) % CLASSES, CLASSES, owners=_RNG.integers(0, CLIENTS, N)
)


def owners(part, examples=EXAMPLES, seed=1):
    return part.owners(examples, CLIENTS, Streams(seed, simulated=True))


def gives_each_example_to_a_client(part):
    assigned = owners(part)
    assert assigned.shape == (N,)
    assert np.issubdtype(assigned.dtype, np.integer)
    assert 0 <= assigned.min() <= assigned.max() < CLIENTS
    assert np.array_equal(assigned, owners(part)), "the same seed assigns otherwise"
    assert np.array_equal(assigned, part.owners(EXAMPLES, CLIENTS, Streams(1))), "draws are public"


def assigns_as_it_declares(part):
    """Not at all: owners are the source's. Else by the run's seed."""
    assigned = owners(part)
    if not part.assigns:
        assert part.natural
        assert np.array_equal(assigned, EXAMPLES.owners)
        return
    assert not np.array_equal(assigned, owners(part, seed=2))
    if part.natural:
        assert np.array_equal(np.bincount(assigned), np.bincount(EXAMPLES.owners))
    else:
        assert np.array_equal(assigned, owners(part, replace(EXAMPLES, owners=None)))


def looks_at_labels_unless_by_chance(part):
    """By chance: other labels or features change nothing."""
    other = replace(EXAMPLES, y=(EXAMPLES.y + torch.arange(N) // 300) % CLASSES, x=-EXAMPLES.x)
    same = np.array_equal(owners(part), owners(part, other))
    assert same or not part.by_chance
    assert same == part.by_chance or not part.assigns


class NoClient(Iid):
    """It leaves examples to a client that is none."""

    def owners(self, examples, clients, streams):
        return super().owners(examples, clients, streams) + 1


class Afresh(Iid):
    """It draws outside of its streams."""

    def owners(self, examples, clients, streams):
        return np.random.default_rng().integers(0, clients, len(examples))


class Always(Iid):
    """It assigns alike for every seed."""

    def owners(self, examples, clients, streams):
        return np.arange(len(examples)) % clients


class Renamed(Natural):
    """It gives the source's clients the examples of others."""

    def owners(self, examples, clients, streams):
        return examples.owners[::-1].copy()


class Sorted(Iid):
    """By labels, declared as by chance."""

    def owners(self, examples, clients, streams):
        return np.argsort(np.argsort(examples.y.numpy(), kind="stable")) * clients // len(examples)


test_every_partition_keeps, test_a_wrong_partition_is_rejected_by = contract_tests(
    "partition",
    {
        gives_each_example_to_a_client: [NoClient(), Afresh()],
        assigns_as_it_declares: [Always(), Renamed()],
        looks_at_labels_unless_by_chance: [Sorted()],
    },
)
