"""The interface of measures of federated evaluation: vectors of examples, estimates from sums.

Clients score a released model on their own examples and each sends one bounded row
(`privfed.metrics.measure_row`). The server learns only the noised sum of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import NO_LABEL
from privfed.models.form import Form
from privfed.models.loss import Loss

_MOST = 64
"""Largest number of labels on which the baseline is evaluated."""


@dataclass(frozen=True)
class Scoring:
    """The form of the examples and the loss of the scored model; both are public."""

    form: Form
    loss: Loss

    @property
    def sequences(self) -> bool:
        """Whether an example has a label at each of its positions."""
        return self.form.classified and bool(self.form.labels)

    @property
    def label_columns(self) -> bool:
        """Whether labels are columns of 0/1, of which an example may have any number of ones."""
        return not self.form.classified and self.form.classes > 1

    @property
    def numbers(self) -> bool:
        """Whether a label is a number with declared bounds."""
        return not self.form.classified and self.form.classes == 1

    @property
    def labels(self) -> str:
        """A description of the labels, for messages."""
        if self.label_columns:
            return f"{self.form.classes} columns of 0/1 labels"
        if self.numbers:
            return "a number to predict"
        where = "position of a sequence" if self.sequences else "example"
        return f"one of {self.form.classes} classes per {where}"

    def labelled(self, y: Tensor) -> Tensor:
        """Returns a mask `[n]` of the examples that have a label: False for padding alone."""
        if not self.sequences:
            return torch.ones(len(y), dtype=torch.bool, device=y.device)
        return (y != NO_LABEL).flatten(1).any(1)

    def guess(self) -> tuple[Tensor, Tensor]:
        """Returns the baseline (best constant prediction) for equally frequent labels.

        Returns:
          The baseline's outputs `[n, *positions, width]`, and labels `[n, *]` of up to 64
          synthetic examples to score them on; sequences have one position.
        """
        form, loss = self.form, self.loss
        width = loss.width(form.empty())
        if form.classified:
            y = torch.arange(form.classes)
        else:
            least = -1.0 if self.numbers else 0.0
            y = torch.tensor([least, 1.0])[:, None].expand(2, form.classes)
        outputs = loss.minimiser(y, width).float()
        some = y[:: -(-len(y) // _MOST)]
        if self.sequences:
            return outputs.expand(len(some), 1, -1), some[:, None]
        return outputs.expand(len(some), -1), some

    def guess_loss(self) -> float:
        """Returns the mean loss of the baseline on the synthetic examples of `guess`."""
        return float(self.loss.losses(*self.guess()).double().mean())


@dataclass(frozen=True)
class Estimate:
    """A measure's estimate, with an interval from `low` to `high` in the measure's units."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, low: float, high: float, bounds: tuple[float, float]) -> Estimate:
        """Returns an estimate with the interval clipped to `bounds`, and the value to the interval.

        Args:
          value: the estimate.
          low: lower end of the interval.
          high: upper end of the interval.
          bounds: smallest and largest possible value.
        """
        least, most = bounds
        low, high = min(max(low, least), most), min(max(high, least), most)
        return cls(min(max(value, low), high), low, high)


@dataclass(frozen=True)
class NoisedSum:
    """The noised sum of clients' messages for one measure, scaled so that a client counts 1.

    Attributes:
      values: noised sum of the messages (`Measure.parts`), shape `[j]`.
      std: standard deviation of the noise on each entry of `values`.
      count: noised sum of each client's fraction of examples that the measure counts; NaN if the
        measure takes no count.
      count_std: standard deviation of the noise on `count`; NaN likewise.
      rate: probability with which each client was sampled. At 1 the estimate describes the sampled
        clients only. Below 1 it describes all clients, and its interval also covers the sampling; 0
        means a sample from a much larger population.
      quantile: two-sided quantile of the standard normal, for the interval.
    """

    values: Tensor
    std: float
    count: float
    count_std: float
    rate: float
    quantile: float

    @property
    def unsampled(self) -> float:
        """The fraction of the clients' variance that client sampling adds to a sum: 1 - rate.

        Under Poisson sampling the Horvitz-Thompson estimate sum_C t_u of q sum_u t_u has a variance
        of q (1 - q) sum_u t_u^2, which (1 - q) sum_C t_u^2 estimates without bias (Särndal,
        Swensson and Wretman 1992, section 3.2).
        """
        return 1.0 - self.rate


class Count(Enum):
    """The count of examples that divides the estimate of a measure."""

    SHARED = "all examples: one count for all measures of a row"
    APART = "only the examples that the measure can score: a separate count"
    NONE = "none: the vectors of the measure contain the counts"


class Measure(Part):
    """A measure by which a model is scored on clients' examples."""

    lower_is_better: ClassVar[bool] = False

    def title(self, scoring: Scoring) -> str:
        """Returns the name of the estimated quantity, as results show it: "recall_at_5"."""
        raise NotImplementedError

    def lacks(self, scoring: Scoring) -> str:
        """Returns the form of labels that the measure needs; "" if the labels have this form."""
        raise NotImplementedError

    def count(self, scoring: Scoring) -> Count:
        """Returns the kind of count that divides the estimate.

        The kind is `Count.APART` if some examples cannot be scored.
        """
        return Count.APART if scoring.sequences else Count.SHARED

    def counted(self, y: Tensor, scoring: Scoring) -> Tensor:
        """Returns a mask of the examples that can be scored, by labels y `[n, *]`: bool `[n]`."""
        return scoring.labelled(y)

    def columns(self, scoring: Scoring) -> int:
        """Returns k, the length of an example's vector."""
        raise NotImplementedError

    def vectors(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """Returns a vector for each example, with L2 norm at most 1.

        The norm must hold for any model outputs. An example with non-finite outputs counts as the
        worst possible.

        Args:
          outputs: the model's outputs, shape `[n, *positions, width]`.
          y: labels, shape `[n, *]`.
          scoring: the form of the examples and the loss.

        Returns:
          The vectors, shape `[n, k]`, float64.
        """
        raise NotImplementedError

    def parts(self, means: Tensor) -> Tensor:
        """Returns clients' messages `[c, j]` from means `[c, k]` of vectors; norms at most 1."""
        return means

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """Returns the estimate from the noised sum of clients' messages.

        Args:
          noised: the sum over clients of messages (`parts`) times the client's fraction of counted
            examples, with noise.
          scoring: the form of the examples and the loss.

        Returns:
          The value and its interval, in the measure's units.
        """
        raise NotImplementedError


def refuse_unsuited(measure: Measure, scoring: Scoring) -> None:
    """Raises `Refused` if `measure` cannot score labels of this form."""
    if needed := measure.lacks(scoring):
        raise Refused(
            f"evaluation.measures has {measure.title(scoring)!r}, which needs {needed}, but the "
            f"labels are {scoring.labels}; leave that measure out",
            key="evaluation.measures",
        )


def with_slack(means: Tensor) -> Tensor:
    """Returns (m, 1 - |m|^2) for clients' means m `[c, k]` of norm at most 1: `[c, k + 1]`.

    The norm of a result is sqrt(1 - |m|^2 + |m|^4) <= 1, so the last entry does not increase the
    sensitivity. The sum of this entry over clients measures how much clients differ, for intervals.
    """
    return torch.cat([means, 1 - means.square().sum(1, keepdim=True)], 1)


def within_unit(vectors: Tensor) -> Tensor:
    """Returns `vectors` `[n, k]` in float64, scaled to norm at most 1; non-finite ones become 0."""
    vectors = vectors.double()
    finite = vectors.isfinite().all(-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    largest = vectors.abs().amax(-1, keepdim=True).clamp(min=1.0)  # whose square may overflow
    vectors = vectors / largest
    norms = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.maximum(norms, 1 / largest)
