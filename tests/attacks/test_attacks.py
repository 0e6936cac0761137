"""Attacks by hand, by their definition, and by what they are shown."""

import numpy as np
import pytest
import torch
from contracts.test_attack import CONTRACTS
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from attacks.poisoning.backdoor import Backdoor, EdgeCase
from attacks.poisoning.feature_noise import FeatureNoise
from attacks.poisoning.label_flip import LabelFlip
from attacks.types import Briefing, NoAttack, View
from attacks.updates.fang import Fang
from attacks.updates.mimic import Mimic
from attacks.updates.min_max import MinMax, MinSum
from attacks.updates.statistics import Alie, z_max
from defenses.on_rows.krum import Krum

VARIANTS = [Fang(against="krum"), LabelFlip(flip="one"), Backdoor(boost=2.0)]


def rng(seed=0):
    return np.random.default_rng(seed)


def cloud(n, d=6, seed=0, shift=1.0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift


@every_case("contract", CONTRACTS, ids=lambda each: each.__name__)
@every_case("attack", VARIANTS, ids=lambda each: type(each).__name__)
def test_attacks_of_other_keys_keep_the_contracts(attack, contract):
    contract(attack)


def test_labels_are_flipped_all_or_one():
    ten, x, y = Briefing(10), torch.zeros(10, 1), torch.arange(10)
    assert LabelFlip().poison(x, y, ten, rng())[1].tolist() == y.flip(0).tolist()
    single = LabelFlip(flip="one", source=2, target=5)
    assert single.poison(x, y, ten, rng())[1].tolist() == [0, 1, 5, *range(3, 10)]
    aimed, wanted = single.targeted(torch.arange(10.0)[:, None], y, {})
    assert (aimed.tolist(), wanted.tolist()) == ([[2.0]], [5])
    assert LabelFlip().targeted(x, y, {}) is None
    positions = torch.tensor([-1, 0])
    assert LabelFlip().poison(x[:2], positions, ten, rng())[1].tolist() == [-1, 9]


def test_feature_noise_has_the_stated_strength():
    x = torch.randn(200, 50)
    noised = FeatureNoise(strength=3.0).poison(x, torch.zeros(200), Briefing(2), rng())[0]
    assert float((noised - x).std()) == pytest.approx(3.0, rel=0.05)


@every_case("shape", [(5, 1, 8, 8), (5, 8, 8), (5, 64), (5, 60)])
def test_a_trigger_is_a_patch_in_the_corner_and_nothing_else(shape):
    x = torch.rand(shape) / 2
    stamped = Backdoor(size=2).alter(x)
    changed = (stamped != x).flatten(1)
    assert bool((changed.sum(1) == 4).all())
    assert float(stamped.flatten(1)[:, -1].min()) == 1.0
    if shape == (5, 64):
        assert torch.equal(stamped, Backdoor(size=2).alter(x.view(5, 8, 8)).view(5, 64))


@every_case(
    "shape, largest",
    [((2, 28), 2), ((3, 2, 28), 2), ((3, 2, 2), 1), ((1, 1, 4), 1), ((9,), 2), ((10,), 3)],
    ids=str,
)
def test_a_patch_that_lies_in_no_image_or_covers_it_does_not_fit(shape, largest):
    for size in range(1, largest + 1):
        attack = Backdoor(size=size)
        assert attack.unfit_reason(shape, True) is None
        stamped = attack.alter(torch.zeros(2, *shape))[0]
        channels = shape[0] if len(shape) == 3 else 1
        assert int(stamped.sum()) == channels * size**2 < stamped.numel()
    assert "lower attack.size" in Backdoor(size=largest + 1).unfit_reason(shape, True)


def test_a_backdoor_poisons_its_share_and_aims_at_other_classes():
    x, y = torch.rand(20, 64), torch.arange(20) % 4
    attack = Backdoor(target=3, share=0.25)
    poisoned, labels = attack.poison(x, y, Briefing(4), rng())
    assert int((poisoned != x).any(1).sum()) == 5
    assert bool((labels[(poisoned != x).any(1)] == 3).all())
    aimed, wanted = attack.targeted(x, y, {})
    assert len(aimed) == 15
    assert wanted.tolist() == [3] * 15
    assert not attack.corrupts, "without boosting only data are poisoned"
    trained = cloud(2)
    assert torch.equal(Backdoor(boost=7.0).corrupt(View(1, trained), {}, rng())[0], 7.0 * trained)
    torch.testing.assert_close(EdgeCase(low=-1.0, high=3.0).alter(x), 2.0 - x)


@every_case("n, m, z", [(25, 5, 0.253), (12, 2, 0.0), (50, 24, 1.426)])
def test_alie_at_the_published_strength(n, m, z):
    assert z_max(n, m) == pytest.approx(z, abs=1e-3)
    honest = cloud(n - m)
    sent = Alie().corrupt(View(1, cloud(m), honest), {}, rng())[0]
    expected = honest.mean(0) - z_max(n, m) * honest.std(0, correction=0)
    torch.testing.assert_close(sent, expected.expand(m, -1))


@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 9), d=st.integers(1, 5))
def test_min_max_and_min_sum_go_as_far_as_they_may_and_no_farther(direction, seed, n, d):
    honest = cloud(n, d, seed).double()
    mean = honest.mean(0)
    pairs = torch.cdist(honest, honest)
    cases = [
        (MinMax(direction=direction), lambda m: (m - honest).norm(dim=1).max(), pairs.max()),
        (
            MinSum(direction=direction),
            lambda m: (m - honest).square().sum(),
            pairs.square().sum(1).max(),
        ),
    ]
    for attack, measure, bound in cases:
        sent = attack.corrupt(View(1, cloud(1, d), honest), {}, rng())[0][0].double()
        assert float(measure(sent)) <= float(bound) * (1 + 1e-5) + 1e-6, "it shows"
        farther = mean + (sent - mean) * 1.01
        if float((sent - mean).norm()) > 1e-3:
            assert float(measure(farther)) > float(bound) * (1 - 1e-4), "it could go farther"


def test_mimic_learns_the_widest_direction_and_copies_one_client():
    generator = torch.Generator().manual_seed(0)
    attack, state = Mimic(warmup=10), {}
    for round in range(12):
        honest = 0.1 * torch.randn(8, 5, generator=generator)
        honest[:, 2] += torch.linspace(-3, 3, 8)
        sent, state = attack.corrupt(View(round, torch.zeros(2, 5), honest), state, rng(round))
        assert any(torch.equal(sent[0], row) for row in honest)
        assert torch.equal(sent[0], sent[1])
    assert abs(float(state["direction"][2])) > 0.99
    assert int(state["rounds"]) == 12
    last = state["direction"]
    _, state = attack.corrupt(View(13, torch.zeros(2, 5), torch.randn(8, 5)), state, rng())
    assert torch.equal(state["direction"], last), "the direction is learned in the warm-up alone"


def spread(leader, *, broken=None):
    """Eight clients along one coordinate, `leader` the farthest out; one row may be broken."""
    rows = torch.zeros(8, 5)
    rows[:, 2] = torch.linspace(-1, 1, 8)
    rows[leader, 2] = 4.0
    rows[:, 0] = torch.arange(8.0) / 100  # tells whose row it is
    if broken is not None:
        rows[broken] = torch.nan
    return rows


def copied(sent):
    return round(100 * float(sent[0, 0]))


def mimicked(attack, rounds):
    """Whose row is sent in each of these `rounds`, of honest rows and whose they are."""
    state, victims = {"direction": torch.eye(5)[2]}, []
    for number, (honest, identities) in enumerate(rounds):
        view = View(number, torch.zeros(2, 5), honest, None, identities)
        sent, state = attack.corrupt(view, state, rng(number))
        victims.append(copied(sent))
    return victims


def test_mimic_copies_one_client_ever_after_its_warm_up():
    everybody = np.arange(10, 18)
    rounds = [(spread(leader), everybody) for leader in (1, 4, 6, 2, 7)]
    assert mimicked(Mimic(warmup=2), rounds) == [1, 4, 4, 4, 4]
    anonymous = [(honest, None) for honest, _ in rounds]
    assert mimicked(Mimic(warmup=2), anonymous) == [1, 4, 6, 2, 7], "nobody knows who is who"


def test_mimic_knows_its_victim_wherever_it_stands_and_waits_for_it():
    everybody, others = np.arange(8), np.array([0, 1, 2, 3, 5, 6, 7])
    turned = everybody[::-1].copy()
    rounds = [
        (spread(4), everybody),
        (spread(6)[torch.from_numpy(turned)], turned),
        (spread(6)[torch.from_numpy(others)], others),  # the victim is not drawn
        (spread(6, broken=4), everybody),
        (spread(6, broken=1), everybody),
    ]
    assert mimicked(Mimic(warmup=1), rounds) == [4, 4, 6, 6, 4]


def test_fang_lies_just_outside_the_honest_range_against_the_trend():
    honest = torch.tensor([[1.0, -1.0, 2.0, -4.0], [3.0, 5.0, 4.0, -2.0]])  # means 2, 2, 3, -3
    sent = Fang().corrupt(View(1, torch.zeros(200, 4), honest), {}, rng())[0]
    for column, (low, high) in enumerate([(0.5, 1.0), (-2.0, -1.0), (1.0, 2.0), (-2.0, -1.0)]):
        assert float(sent[:, column].min()) >= low
        assert float(sent[:, column].max()) <= high
    down = Fang().corrupt(View(1, torch.zeros(200, 4), -honest), {}, rng())[0]
    assert float(down[:, 1].min()) >= 1.0, "above the largest, where honest ones go down"
    assert float(down[:, 1].max()) <= 2.0


def test_fang_finds_what_krum_picks():
    honest = cloud(9, 4, shift=0.5)
    view = View(1, torch.zeros(4, 4), honest, lambda rows: Krum()(rows, 4))
    sent = Fang(against="krum").corrupt(view, {}, rng())[0]
    picked = Krum()(torch.cat([sent, honest]), 4)
    torch.testing.assert_close(picked, sent[0])
    assert float(picked @ honest.mean(0)) < 0


def test_nobody_attacks_by_default():
    assert not NoAttack().corrupts
    assert not NoAttack().poisons
    assert NoAttack().targeted(torch.zeros(1, 1), torch.zeros(1), {}) is None
