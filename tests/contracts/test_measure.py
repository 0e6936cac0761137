"""What every measure keeps: bounded vectors of any outputs, and an estimate from their sum."""

import numpy as np
import torch
from contracts.registered import contract_tests
from scorings import SCORINGS, labels

from privfed.metrics.accuracy import Accuracy
from privfed.metrics.measure import Count, NoisedSum

N = 40


def suited(measure):
    """What it can score: its labels, and outputs of a model."""
    for name, scoring in SCORINGS.items():
        if not measure.lacks(scoring):
            y = labels(name, N, np.random.default_rng(0))
            width = 1 if name in ("binary", "number") else scoring.form.classes
            generator = torch.Generator().manual_seed(0)
            yield scoring, torch.randn(*y.shape[:2][: 1 + scoring.sequences], width,
                                       generator=generator), y  # fmt: skip


def says_what_it_suits(measure):
    lacking = [measure.lacks(scoring) for scoring in SCORINGS.values()]
    assert "" in lacking, "it can score no labels"
    for scoring, _, y in suited(measure):
        assert measure.title(scoring)
        counted = measure.counted(y, scoring)
        assert (counted.dtype, tuple(counted.shape)) == (torch.bool, (N,))
        assert measure.count(scoring) in Count


def bounds_its_vectors(measure):
    """By norm 1, of outputs that are far out or no numbers, too."""
    for scoring, outputs, y in suited(measure):
        for spoiled in (1.0, 1e30, torch.nan, torch.inf):
            vectors = measure.vectors(outputs * spoiled, y, scoring)
            assert vectors.dtype == torch.float64
            assert tuple(vectors.shape) == (N, measure.columns(scoring))
            assert vectors.isfinite().all()
            assert (vectors.norm(dim=1) <= 1 + 1e-12).all()
        means = vectors.mean(0, keepdim=True)
        assert (measure.parts(means).norm(dim=1) <= 1 + 1e-12).all()


def scores_each_example_alone(measure):
    for scoring, outputs, y in suited(measure):
        vectors = measure.vectors(outputs, y, scoring)
        alone = [measure.vectors(outputs[i : i + 1], y[i : i + 1], scoring) for i in range(N)]
        torch.testing.assert_close(vectors, torch.cat(alone))


def estimates_from_a_sum(measure):
    """Without noise, an interval around the value; with noise, a wider one."""
    for scoring, outputs, y in suited(measure):
        vectors = measure.vectors(outputs, y, scoring)[measure.counted(y, scoring)]
        parts = measure.parts(vectors)
        estimates = [
            measure.estimate(
                NoisedSum(parts.sum(0), std, float(len(parts)), std, 0.5, 1.96), scoring
            )
            for std in (1e-6, 0.5)
        ]
        for estimate in estimates:
            assert estimate.low <= estimate.value <= estimate.high
        exact, noisy = (each.high - each.low for each in estimates)
        assert noisy >= exact


class Long(Accuracy):
    """Its vectors are twice as long as the noise is for."""

    def vectors(self, outputs, y, scoring):
        return 2 * super().vectors(outputs, y, scoring)


class OfTheBatch(Accuracy):
    """An example is scored by those next to it."""

    def vectors(self, outputs, y, scoring):
        vectors = super().vectors(outputs, y, scoring)
        return vectors - vectors.mean(0) / 2


class Nothing(Accuracy):
    """It can score no labels at all."""

    def lacks(self, scoring):
        return "labels of another kind"


class Certain(Accuracy):
    """The less it knows, the narrower is its interval."""

    def estimate(self, noised, scoring):
        estimate = super().estimate(noised, scoring)
        width = 1 / (1 + noised.std)
        return type(estimate)(estimate.value, estimate.value - width, estimate.value + width)


test_every_measure_keeps, test_a_wrong_measure_is_rejected_by = contract_tests(
    "measure",
    {
        says_what_it_suits: [Nothing()],
        bounds_its_vectors: [Long()],
        scores_each_example_alone: [OfTheBatch()],
        estimates_from_a_sum: [Certain()],
    },
)
