"""Without noise a sum says what a computation over all examples says, each client counting once."""

import math

import numpy as np
import pytest
import torch
from lanes import every_case
from scorings import BINARY, DIGITS, MEASURES, NUMBER, TAGS, TEXT, Population, population
from sklearn.metrics import roc_auc_score

from privfed.metrics.accuracy import RecallAtK
from privfed.metrics.auc import haar, inverse_haar
from privfed.metrics.calibration import Calibration
from privfed.metrics.mean_loss import MeanLoss
from privfed.metrics.measure_row import MeasureRow


def exactly(measures, scoring, crowd, groups=(), places=None):
    row = MeasureRow.of(measures, scoring, groups)
    rows = row.of_clients(row.of_examples(crowd.outputs, crowd.y), crowd.offsets, places)
    return row.estimates(rows.sum(0), 0.0, 1.0)


def value(name, scoring, crowd, measure=None):
    measure = measure or MEASURES[name]
    return exactly([measure], scoring, crowd)[""][measure.title(scoring)].value


def weights(crowd):
    """Each example's, such that each client has the same."""
    sizes = np.diff(crowd.offsets)
    return 1 / np.repeat(sizes, sizes)


def test_accuracy():
    crowd = population("digits", 50)
    correct = (crowd.outputs.argmax(-1) == crowd.y).numpy()
    expected = np.average(correct, weights=weights(crowd))
    assert value("accuracy", DIGITS, crowd) == pytest.approx(expected)
    assert abs(expected - correct.mean()) > 0.002  # clients count once, not examples


def test_accuracy_of_positions():
    crowd = population("text", 50)
    correct = (crowd.outputs.argmax(-1) == crowd.y).numpy()
    labelled = (crowd.y >= 0).numpy()
    some = labelled.any(1)
    each = (correct & labelled).sum(1)[some] / labelled.sum(1)[some]
    expected = np.average(each, weights=weights(crowd)[some])
    assert not some.all()
    assert value("accuracy", TEXT, crowd) == pytest.approx(expected)


@every_case("kind, scoring", [("binary", BINARY), ("digits", DIGITS), ("tags", TAGS)])
def test_loss_is_cut(kind, scoring):
    crowd = population(kind, 50)
    bound = 2 * math.log(10 if kind == "digits" else 2)
    losses = scoring.loss.losses(crowd.outputs, crowd.y).double().numpy()
    assert losses.max() > bound or kind == "tags"
    expected = np.average(losses.clip(max=bound), weights=weights(crowd))
    assert value("loss", scoring, crowd) == pytest.approx(expected)
    wider = np.average(losses.clip(max=9.0), weights=weights(crowd))
    assert value("loss", scoring, crowd, MeanLoss(clip=9.0)) == pytest.approx(wider)


def test_the_bound_of_squared_errors_is_twice_that_of_the_middle():
    assert MeanLoss().bounds(NUMBER) == (0.0, 2.0)


def test_auc_is_right_but_for_ties_in_a_cell():
    crowd = population("binary", 80)
    y, scores, weight = crowd.y.numpy(), crowd.outputs[:, 0].numpy(), weights(crowd)
    expected = roc_auc_score(y, scores, sample_weight=weight)
    cells = np.floor(32 / (1 + np.exp(-scores / 2)))
    binned = roc_auc_score(y, cells, sample_weight=weight)
    assert value("auc", BINARY, crowd) == pytest.approx(binned, abs=1e-6)
    ties = sum(
        weight[(cells == c) & (y == 1)].sum() * weight[(cells == c) & (y == 0)].sum()
        for c in range(32)
    )
    pairs = weight[y == 1].sum() * weight[y == 0].sum()
    assert abs(binned - expected) <= ties / pairs / 2
    assert abs(binned - expected) < 0.002


def test_calibration():
    crowd = population("digits", 60)
    confidence, prediction = crowd.outputs.double().softmax(-1).max(-1)
    gaps = ((prediction == crowd.y).double() - confidence).numpy()
    edges = np.linspace(0.1, 1, 11)[1:-1]
    cells = np.digitize(confidence.numpy(), edges)
    sums = np.bincount(cells, gaps * weights(crowd), 10)
    expected = np.abs(sums).sum() / 60
    assert value("calibration", DIGITS, crowd) == pytest.approx(expected, abs=1e-5)
    one = value("calibration", DIGITS, crowd, Calibration(bins=1))
    assert one == pytest.approx(abs(sums.sum()) / 60, abs=1e-5)


def test_recall_of_classes():
    crowd = population("digits", 50)
    likely = crowd.outputs.topk(3, -1).indices
    among = (likely == crowd.y[:, None]).any(1).numpy()
    expected = np.average(among, weights=weights(crowd))
    assert value("recall_at_k", DIGITS, crowd, RecallAtK(k=3)) == pytest.approx(expected)


def test_recall_of_label_columns_leaves_examples_without_labels_out():
    crowd = population("tags", 60)
    some = (crowd.y.sum(1) > 0).numpy()
    likely = crowd.outputs.topk(2, -1).indices
    recall = (crowd.y.gather(-1, likely).sum(1) / crowd.y.sum(1)).double().numpy()[some]
    expected = np.average(recall, weights=weights(crowd)[some])
    assert not some.all()
    assert value("recall_at_k", TAGS, crowd, RecallAtK(k=2)) == pytest.approx(expected, abs=1e-6)


def test_mean_absolute_error_is_in_the_labels_units():
    crowd = population("number", 50)
    error = (crowd.outputs.clamp(-1, 1) - crowd.y).abs().double().numpy()[:, 0] * 50
    expected = np.average(error, weights=weights(crowd))
    assert value("mean_absolute_error", NUMBER, crowd) == pytest.approx(expected, rel=1e-5)


def test_measures_together_say_what_they_say_alone():
    crowd = population("binary", 70)
    names = ("accuracy", "loss", "auc", "calibration")
    together = exactly([MEASURES[name] for name in names], BINARY, crowd)[""]
    assert [*together] == list(names)
    alone = [value(name, BINARY, crowd) for name in names]
    assert [each.value for each in together.values()] == pytest.approx(alone, abs=1e-6)


def test_groups_are_told_apart_and_add_up():
    crowd = population("binary", 70)
    places = np.random.default_rng(5).integers(0, 2, len(crowd.y))
    names = ("accuracy", "auc")
    estimates = exactly([MEASURES[n] for n in names], BINARY, crowd, ("f", "m"), places)
    assert [*estimates] == ["", "f", "m"]
    correct = ((crowd.outputs[:, 0] > 0).long() == crowd.y).numpy()
    for group, among in (("", places >= 0), ("f", places == 0), ("m", places == 1)):
        expected = np.average(correct[among], weights=weights(crowd)[among])
        assert estimates[group]["accuracy"].value == pytest.approx(expected)
    assert estimates[""]["auc"].value == pytest.approx(value("auc", BINARY, crowd), abs=1e-9)


def test_a_client_without_examples_counts_for_nothing():
    crowd = population("digits", 30)
    more = Population(crowd.outputs, crowd.y, np.concatenate([crowd.offsets, crowd.offsets[-1:]]))
    assert value("accuracy", DIGITS, more) == value("accuracy", DIGITS, crowd)


def test_offsets_and_groups_have_to_fit():
    row = MeasureRow.of([MEASURES["accuracy"]], DIGITS, ("f", "m"))
    scored = row.of_examples(torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected 0 to 4"):
        row.of_clients(scored, np.array([0, 3]))
    with pytest.raises(ValueError, match="groups go from 0 to 2; expected 0 to 1"):
        row.of_clients(scored, np.array([0, 4]), np.array([0, 1, 2, 0]))


@pytest.mark.parametrize("levels", [1, 3])
def test_wavelets(levels):
    matrix = haar(levels)
    torch.testing.assert_close(matrix @ inverse_haar(levels), torch.eye(2**levels).double())
    assert (matrix.square().sum(0) == levels + 1).all()
    assert bool((matrix[0] == 1).all())
