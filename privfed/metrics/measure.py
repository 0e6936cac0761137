"""The interface of measures of federated evaluation, such as accuracy.

A measure computes a bounded vector from each example, and an estimate from a noised sum over
clients. Clients score a released model on their own examples and each sends one bounded row
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
        """Returns a mask `[n]` of the examples with a label.

        It is False only for sequences whose positions are all padding.
        """
        if not self.sequences:
            return torch.ones(len(y), dtype=torch.bool, device=y.device)
        return (y != NO_LABEL).flatten(1).any(1)

    def guess(self) -> tuple[Tensor, Tensor]:
        """Returns the baseline (best constant prediction) for equally frequent labels.

        Returns:
          The baseline's outputs `[n, *positions, width]` for n <= 64 synthetic examples, and the
          labels `[n, *]` of these examples; sequences have one position.
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
    """A measure's estimate `value`, with its confidence interval from `low` to `high`.

    All three are in the measure's units.
    """

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
      values: noised sum over clients of their messages (`Measure.parts`), each times the fraction
        of the client's examples that the measure counts, shape `[j]`.
      std: standard deviation of the noise on each entry of `values`.
      count: noised sum over clients of that fraction. A measure of the kind `Count.NONE` must not
        read it: it is then the count of other measures, or NaN.
      count_std: standard deviation of the noise on `count`, or NaN.
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
    """The kinds of counts of examples by which a measure divides its sum over clients."""

    SHARED = "all examples: one count for all measures of a row"
    APART = "only the examples that the measure can score: a separate count"
    NONE = "none: the vectors of the measure contain the counts"


class Measure(Part):
    """A measure by which a model is scored on clients' examples."""

    lower_is_better: ClassVar[bool] = False

    def title(self, scoring: Scoring) -> str:
        """Returns the name of the estimated quantity in results, such as "recall_at_5"."""
        raise NotImplementedError

    def lacks(self, scoring: Scoring) -> str:
        """Describes the labels that the measure needs, for messages; "" if the labels suit it."""
        raise NotImplementedError

    def count(self, scoring: Scoring) -> Count:
        """Returns the kind of count by which the measure divides its sum over clients.

        By default, `Count.APART` for sequences, which may have no label, else `Count.SHARED`. A
        measure that may leave out other examples overrides it.
        """
        return Count.APART if scoring.sequences else Count.SHARED

    def counted(self, y: Tensor, scoring: Scoring) -> Tensor:
        """Returns a mask, bool `[n]`, of the examples that are counted, from labels y `[n, *]`."""
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
        """Returns the messages of c clients, with L2 norm at most 1.

        Args:
          means: mean of each client's vectors over its counted examples, shape `[c, k]`; norms are
            at most 1.

        Returns:
          The messages, shape `[c, j]`.
        """
        return means

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """Returns the estimate from the noised sum of clients' messages.

        Args:
          noised: the noised sum of clients' messages, and the noised count.
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

    The norm of a returned row is sqrt(1 - |m|^2 + |m|^4) <= 1, so its last entry does not increase
    the sensitivity. From the sum of this entry over clients, estimates compute how much clients
    differ, which widens their intervals.
    """
    return torch.cat([means, 1 - means.square().sum(1, keepdim=True)], 1)


def within_unit(vectors: Tensor) -> Tensor:
    """Returns `vectors` `[n, k]` in float64, each scaled down to norm at most 1 if it is longer.

    A vector with a non-finite entry becomes zero.
    """
    vectors = vectors.double()
    finite = vectors.isfinite().all(-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    largest = vectors.abs().amax(-1, keepdim=True).clamp(min=1.0)  # whose square may overflow
    vectors = vectors / largest
    norms = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.maximum(norms, 1 / largest)
