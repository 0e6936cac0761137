"""Attackers who train in their own way: each step by hand, and where many of them lead."""

import numpy as np
import pytest
import torch
from lanes import every_case

from attacks.poisoning.constrain_and_scale import ConstrainAndScale, shortened
from attacks.poisoning.neurotoxin import Neurotoxin
from attacks.poisoning.pgd_replacement import PgdReplacement
from attacks.types import Knowledge, View


def rng():
    return np.random.default_rng(0)


def rows(n, d=6, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).double()


def descended(attack, start, gradient, steps, lr=0.3):
    """How far from `start` `[c, d]` each of `steps` steered steps along `gradient` leads."""
    away, path = torch.zeros_like(start), []
    for _ in range(steps):
        away = away - lr * attack.steer(gradient(start + away), away, lr, {})
        path.append(away)
    return path


@every_case("alpha", [0.1, 0.7, 1.0])
def test_constrain_and_scale_descends_along_its_loss(alpha):
    """alpha L + (1 - alpha) |w - w_t|, by automatic differentiation."""
    start, w = rows(3), rows(3, seed=1).requires_grad_()
    loss = w.pow(4).sum()
    distance = (w - start).norm(dim=1).sum()
    (expected,) = torch.autograd.grad(alpha * loss + (1 - alpha) * distance, w)
    attack = ConstrainAndScale(alpha=alpha)
    steered = attack.steer(4 * w.detach() ** 3, w.detach() - start, 0.1, {})
    torch.testing.assert_close(steered, expected)
    still = attack.steer(torch.ones(1, 6), torch.zeros(1, 6), 0.1, {})
    torch.testing.assert_close(still, torch.full((1, 6), alpha))


def test_constrain_and_scale_stays_nearer():
    def gradient(w):
        return w - 5.0

    start = torch.zeros(1, 6).double()
    free = descended(ConstrainAndScale(alpha=1.0), start, gradient, 30)[-1]
    tied = descended(ConstrainAndScale(alpha=0.2), start, gradient, 30)[-1]
    assert float(tied.norm()) < 0.9 * float(free.norm())


def test_updates_are_scaled_up_to_a_length():
    view = View(1, torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]))
    sent = ConstrainAndScale(boost=4.0, longest=10.0).corrupt(view, {}, rng())[0]
    torch.testing.assert_close(sent, torch.tensor([[6.0, 8.0], [1.2, 1.6], [0.0, 0.0]]))
    free = ConstrainAndScale(boost=4.0).corrupt(view, {}, rng())[0]
    torch.testing.assert_close(free, 4.0 * view.byzantine)
    assert ConstrainAndScale(longest=1.0).corrupts
    assert not ConstrainAndScale().corrupts


def test_pgd_never_leaves_the_ball_and_goes_on_inside_it():
    """Toward (2, 2) it slides along the sphere; the end point cut to length lies elsewhere."""

    def gradient(w):  # first rightward, and the farther right the more upward
        return torch.stack([w[:, 0] - 2.0, -2.0 * w[:, 0]], dim=1)

    attack, start = PgdReplacement(epsilon=1.0), torch.zeros(1, 2).double()
    path = descended(attack, start, gradient, 12)
    assert all(float(away.norm()) <= 1.0 + 1e-9 for away in path)
    assert float(path[-1].norm()) == pytest.approx(1.0)
    free = descended(PgdReplacement(epsilon=1e6), start, gradient, 12)[-1]
    assert float((shortened(free, 1.0) - path[-1]).norm()) > 0.05, "no cut at the end is the same"


def test_pgd_inside_the_ball_is_an_honest_step():
    away, direction = 0.01 * rows(4), rows(4, seed=1)
    attack = PgdReplacement(epsilon=50.0)
    torch.testing.assert_close(attack.steer(direction, away, 0.1, {}), direction)
    assert torch.equal(attack.steer(direction, away, 0.0, {}), direction), "a rate of zero"


def watched(attack, *models):
    state = {}
    for params in models:
        state = attack.watch(params, state)
    return state


def test_neurotoxin_leaves_what_moved_most_alone():
    attack = Neurotoxin(top=0.5)
    still, moved = torch.zeros(4), torch.tensor([0.1, -3.0, 2.0, 0.0])
    direction = torch.arange(1.0, 9.0).view(2, 4)
    first = attack.steer(direction, torch.zeros(2, 4), 0.1, watched(attack, still))
    assert torch.equal(first, direction), "nothing has moved yet"
    state = watched(attack, still, moved)
    steered = attack.steer(direction, torch.zeros(2, 4), 0.1, state)
    assert steered.tolist() == [[1.0, 0.0, 0.0, 4.0], [5.0, 0.0, 0.0, 8.0]]
    back = watched(attack, still, moved, moved + torch.tensor([5.0, 0.0, 0.0, 4.0]))
    assert attack.steer(direction, torch.zeros(2, 4), 0.1, back)[0].tolist() == [0.0, 2.0, 3.0, 0.0]
    everything = watched(Neurotoxin(top=0.0), still, moved)
    assert torch.equal(Neurotoxin(top=0.0).steer(direction, direction, 0.1, everything), direction)


def test_neurotoxin_learns_nothing_from_a_model_that_did_not_move():
    attack, still = Neurotoxin(top=0.5), torch.zeros(4)
    moved = torch.tensor([0.0, -3.0, 0.0, 0.0])
    assert watched(attack, still, still)["free"].tolist() == [1.0] * 4, "nothing moved so far"
    former = watched(attack, still, moved)["free"]
    assert former.tolist() == [1.0, 0.0, 1.0, 1.0], "fewer moved than may be left alone"
    assert torch.equal(watched(attack, still, moved, moved)["free"], former)


def test_what_is_watched_is_not_changed_later():
    attack, params = Neurotoxin(), torch.zeros(4)
    state = attack.watch(params, {})
    params += 1.0
    assert state["params"].tolist() == [0.0] * 4
    assert Knowledge.BROADCASTS in attack.knows
    assert Knowledge.ALL_HONEST not in attack.knows
