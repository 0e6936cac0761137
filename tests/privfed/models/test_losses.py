"""Losses and measures, by hand; and local training with each of them."""

import math

import numpy as np
import pytest
import torch
from helpers import built
from lanes import every_case
from torch import nn
from torch.nn import functional as F

from privfed.client.objective import Sgd
from privfed.client.trainer import LocalTrainer
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation, Meaning
from privfed.models.losses.cross_entropy import BinaryCrossEntropy, CrossEntropy, MultiLabel
from privfed.models.losses.squared_error import SquaredError
from privfed.models.recipes import Mlp

NOTHING = Meaning()


def measured(loss, outputs, y, meaning=NOTHING):
    outputs, y = torch.tensor(outputs), torch.tensor(y)
    halves = [loss.scores(outputs[s], y[s], meaning) for s in (slice(0, 1), slice(1, None))]
    return loss.measures(torch.cat(halves))


def test_accuracy_counts_labelled_positions_only():
    logits = [[[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]], [[2.0, 0.0]] * 3]
    labels = [[0, 0, -1], [1, 0, 0]]
    assert measured(CrossEntropy(), logits, labels) == {"accuracy": 3 / 5}
    losses = CrossEntropy().losses(torch.tensor(logits), torch.tensor(labels))
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert losses.tolist() == pytest.approx([(right + wrong) / 2, (wrong + 2 * right) / 3])


def test_an_example_without_any_label_has_no_loss():
    losses = CrossEntropy().losses(torch.randn(2, 3, 4), torch.tensor([[-1] * 3, [0] * 3]))
    assert losses[0] == 0
    assert losses[1] > 0


@every_case("width", [2, 10, 15, 16, 30])
def test_the_cross_entropy_of_stacked_models_and_its_gradient(width):
    count = 60
    outputs = torch.randn(count, width, generator=torch.Generator().manual_seed(1)) * 5
    outputs.requires_grad_()
    y = torch.arange(count) % width
    losses = CrossEntropy().stacked(outputs.view(4, 15, width), y.view(4, 15)).flatten()
    expected = outputs.double().exp().sum(1).log() - outputs.double()[torch.arange(count), y]
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    right = outputs.double().softmax(1) - F.one_hot(y, width)
    torch.testing.assert_close(gradient.double(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_output_that_is_no_number_spoils_its_own_loss_only(bad):
    outputs = torch.zeros(4, 5, 10)
    outputs[2, 1, 3] = bad
    losses = CrossEntropy().stacked(outputs, torch.full((4, 5), 3))
    assert losses.isnan().nonzero().tolist() == [[2, 1]]


@pytest.mark.parametrize("width", [3, 10])
def test_a_label_of_no_class_is_an_error(width):
    for count in (1, 300):
        with pytest.raises(IndexError, match=str(width)):
            CrossEntropy().stacked(torch.zeros(2, count, width), torch.full((2, count), width))


def test_a_model_has_the_same_loss_whoever_is_stacked_beside_it():
    outputs = torch.randn(40, 10, 10)
    y = torch.randint(0, 10, (40, 10))
    few = [CrossEntropy().stacked(*pair) for pair in zip(outputs.split(3), y.split(3), strict=True)]
    assert torch.equal(CrossEntropy().stacked(outputs, y), torch.cat(few))


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs():
    score, y = [[0.1], [0.9], [0.5], [0.5], [-2.0]], [0, 1, 1, 0, 0]
    pairs = [
        (a > b) + 0.5 * (a == b)
        for (a,), one in zip(score, y, strict=True)
        for (b,), zero in zip(score, y, strict=True)
        if one and not zero
    ]
    found = measured(BinaryCrossEntropy(), score, y)
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert found["accuracy"] == 3 / 5
    with pytest.raises(Refused, match="all scored examples have one class"):
        measured(BinaryCrossEntropy(), score, [1] * 5)


def test_recall_at_k_is_the_share_of_an_examples_labels_among_the_likeliest():
    likely = [[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 0.0]]
    labels = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    assert measured(MultiLabel(k=2), likely, labels) == {"recall_at_2": (0.5 + 1.0) / 2}
    assert measured(MultiLabel(k=1), likely[2:] * 2, labels[2:] * 2) == {"recall_at_1": 0.0}


def test_the_absolute_error_is_in_the_labels_own_units():
    meaning = Meaning(scale=50.0, shift=50.0)
    outputs, y = [[0.5], [-1.0]], [[0.0], [-0.8]]
    assert measured(SquaredError(), outputs, y, meaning)["mae"] == pytest.approx((25 + 10) / 2)
    told = SquaredError().predict(torch.tensor(outputs), meaning)["prediction"]
    assert told.tolist() == [75.0, 0.0]


WORDS = Examples(torch.zeros(2, 3), torch.tensor([0, 2]), 3)
PAIR = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), 2)
MANY = Examples(torch.zeros(2, 3), torch.zeros(2, 4), 4)
NUMBER = Examples(torch.zeros(2, 3), torch.zeros(2, 1), 1)


@every_case(
    "loss, examples, width",
    [
        (CrossEntropy(), WORDS, 3),
        (CrossEntropy(), PAIR, 2),
        (BinaryCrossEntropy(), PAIR, 1),
        (MultiLabel(), MANY, 4),
        (SquaredError(), NUMBER, 1),
    ],
)
def test_each_loss_knows_how_many_outputs_it_needs(loss, examples, width):
    assert loss.width(examples) == width


@every_case(
    "loss, examples, message",
    [
        (CrossEntropy(), MANY, "use model.loss = 'multi_label'"),
        (CrossEntropy(), NUMBER, "use model.loss = 'squared_error'"),
        (BinaryCrossEntropy(), WORDS, "use model.loss = 'cross_entropy'"),
        (MultiLabel(), PAIR, "use model.loss = 'binary_cross_entropy'"),
        (MultiLabel(k=5), MANY, "there are 4 labels"),
        (SquaredError(), MANY, "use model.loss = 'multi_label'"),
        (SquaredError(), PAIR, "which needs a number"),
    ],
)
def test_labels_that_do_not_fit_a_loss_are_refused_with_what_would(loss, examples, message):
    with pytest.raises(Refused, match=message):
        loss.width(examples)


def labels(loss, count):
    rng = torch.Generator().manual_seed(1)
    if isinstance(loss, CrossEntropy):
        return torch.randint(0, 3, (count,), generator=rng), 3
    if isinstance(loss, BinaryCrossEntropy):
        return torch.randint(0, 2, (count,), generator=rng), 2
    if isinstance(loss, MultiLabel):
        return torch.randint(0, 2, (count, 4), generator=rng).float(), 4
    return torch.randn(count, 1, generator=rng), 1


def reference(loss, outputs, y):
    """The same loss as PyTorch has it."""
    if isinstance(loss, CrossEntropy):
        return F.cross_entropy(outputs, y)
    if isinstance(loss, BinaryCrossEntropy):
        return F.binary_cross_entropy_with_logits(outputs[:, 0], y.float())
    if isinstance(loss, MultiLabel):
        return F.binary_cross_entropy_with_logits(outputs, y)
    return F.mse_loss(outputs, y)


@every_case("way", ["stacked", "loop"])
@every_case("loss", [CrossEntropy(), BinaryCrossEntropy(), MultiLabel(), SquaredError()])
def test_local_training_descends_the_mean_loss(loss, way):
    """One step on all of a client's examples is one step of torch's own gradient descent."""
    sizes = np.array([3, 5, 1])
    y, classes = labels(loss, 9)
    examples = Examples(torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), y, classes)
    federation = Federation(examples, np.concatenate([[0], np.cumsum(sizes)]), examples)
    net = built(Mlp(hidden=[5]), (6,), classes, y=y[:2], loss=loss)
    ids = np.arange(3)
    local = LocalTrainer(federation, net, Sgd(), 0.1, 1, 10, way)
    rows, _ = local.train(
        ids, {"params": net.initial_params}, None, Streams(0).at("shuffle", 1, ids)
    )
    for client in ids:
        start, end = federation.offsets[client : client + 2]
        leaf = net.initial_params.clone().requires_grad_()
        nn.utils.vector_to_parameters(leaf, net.module.parameters())
        reference(loss, net.outputs(leaf, examples.x[start:end]), y[start:end]).backward()
        torch.testing.assert_close(rows[client], -0.1 * leaf.grad, rtol=1e-4, atol=1e-6)
