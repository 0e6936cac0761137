"""The attacker that tries the rule out: no attack that does not harms more, by its own measure."""

import numpy as np
import pytest
import torch
from lanes import mostly_slow
from rules import ROWS

from attacks.types import View
from attacks.updates.adaptive import Adaptive
from attacks.updates.candidates import FIXED, directions, first_principal
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.sign_majority import SignMajority
from defenses.weighing import Composed

N, HOSTILE, D = 15, 3, 12
SUMS = {
    "mean": Mean(),
    "centered_clipping": CenteredClipping(radius=1.0),
    "sign_majority": SignMajority(),
    "geometric_median, two passes": GeometricMedian(),
}
EVERY = {**ROWS, **{name: Composed(before=(), rule=rule) for name, rule in SUMS.items()}}
AIMS = ["backwards", "distance"]


def rng():
    return np.random.default_rng(5)


def honest_rows(shift, seed=1):
    """Rows that agree on a direction, and vary most in another."""
    rows = torch.randn(N - HOSTILE, D, generator=torch.Generator().manual_seed(seed))
    rows[:, 3] *= 3.0
    return rows + shift


def aggregates(rule, attack, shift=0.3):
    """What `rule` makes of the rows that `attack` sends, and the honest mean."""
    honest = honest_rows(shift)
    byzantine = honest_rows(shift, seed=2)[:HOSTILE]
    view = View(1, byzantine, honest, lambda rows: rule(rows, HOSTILE))
    sent, _ = attack.corrupt(view, {}, rng())
    return rule(torch.cat([sent, honest]), HOSTILE), honest.mean(0)


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("name", mostly_slow(EVERY, "trimmed_mean", "krum", *SUMS))
def test_no_fixed_attack_harms_any_rule_more(name, aim):
    rule, adaptive = EVERY[name], Adaptive(aim=aim)
    best = adaptive.harm(*aggregates(rule, adaptive))
    for attack in FIXED:
        assert best >= adaptive.harm(*aggregates(rule, attack)) - 1e-6, repr(attack)


def test_what_is_farthest_off_is_not_what_sets_back_most():
    """By the distance alone the attack takes a direction that costs honest clients little."""
    judge = Adaptive()
    backwards, farthest = Adaptive(), Adaptive(aim="distance")
    for rule in (EVERY["trimmed_mean"], EVERY["median"]):
        far, back = (judge.harm(*aggregates(rule, attack)) for attack in (farthest, backwards))
        assert far < back / 2


def test_the_harm_by_hand():
    aggregate, mean = torch.tensor([-1.0, 7.0]), torch.tensor([2.0, 0.0])
    assert Adaptive().harm(aggregate, mean) == pytest.approx(3.0)
    assert Adaptive(aim="distance").harm(aggregate, mean) == pytest.approx(58**0.5)
    assert Adaptive().harm(aggregate, torch.zeros(2)) == pytest.approx(50**0.5), "no way back"


def test_the_first_principal_direction_is_the_top_singular_vector():
    rows = honest_rows(1.0)
    top = torch.linalg.svd(rows - rows.mean(0)).Vh[0]
    assert abs(float(first_principal(rows) @ top)) == pytest.approx(1.0, abs=1e-5)
    assert not first_principal(torch.ones(4, 3)).any()
    std = float(rows.std(0, correction=0).norm())
    assert [float(way.norm()) for way in directions(rows)] == pytest.approx([std] * 5)


def test_refining_finds_a_strength_between_those_of_the_grid():
    """A rule that keeps rows up to a length: the worst is as long as that, to a few percent."""
    honest, limit = honest_rows(0.3), 40.0

    def rule(rows):
        return rows[rows.norm(dim=1) <= limit].mean(0)

    view = View(1, torch.zeros(HOSTILE, D), honest, rule)
    sent, _ = Adaptive(steps=9).corrupt(view, {}, rng())
    assert 0.95 * limit <= float(sent[0].norm()) <= limit
    rough, _ = Adaptive(steps=2).corrupt(view, {}, rng())
    judge = Adaptive()
    harms = [judge.harm(rule(torch.cat([rows, honest])), honest.mean(0)) for rows in (rough, sent)]
    assert harms[0] <= harms[1]
