"""Contracts of losses: one number per example, the best constant prediction, and metrics."""

import contextlib

import torch
from contracts.registered import contract_tests

from privfed.core.errors import Refused
from privfed.data.federation import NO_LABEL, Examples, Meaning
from privfed.models.form import Task
from privfed.models.losses.cross_entropy import CrossEntropy

N = 24
X = torch.zeros(N, 3)
MEANING = Meaning()
_DRAWN = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
_SEQUENCES = (torch.arange(3 * N) % 7 % 4).view(N, 3)
_SEQUENCES[torch.arange(N) % 4 == 0, 1:] = NO_LABEL
_SEQUENCES[5] = NO_LABEL
LABELS = {
    "classes": Examples(X, torch.arange(N) % 7 % 4, 4),
    "sequences": Examples(X, _SEQUENCES, 4),
    "binary": Examples(X, (torch.arange(N) % 3 == 0).long(), 2),
    "columns": Examples(X, (_DRAWN > 0.3).float(), 4),
    "numbers": Examples(X, _DRAWN[:, :1].clone(), 1),
}


def suited(loss):
    """The labels it is for, each with the width of the outputs."""
    pairs = []
    for examples in LABELS.values():
        with contextlib.suppress(Refused):
            pairs.append((examples.y, loss.width(examples)))
    return pairs


def outputs_of(y, width, seed=0):
    """Random outputs `[N, *positions, width]` for labels `y`."""
    shape = (*y.shape, width) if y.dtype == torch.int64 else (N, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def at_positions_without_labels(outputs, y):
    """The `outputs` with other numbers at positions whose label `y` is `NO_LABEL`."""
    if y.dtype != torch.int64:
        return outputs
    return outputs.where((y != NO_LABEL)[..., None], outputs.flip(-1) + 1)


def says_which_labels_it_is_for(loss):
    """Of five kinds it takes some, and refuses others."""
    assert 0 < len(suited(loss)) < len(LABELS)
    assert all(key.count(".") == 1 for key in loss.defaults(Task(None, 10.0)))


def scores_each_example_by_itself(loss):
    """Alone, in a batch, and with other models stacked next to it."""
    for y, width in suited(loss):
        outputs = outputs_of(y, width)
        losses = loss.losses(outputs, y)
        assert tuple(losses.shape) == (N,)
        assert losses.isfinite().all()
        elsewhere = loss.losses(at_positions_without_labels(outputs, y), y)
        assert torch.equal(losses, elsewhere), "positions without a label (-1) have an effect"
        alone = torch.cat([loss.losses(outputs[i : i + 1], y[i : i + 1]) for i in range(N)])
        torch.testing.assert_close(losses, alone)
        others = torch.stack([outputs, outputs_of(y, width, 2), 100 * outputs])
        stacked = loss.stacked(others, y.expand(3, *y.shape))
        assert tuple(stacked.shape) == (3, N)
        torch.testing.assert_close(stacked[0], losses, rtol=1e-4, atol=1e-6)


def has_a_minimiser(loss):
    """No other constant answer has a smaller mean loss, of 200 near it and far from it."""
    generator = torch.Generator().manual_seed(0)
    for y, width in suited(loss):
        best = loss.minimiser(y, width)
        assert tuple(best.shape) == (width,)
        shape = outputs_of(y, width).shape
        least = loss.losses(best.expand(shape), y).mean()
        for step in range(200):
            other = best + torch.randn(width, generator=generator) * (0.01, 0.3, 3.0)[step % 3]
            assert loss.losses(other.expand(shape), y).mean() >= least - 1e-5
        assert tuple(loss.baseline_outputs(y, width).shape) == (width,)


def measures_in_pieces(loss):
    """Measures follow from all scores, and a better model has a better first one."""
    for y, width in suited(loss):
        outputs = outputs_of(y, width)
        whole = loss.scores(outputs, y, MEANING)
        halves = [loss.scores(outputs[s], y[s], MEANING) for s in (slice(0, 9), slice(9, N))]
        measures = loss.measures(whole)
        assert measures == loss.measures(torch.cat(halves))
        assert next(iter(measures)) == loss.measure
        assert all(isinstance(value, float) for value in measures.values())
        name, value = loss.client_measure(whole)
        assert isinstance(name, str)
        assert isinstance(value, float)
        guess = loss.scores(loss.baseline_outputs(y, width).expand(outputs.shape), y, MEANING)
        first = [float(loss.measures(each)[loss.measure]) for each in (guess, whole)]
        better = first[0] <= first[1] if loss.lower_is_better else first[0] >= first[1]
        assert better, "the best constant prediction is worse than chance"


def predicts_for_each_example(loss):
    for y, width in suited(loss):
        outputs = outputs_of(y, width)
        columns = loss.predict(outputs, MEANING)
        assert "prediction" in columns
        assert all(len(column) == N for column in columns.values())
        expected = loss.expectation(outputs, MEANING)
        assert len(expected) == N
        assert expected.isfinite().all()
        assert columns["prediction"].shape == y.shape or y.shape[1:] == (1,)


class OfTheBatch(CrossEntropy):
    """An example's loss depends on those next to it."""

    def losses(self, outputs, y):
        losses = super().losses(outputs, y)
        return losses - losses.mean()


class Padded(CrossEntropy):
    """It takes positions without a label for the first class."""

    def losses(self, outputs, y):
        return super().losses(outputs, y.clamp(min=0))


class Undemanding(CrossEntropy):
    """It takes any labels for classes."""

    def width(self, examples):
        return examples.classes


class Zero(CrossEntropy):
    """Its best constant prediction is none."""

    def minimiser(self, y, width):
        return torch.zeros(width)


class Backwards(CrossEntropy):
    """It declares that less of its first measure is better."""

    lower_is_better = True


class Single(CrossEntropy):
    """One prediction for all."""

    def predict(self, outputs, meaning):
        return {"prediction": outputs.mean(0).argmax(-1, keepdim=True)}


test_every_loss_keeps, test_a_wrong_loss_is_rejected_by = contract_tests(
    "loss",
    {
        says_which_labels_it_is_for: [Undemanding()],
        scores_each_example_by_itself: [OfTheBatch(), Padded()],
        has_a_minimiser: [Zero()],
        measures_in_pieces: [Backwards()],
        predicts_for_each_example: [Single()],
    },
)
