"""What every shift keeps: the same clients, and of their examples what it does not declare."""

from dataclasses import replace

import numpy as np
import torch
from contracts.registered import contract_tests

from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.partitions.shift import NoShift

_X = torch.rand(30, 1, 6, 6, generator=torch.Generator().manual_seed(0))
CLASSES = 5
EXAMPLES = Examples(_X, torch.arange(30) % CLASSES, CLASSES)
PEOPLE = Federation(EXAMPLES, np.array([0, 4, 10, 10, 30]), EXAMPLES)


def shifted(part, seed=1, population=PEOPLE):
    return part.apply(population, Streams(seed))


def same_examples(first, second):
    return torch.equal(first.x, second.x) and torch.equal(first.y, second.y)


def changes_what_it_declares(part):
    after = shifted(part)
    assert np.array_equal(after.offsets, PEOPLE.offsets)
    assert tuple(after.examples.x.shape) == tuple(EXAMPLES.x.shape)
    assert after.examples.classes == CLASSES
    moved = not torch.equal(after.examples.x, EXAMPLES.x)
    labels = bool(after.relabelled) or not torch.equal(after.examples.y, EXAMPLES.y)
    assert moved == part.moves_features
    assert labels == part.changes_labels
    for _, swapped in after.relabelled:
        assert sorted(swapped.tolist()) == list(range(CLASSES))
    assert torch.equal(PEOPLE.examples.x, _X), "examples are changed in place"


def follows_from_the_seed(part):
    """Never from data: other labels are changed alike, and other features of one client, too."""
    after, again = shifted(part), shifted(part)
    assert same_examples(after.examples, again.examples)
    other = replace(EXAMPLES, y=EXAMPLES.y.flip(0))
    flipped = shifted(part, population=replace(PEOPLE, examples=other))
    assert torch.equal(flipped.examples.x, after.examples.x)
    assert [r for r, _ in flipped.relabelled] == [r for r, _ in after.relabelled]
    elsewhere = shifted(part, seed=2)
    changed = not same_examples(elsewhere.examples, after.examples) or [
        (r, y.tolist()) for r, y in elsewhere.relabelled
    ] != [(r, y.tolist()) for r, y in after.relabelled]
    assert changed == (part.moves_features or part.changes_labels)


class Undeclared(NoShift):
    """Labels are turned around, and nothing of it is declared."""

    def apply(self, federation, streams):
        labels = federation.examples.y.flip(0)
        return replace(federation, examples=replace(federation.examples, y=labels))


class ByLabels(NoShift):
    """Features are moved by their labels."""

    moves_features = True

    def apply(self, federation, streams):
        x = federation.examples.x + federation.examples.y[:, None, None, None]
        return replace(federation, examples=replace(federation.examples, x=x))


class Cropped(NoShift):
    """Images become smaller, and are doubled."""

    moves_features = True

    def apply(self, federation, streams):
        cropped = 2 * federation.examples.x[:, :, :3]
        return replace(federation, examples=replace(federation.examples, x=cropped))


test_every_shift_keeps, test_a_wrong_shift_is_rejected_by = contract_tests(
    "shift",
    {
        changes_what_it_declares: [Undeclared(), Cropped()],
        follows_from_the_seed: [ByLabels()],
    },
)
