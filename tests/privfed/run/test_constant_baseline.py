"""The best answer that looks at nothing, by hand and by search; and when a run is worse than it."""

import itertools
import math

import pytest
import torch
from lanes import every_case

from privfed.data.federation import Examples, Meaning
from privfed.models.losses.cross_entropy import BinaryCrossEntropy, CrossEntropy, MultiLabel
from privfed.models.losses.squared_error import SquaredError
from privfed.run.evaluation.divergence import Baseline, Divergence, best_constant


def labelled(y, classes, **meaning):
    y = torch.tensor(y)
    return Examples(torch.zeros(len(y), 2), y, classes, meaning=Meaning(**meaning))


def test_of_classes_it_is_the_most_frequent_and_the_entropy():
    best = best_constant(CrossEntropy(), labelled([2, 2, 2, 0], 4))
    assert best["accuracy"] == 0.75
    assert best["loss"] == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_of_a_text_only_labelled_positions_count_and_each_example_weighs_one():
    """Accuracy counts positions (three of five are 1), the loss examples (half is 0)."""
    best = best_constant(CrossEntropy(), labelled([[0, -1, -1, -1], [0, 1, 1, 1]], 3))
    assert best["accuracy"] == 3 / 5
    share = (1 + 1 / 4) / 2
    expected = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert best["loss"] == pytest.approx(expected)


def test_of_two_classes_it_has_half_the_area():
    best = best_constant(BinaryCrossEntropy(), labelled([1, 0, 0, 0, 0], 2))
    assert best["auc"] == 0.5
    assert best["accuracy"] == 0.8
    assert best["loss"] == pytest.approx(-(0.2 * math.log(0.2) + 0.8 * math.log(0.8)))


def test_of_several_labels_no_other_choice_recalls_more():
    """The most frequent label is not the best: it always stands beside three others."""
    y = [[1.0, 1, 1, 1], [1.0, 1, 1, 1], [0.0, 0, 0, 1], [0.0, 0, 0, 0]]
    y = [*y, [1.0, 0, 1, 1]]
    loss = MultiLabel(k=2)
    best = best_constant(loss, labelled(y, 4))
    tried = []
    for chosen in itertools.combinations(range(4), 2):
        outputs = torch.zeros(len(y), 4)
        outputs[:, list(chosen)] = 1.0
        tried.append(loss.measures(loss.scores(outputs, torch.tensor(y), Meaning()))["recall_at_2"])
    assert best["recall_at_2"] == pytest.approx(max(tried))
    assert max(tried) > min(tried)


def test_of_numbers_it_is_the_median_and_the_variance():
    y = [[-1.0], [0.0], [0.1], [1.0], [1.0]]
    best = best_constant(SquaredError(), labelled(y, 1, scale=10.0, shift=3.0))
    assert best["mae"] == pytest.approx(10 * (1.1 + 0.1 + 0 + 0.9 + 0.9) / 5)
    assert best["loss"] == pytest.approx(torch.tensor(y).var(correction=0).item())


@every_case("loss, y, classes", [
    (CrossEntropy(), [0, 2, 2, 1, 0, 2], 3),
    (BinaryCrossEntropy(), [0, 1, 1, 1], 2),
    (MultiLabel(k=1), [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], 2),
    (SquaredError(), [[0.3], [0.9], [-0.2]], 1),
])  # fmt: skip
def test_no_other_outputs_have_less_loss(loss, y, classes):
    examples = labelled(y, classes)
    least = loss.minimiser(examples.y, loss.width(examples)).clone().requires_grad_()
    mean = loss.losses(least.expand(len(y), -1), examples.y).mean()
    (gradient,) = torch.autograd.grad(mean, least)
    assert gradient.abs().max() < 1e-6, "all of these losses are convex"
    assert mean.item() == pytest.approx(best_constant(loss, examples)["loss"], rel=1e-6)


def test_of_labels_that_are_all_alike_it_is_finite():
    assert best_constant(CrossEntropy(), labelled([1, 1], 3)) == {
        "accuracy": 1.0,
        "loss": pytest.approx(0, abs=1e-9),
    }
    assert math.isfinite(best_constant(MultiLabel(k=1), labelled([[0.0, 1.0]] * 2, 2))["loss"])


def test_predictions_of_numbers_stay_within_their_bounds_and_are_scored_there():
    outputs, meaning = torch.tensor([[-7.0], [0.5], [1e20]]), Meaning(scale=10.0, shift=30.0)
    assert SquaredError().predict(outputs, meaning)["prediction"].tolist() == [20.0, 35.0, 40.0]
    kept = SquaredError().scores(outputs, torch.tensor([[-1.0], [0.5], [0.0]]), meaning)
    assert kept.flatten().tolist() == [0.0, 0.0, 10.0]
    assert SquaredError().losses(outputs, torch.zeros(3, 1))[0] == 49, "its gradient points back"


def after(*losses, constant=1.0):
    state = Divergence()
    for round, loss in enumerate(losses, start=1):
        state = state.after(round, loss, constant)
    return state


@every_case("losses, established", [
    ((1.5, 1.6, 1.7), False),
    ((1.5, 1.6, 1.7, 1.8), True),
    ((0.5, 1.6, 1.7, 1.8), True),
    ((0.5, 1.6, 0.9, 1.8, 1.9), False),
    ((9.0, 8.0, 7.0, 6.0, 5.0), False),
    ((9.0, 8.0, 8.5, 8.2, 8.1), True),
    ((0.5, math.inf), True),
    ((0.5, math.nan), True),
    ((0.5, math.nan, 0.4), False),
])  # fmt: skip
def test_divergence_is_a_loss_above_a_constants_that_does_not_fall(losses, established):
    """Nothing is wrong with a run that is still on its way from a bad start."""
    assert after(*losses).established is established


def test_a_run_is_warned_once_and_an_interrupted_one_counts_on():
    examples = labelled([0, 1], 2)
    whole, resumed = Baseline(CrossEntropy()), Baseline(CrossEntropy())
    losses = dict(enumerate([0.5, 2.0, 3.0, 4.0, 5.0], start=1))
    warned = [whole.judge(round, loss, examples) for round, loss in losses.items()]
    assert warned == [False, False, False, True, False]
    resumed.go_on({round: losses[round] for round in (1, 2, 3)}, examples)
    assert resumed.judge(4, losses[4], examples)
    resumed.judge(5, losses[5], examples)
    assert resumed.divergence == whole.divergence
