"""What a measure of federated evaluation is: what an example says of it, and what a sum says.

Clients score a released model on examples of theirs, each sends one bounded row
(`privfed.metrics.measure_row`), and the server knows the sum of rows with noise, nothing else.
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
"""How many labels a guess is looked at beside, at most."""


@dataclass(frozen=True)
class Scoring:
    """The form of examples and the loss of the model that is scored: neither is anybody's."""

    form: Form
    loss: Loss

    @property
    def sequences(self) -> bool:
        """Whether an example has a label at each of its positions."""
        return self.form.classified and bool(self.form.labels)

    @property
    def label_columns(self) -> bool:
        """Whether an example has any number of labels, a column of 0/1 for each."""
        return not self.form.classified and self.form.classes > 1

    @property
    def numbers(self) -> bool:
        """Whether a label is a number with declared bounds."""
        return not self.form.classified and self.form.classes == 1

    @property
    def labels(self) -> str:
        """What labels are, in words."""
        if self.label_columns:
            return f"{self.form.classes} columns of 0/1 labels"
        if self.numbers:
            return "a number to predict"
        where = "position of a sequence" if self.sequences else "example"
        return f"one of {self.form.classes} classes per {where}"

    def labelled(self, y: Tensor) -> Tensor:
        """Which examples of labels y `[n, *]` have any: bool `[n]`, False where all is padding."""
        if not self.sequences:
            return torch.ones(len(y), dtype=torch.bool, device=y.device)
        return (y != NO_LABEL).flatten(1).any(1)

    def guess(self) -> tuple[Tensor, Tensor]:
        """The best constant answer, beside labels of which none is more frequent.

        Outputs `[n, *positions, width]` and labels y `[n, *]` of up to 64 examples, which are
        nobody's, and of one position where they are sequences.
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
        """The mean loss of `guess`."""
        return float(self.loss.losses(*self.guess()).double().mean())


@dataclass(frozen=True)
class Estimate:
    """A measure's estimate `value`, and the interval from `low` to `high`, in its units."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, low: float, high: float, bounds: tuple[float, float]) -> Estimate:
        """The estimate cut to `bounds`, its value to the interval."""
        least, most = bounds
        low, high = min(max(low, least), most), min(max(high, least), most)
        return cls(min(max(value, low), high), low, high)


@dataclass(frozen=True)
class NoisedSum:
    """The sum over clients of their parts of one measure, with noise, in units of a client.

    `values` `[k]` add up parts, each with noise of the `deviation`, and `count` the share of each
    client's examples that the measure counts, with noise of `count_deviation` (NaN both, where the
    measure takes no count). `rate` is the probability by which a client took part: at 1 those who
    did are all that the estimate is about; below, they stand for the others; at 0 they are a sample
    of many more. `quantile` is that of the standard normal, two-sided, for the interval.
    """

    values: Tensor
    deviation: float
    count: float
    count_deviation: float
    rate: float
    quantile: float

    @property
    def unsampled(self) -> float:
        """1 - rate: the part of the clients' spread that the draw of the cohort puts in a sum.

        Under Poisson sampling the Horvitz-Thompson estimate sum_C t_u of q sum_u t_u has a
        variance of q (1 - q) sum_u t_u^2, which (1 - q) sum_C t_u^2 estimates without bias
        (Särndal, Swensson and Wretman 1992, section 3.2).
        """
        return 1.0 - self.rate


class Count(Enum):
    """Whose count of examples the estimate of a measure divides by."""

    SHARED = "that of all examples, which a row's measures have in common"
    APART = "that of the examples that the measure counts, of its own"
    NONE = "none: its vectors say it"


class Measure(Part):
    """A measure of a model that clients' examples are scored by."""

    lower_is_better: ClassVar[bool] = False

    def title(self, scoring: Scoring) -> str:
        """The name of what is estimated, as results have it: "recall_at_5"."""
        raise NotImplementedError

    def lacks(self, scoring: Scoring) -> str:
        """What labels it needs that these are not, in words; empty where it suits them."""
        raise NotImplementedError

    def count(self, scoring: Scoring) -> Count:
        """Whose count of examples the estimate divides by: apart, where it cannot score each."""
        return Count.APART if scoring.sequences else Count.SHARED

    def counted(self, y: Tensor, scoring: Scoring) -> Tensor:
        """Which of the examples of labels y `[n, *]` it can score: bool `[n]`."""
        return scoring.labelled(y)

    def columns(self, scoring: Scoring) -> int:
        """k, the length of its vector of an example."""
        raise NotImplementedError

    def vectors(self, outputs: Tensor, y: Tensor, scoring: Scoring) -> Tensor:
        """What each example says: float64 `[n, k]`, each of L2 norm at most 1.

        The norm holds for any `outputs` `[n, *positions, width]` of a model, also where they are
        not finite: then the example counts as the worst there is.
        """
        raise NotImplementedError

    def parts(self, means: Tensor) -> Tensor:
        """What clients send `[c, j]`, by the means `[c, k]` of their vectors; norms at most 1."""
        return means

    def estimate(self, noised: NoisedSum, scoring: Scoring) -> Estimate:
        """What the noised sum of clients' parts, each times its share of examples, says."""
        raise NotImplementedError


def refuse_unsuited(measure: Measure, scoring: Scoring) -> None:
    """Raises `Refused` where `measure` cannot score labels of this form."""
    if needed := measure.lacks(scoring):
        raise Refused(
            f"evaluation.measures has {measure.title(scoring)!r}, which needs {needed}, but the "
            f"labels are {scoring.labels}; leave it out",
            key="evaluation.measures",
        )


def with_slack(means: Tensor) -> Tensor:
    """(m, 1 - |m|^2) for clients' means m `[c, k]` of norm at most 1: `[c, k + 1]`.

    Its norm is sqrt(1 - |m|^2 + |m|^4) <= 1: the last number, by which the server learns how much
    clients differ, adds nothing to the sensitivity.
    """
    return torch.cat([means, 1 - means.square().sum(1, keepdim=True)], 1)


def within_unit(vectors: Tensor) -> Tensor:
    """`vectors` `[n, k]` in float64, shortened to norm 1 where longer; not finite ones are 0."""
    vectors = vectors.double()
    finite = vectors.isfinite().all(-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    largest = vectors.abs().amax(-1, keepdim=True).clamp(min=1.0)  # whose square may overflow
    vectors = vectors / largest
    norms = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.maximum(norms, 1 / largest)
