"""Backdoors in parts, in what occurs by nature, and with labels that stay right."""

import math

import numpy as np
import pytest
import torch
from lanes import every_case

from attacks.poisoning.backdoor import Backdoor
from attacks.poisoning.clean_label import CleanLabel
from attacks.poisoning.distributed_backdoor import DistributedBackdoor
from attacks.poisoning.semantic import Semantic
from attacks.poisoning.tail import Tail
from attacks.types import Briefing, Knowledge, Unarmed

POOLING = [Tail(), Semantic(), CleanLabel()]
SHAPES = [(6,), (4, 4), (1, 8, 8), (3, 5, 5)]


def rng(seed=0):
    return np.random.default_rng(seed)


def examples(n=200, shape=(6,), classes=3, seed=0):
    """Numbers in [0, 1), brighter by class, of which one in ten lies far out."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.rand(n, *shape, generator=generator) / 4
    x += (y / 4).view(-1, *(1 for _ in shape))
    x[torch.arange(n) % 10 == 9] *= 2
    return x, y


def briefed(attack, x, y, place=0):
    classes = int(y.max()) + 1
    return Briefing(classes, place, attack.study(x, y, classes))


@every_case("shape", [(3, 8, 8), (8, 8), (64,), (60,)])
@every_case("parts", [2, 4, 9])
def test_the_parts_of_a_trigger_are_dealt_and_make_it_up(shape, parts):
    attack, x = DistributedBackdoor(size=3, parts=parts), torch.rand(4, *shape) / 2
    altered = [attack.poisoned_examples(x, Briefing(10, place)) != x for place in range(parts)]
    together = sum(each.int() for each in altered)
    assert int(together.max()) == 1, "no pixel belongs to two"
    assert torch.equal(together.bool(), attack.alter(x) != x)
    assert torch.equal(attack.alter(x), Backdoor(size=3).alter(x))
    assert all(bool(each.any()) for each in altered)
    again = attack.poisoned_examples(x, Briefing(10, place=parts + 1)) != x
    assert torch.equal(again, altered[1]), "more attackers than parts"


def test_each_attacker_of_many_stamps_its_part_alone():
    attack, x, y = DistributedBackdoor(share=1.0, target=2), torch.zeros(5, 64), torch.arange(5)
    for place in range(4):
        poisoned, labels = attack.poison(x, y, Briefing(5, place), rng())
        assert poisoned.sum(1).tolist() == [1.0] * 5
        assert labels.tolist() == [2] * 5
    aimed, wanted = attack.targeted(x, y, {})
    assert aimed.sum(1).tolist() == [4.0] * 4, "success is measured with all parts"
    assert wanted.tolist() == [2] * 4
    with pytest.raises(ValueError, match="a patch of 2 x 2 has 4 pixels"):
        DistributedBackdoor(parts=5)


@every_case("attack", POOLING, ids=lambda attack: type(attack).__name__)
@every_case("shape", SHAPES, ids=str)
def test_attackers_with_pooled_examples_poison_images_and_tables(attack, shape):
    assert Knowledge.ATTACKERS_DATA in attack.knows
    assert Knowledge.ALL_HONEST not in attack.knows
    x, y = examples(shape=shape)
    before = x.clone(), y.clone()
    briefing = briefed(attack, x, y)
    poisoned, labels = attack.poison(x[:20], y[:20], briefing, rng())
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert poisoned.shape == (20, *shape)
    assert not torch.equal(poisoned, x[:20])
    again = attack.poison(x[:20], y[:20], briefing, rng())
    assert torch.equal(again[0], poisoned)
    assert torch.equal(again[1], labels)
    why = "the attack alters numbers, but these examples are tokens; use another attack"
    assert attack.unfit_reason(shape, False) == why
    assert attack.unfit_reason((20,), True) is None
    aimed, wanted = attack.targeted(*examples(shape=shape, seed=1), briefing.learned)
    assert len(aimed) == len(wanted) > 0
    assert set(wanted.tolist()) == {0}


@pytest.mark.parametrize("attack", [Tail(share=0.25), Semantic(share=0.25)], ids=["tail", "bright"])
def test_a_natural_backdoor_shows_examples_as_they_are(attack):
    """In training and at the end: only labels change, those of all examples that show it."""
    x, y = examples()
    briefing = briefed(attack, x, y)
    pool = briefing.learned["pool"]
    poisoned, labels = attack.poison(x[:40], y[:40], briefing, rng())
    everything = {tuple(row) for row in x.tolist()}
    assert {tuple(row) for row in poisoned.tolist()} <= everything
    replaced = (poisoned != x[:40]).any(1)
    assert {tuple(row) for row in poisoned[replaced].tolist()} <= {tuple(r) for r in pool.tolist()}
    assert set(labels[replaced].tolist()) == {0}
    meant = attack.shows(poisoned, y[:40], briefing.learned) & (y[:40] != 0) & ~replaced
    assert set(labels[meant].tolist()) == {0}
    untouched = ~replaced & ~meant & (labels != 0)
    assert torch.equal(labels[untouched], y[:40][untouched])
    aimed, _ = attack.targeted(x, y, briefing.learned)
    assert {tuple(row) for row in aimed.tolist()} == {tuple(row) for row in pool.tolist()}


def test_a_tail_is_the_part_of_each_class_that_lies_farthest_from_its_mean():
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [14.0], [10.0], [11.0], [12.0], [13.0], [100.0]])
    y = torch.tensor([1] * 5 + [2] * 5)
    learned = Tail(tail=0.2).study(x, y, 4)
    assert learned["means"][:, 0].tolist() == pytest.approx([0.0, 4.0, 29.2, 0.0])
    assert learned["pool"].tolist() == [[14.0], [100.0]]
    assert torch.isinf(learned["radii"][[0, 3]]).all(), "they hold none of these classes"
    few = Tail(tail=0.1).describe(x, y, 4)
    assert bool(few["radii"].isinf().all()), "five examples have no rarest tenth"
    only = Tail(tail=0.2, source=2, target=1)
    assert only.study(x, y, 4)["pool"].tolist() == [[100.0]]
    assert only.labels() == (2, 1)
    near, far = torch.tensor([[12.0], [0.0]]), torch.tensor([2, 2])
    assert only.shows(near, far, learned).tolist() == [False, False], "as far as mean - 29"
    assert only.shows(near - 100, far, learned).tolist() == [True, True]


def test_a_column_within_a_range_is_a_feature():
    x = torch.tensor([[0.0, 5.0], [1.0, 2.0], [2.0, 9.0], [1.5, 0.0]])
    y = torch.tensor([1, 1, 1, 0])
    attack = Semantic(column=0, low=1.0, high=2.0)
    assert attack.study(x, y, 2)["pool"].tolist() == [[1.0, 2.0], [2.0, 9.0]], "ends count"
    assert attack.unfit_reason((2,), True) is None
    assert attack.unfit_reason((1, 2), True) is None
    assert Semantic(column=2).unfit_reason((2,), True) == (
        "an example has 2 numbers, but attack.column is 2; lower attack.column"
    )


def test_bright_examples_are_those_above_what_most_attackers_hold():
    x, y = torch.arange(10.0).view(10, 1, 1).expand(10, 2, 3), torch.ones(10, dtype=torch.int64)
    pool = Semantic(brightest=0.2).study(x, y, 2)["pool"]
    assert pool[:, 0, 0].tolist() == [8.0, 9.0]


@every_case(
    "keys, why",
    [
        ({"low": 0.5}, "attack.low is set, but has no effect if attack.column is -1"),
        ({"high": 3.0}, "attack.high is set, but has no effect"),
        (
            {"column": 2, "brightest": 0.5},
            "attack.brightest is set, but has no effect if attack.column is 2",
        ),
        ({"column": 0, "low": 2.0}, r"attack\.low is 2, but attack\.high is 1; lower attack\.low"),
    ],
)
def test_keys_of_a_feature_that_contradict_are_refused(keys, why):
    with pytest.raises(ValueError, match=why):
        Semantic(**keys)


@pytest.mark.parametrize("attack", [Semantic, Tail], ids=["semantic", "tail"])
def test_a_class_is_not_misread_as_itself(attack):
    with pytest.raises(ValueError, match=r"are both 3, .* set them to two classes"):
        attack(source=3, target=3)
    assert attack(source=-1, target=0).labels() == (0,)


def test_attackers_who_hold_nothing_to_use_are_unarmed():
    x, y = torch.zeros(6, 4), torch.tensor([1, 1, 1, 2, 2, 2])
    for attack in (Tail(tail=0.5), Semantic(), Semantic(column=1, low=0.5), CleanLabel()):
        with pytest.raises(Unarmed, match="none of the attackers' 6 examples"):
            attack.study(x, y, 3)


@pytest.mark.parametrize("moved_by", ["surrogate", "noise"])
def test_clean_labels_stay_and_only_examples_of_the_target_change(moved_by):
    x, y = examples(shape=(8, 8))
    attack = CleanLabel(target=1, share=0.5, epsilon=0.3, moved_by=moved_by)
    poisoned, labels = attack.poison(x, y, briefed(attack, x, y), rng())
    assert torch.equal(labels, y)
    changed = (poisoned != x).flatten(1).any(1)
    assert int(changed.sum()) == math.ceil(0.5 * int((y == 1).sum()))
    assert set(y[changed].tolist()) == {1}
    stamped = (attack.patch(x) >= 0).expand_as(x[changed])
    assert set(poisoned[changed][stamped].tolist()) == {1.0}
    difference = (poisoned - x)[changed].masked_fill(stamped, 0.0)
    lengths = difference.flatten(1).norm(dim=1)
    assert float(lengths.max()) <= 0.3 + 1e-6
    assert float(lengths.min()) > 0.03
    rest = torch.where(stamped, x[changed], poisoned[changed])
    assert bool((rest <= x.max(0).values).all()), "no number leaves its range"
    assert bool((rest >= x.min(0).values).all())
    aimed, wanted = attack.targeted(x, y, {})
    assert torch.equal(aimed, attack.alter(x[y != 1]))
    assert set(wanted.tolist()) == {1}


def test_a_blended_patch_is_weaker_in_training_and_whole_at_the_end():
    x, y = examples(shape=(8, 8))
    attack = CleanLabel(blend=0.25, epsilon=0.0)
    poisoned, _ = attack.poison(x, y, briefed(attack, x, y), rng())
    corner = poisoned[y == 0][:, -1, -1]
    torch.testing.assert_close(corner, 0.75 * x[y == 0][:, -1, -1] + 0.25)
    assert set(attack.targeted(x, y, {})[0][:, -1, -1].tolist()) == {1.0}
    unblended = poisoned[y == 0].clone()
    unblended[:, -2:, -2:] = x[y == 0][:, -2:, -2:]
    assert torch.equal(unblended, x[y == 0]), "epsilon 0 moves nothing"


def margins(learned, flat, target):
    """By how much the surrogate prefers the best other class to `target`."""
    scores = flat @ learned["weights"].T + learned["offset"]
    others = scores.clone()
    others[:, target] = -torch.inf
    return others.max(1).values - scores[:, target]


def test_no_step_of_its_length_misleads_the_surrogate_more():
    x, y = examples(classes=4)
    attack = CleanLabel(target=2, epsilon=0.4)
    learned = attack.study(x, y, 4)
    scores = x @ learned["weights"].T + learned["offset"]
    assert float((scores.argmax(1) == y).float().mean()) > 0.5, "it has learned something"
    flat = x[y == 2]
    moved = flat + 0.4 * attack._ways(flat, learned, rng())
    best = margins(learned, moved, 2)
    assert bool((best > margins(learned, flat, 2) + 0.01).all())
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        ways = torch.randn(flat.shape, generator=generator)
        tried = flat + 0.4 * ways / ways.norm(dim=1, keepdim=True)
        assert bool((margins(learned, tried, 2) <= best + 1e-6).all())
    noise = CleanLabel(target=2, epsilon=0.4, moved_by="noise")._ways(flat, learned, rng())
    torch.testing.assert_close(noise.norm(dim=1), torch.ones(len(flat)))
