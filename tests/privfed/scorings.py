"""Labels and losses to score, and clients whose examples are scored."""

from dataclasses import dataclass

import numpy as np
import torch

from privfed.metrics.accuracy import Accuracy, RecallAtK
from privfed.metrics.auc import AreaUnderCurve
from privfed.metrics.calibration import Calibration
from privfed.metrics.mean_loss import MeanAbsoluteError, MeanLoss
from privfed.metrics.measure import Scoring
from privfed.models.form import Form
from privfed.models.losses.cross_entropy import BinaryCrossEntropy, CrossEntropy, MultiLabel
from privfed.models.losses.squared_error import SquaredError


def form(classes, classified=True, labels=(), scale=1.0, shift=0.0):
    return Form(
        features=(3,),
        labels=labels,
        tokens=False,
        classified=classified,
        classes=classes,
        names=(),
        scale=scale,
        shift=shift,
        preprocessing=None,
    )


BINARY = Scoring(form(2), BinaryCrossEntropy())
DIGITS = Scoring(form(10), CrossEntropy())
TEXT = Scoring(form(7, labels=(4,)), CrossEntropy())
TAGS = Scoring(form(6, classified=False, labels=(6,)), MultiLabel(k=2))
NUMBER = Scoring(form(1, classified=False, labels=(1,), scale=50.0, shift=60.0), SquaredError())
SCORINGS = {"binary": BINARY, "digits": DIGITS, "text": TEXT, "tags": TAGS, "number": NUMBER}
MEASURES = {
    "accuracy": Accuracy(),
    "loss": MeanLoss(),
    "auc": AreaUnderCurve(),
    "calibration": Calibration(),
    "recall_at_5": RecallAtK(),
    "mean_absolute_error": MeanAbsoluteError(),
}
SUITED = {
    "binary": ("accuracy", "loss", "auc", "calibration"),
    "digits": ("accuracy", "loss", "calibration", "recall_at_5"),
    "text": ("accuracy", "loss", "calibration", "recall_at_5"),
    "tags": ("loss", "recall_at_5"),
    "number": ("loss", "mean_absolute_error"),
}
PAIRS = [(kind, name) for kind, names in SUITED.items() for name in names]


def labels(kind, n, rng):
    """Returns labels of n examples, including positions without a label."""
    scoring = SCORINGS[kind]
    if scoring.form.classified:
        y = rng.integers(0, scoring.form.classes, (n, *scoring.form.labels))
        if scoring.sequences:
            y = np.where(rng.random(y.shape) < 0.4, -1, y)
        return torch.from_numpy(y)
    if scoring.numbers:
        return torch.from_numpy(rng.uniform(-1, 1, (n, 1))).float()
    return torch.from_numpy(rng.integers(0, 2, (n, scoring.form.classes))).float()


def outputs_shape(kind, n):
    scoring = SCORINGS[kind]
    positions = scoring.form.labels if scoring.sequences else ()
    return (n, *positions, scoring.loss.width(scoring.form.empty()))


@dataclass(frozen=True)
class Population:
    """Clients' outputs and labels; client i's begin at `offsets[i]`."""

    outputs: torch.Tensor
    y: torch.Tensor
    offsets: np.ndarray

    def rows(self, row):
        return row.of_clients(row.of_examples(self.outputs, self.y), self.offsets)


def population(kind, clients, seed=0, most=40):
    """Returns clients of 1 to `most` examples, whose models fit some clients better than others."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most, clients)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    y = labels(kind, int(offsets[-1]), rng)
    fit = np.repeat(rng.normal(2.0, 0.7, clients), sizes)
    outputs = rng.normal(0, 1.5, outputs_shape(kind, len(y)))
    return Population(torch.from_numpy(_fitted(kind, outputs, y.numpy(), fit)).float(), y, offsets)


def _fitted(kind, outputs, y, fit):
    if kind == "number":
        return y + outputs / 4 / fit[:, None].clip(1)
    if kind == "binary":
        return outputs + ((2 * y - 1) * fit)[:, None]
    if kind == "tags":
        return outputs + (2 * y - 1) * fit[:, None]
    hot = np.eye(outputs.shape[-1])[y] * (y >= 0)[..., None]
    return outputs + hot * fit.reshape(-1, *[1] * (outputs.ndim - 1)) * 2
