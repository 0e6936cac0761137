"""The row that a client sends in federated evaluation, and estimates from the noised sum of rows.

**Content of a row.** Each example belongs to one group (a single group if none are declared). For
group g and measure j let s be the fraction of all the client's examples that lie in g and that j
counts. Let m be the mean of j's vectors over these examples. The row contains

    for each g: the fraction of the client's examples in g, times the weight w_S of the shared
    count, if any measure has this count (`Count.SHARED`);
    for each g and j: s phi_j(m) times the weight w of a measure, with phi_j = `Measure.parts`,
    and, for a measure that counts examples separately (`Count.APART`), s times w.

A client without examples sends zeros.

**Its bound.** Every phi_j(m) has norm at most 1 and the squares of the weights sum to 1, so a
group's part has norm at most the group's fraction of the client's examples. The whole row has norm
at most sqrt(sum of squared fractions) <= 1. The bound holds for any examples, any model, any
outputs and any number of examples: a client counts once. The unit is the client. The sums of
neighbouring datasets differ by at most 1 in L2 under add/remove and zero-out (the client's row
becomes zero), and by at most 2 under replace-one. Rounding to float32 may raise a norm about 1e-7
above 1; the mechanism that adds the noise clips rows to 1, as it does for every row.

**The weights.** The ratio V / S of a measure's sum and the count has a variance proportional to 1 /
w^2 + r^2 / w_S^2, in the worst case with r = 1. For K measures, k of them with a shared count,
w_S^2 = sqrt(k) w^2 minimises the sum of the worst variances of those k. With one measure, both
squared weights are 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.metrics.measure import (
    Count,
    Estimate,
    Measure,
    NoisedSum,
    Scoring,
    refuse_unsuited,
    within_unit,
)


def group_means(examples: Tensor, offsets: Indices, groups: Indices | None, count: int) -> Tensor:
    """Returns, per client and group, the sum of example vectors over the client's example count.

    The divisor is the number of all examples of the client. The sum over a client's groups is thus
    the mean over its examples, and clients with many and with few examples have equal weight.

    Args:
      examples: vectors of all examples, shape `[n, k]`.
      offsets: client i owns `examples[offsets[i]:offsets[i + 1]]`; shape `[c + 1]`.
      groups: the group of each example, shape `[n]`; None puts all in the first group.
      count: the number of groups.

    Returns:
      Shape `[c * count, k]`, float64; row i * count + g is group g of client i. Clients without
      examples have zeros.

    Raises:
      ValueError: if `offsets` do not go from 0 to n or decrease anywhere, or if a group is not in
        0, …, count - 1.
    """
    if offsets[0] != 0 or offsets[-1] != len(examples) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; expected 0 to {len(examples)}, rising"
        )
    groups = np.zeros(len(examples), dtype=np.int64) if groups is None else groups
    if len(groups) and not 0 <= groups.min() <= groups.max() < count:
        raise ValueError(
            f"groups go from {groups.min()} to {groups.max()}; expected 0 to {count - 1}"
        )
    sizes = np.diff(offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    weights = torch.from_numpy(1.0 / np.repeat(sizes, sizes)).to(examples.device)
    places = torch.from_numpy(owners * count + groups).to(examples.device)
    sums = examples.new_zeros(len(sizes) * count, examples.shape[1], dtype=torch.float64)
    return sums.index_add_(0, places, examples.double() * weights[:, None])


@dataclass(frozen=True)
class Weights:
    """The factor w on each measure's part of a row, and the factor w_S on the shared count."""

    measure: float
    count: float


@dataclass(frozen=True)
class MeasureRow:
    """The layout of a client's row: its entries for all `measures`, in each of the `groups`.

    Attributes:
      measures: the measures, in the order of the row.
      scoring: the form of the examples and the loss.
      groups: names of groups; empty for a single group.
    """

    measures: tuple[Measure, ...]
    scoring: Scoring
    groups: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, measures: Sequence[Measure], scoring: Scoring, groups: Sequence[str] = ()
    ) -> MeasureRow:
        """Returns the layout of rows for these measures.

        Args:
          measures: the measures, at least one.
          scoring: the form of the examples and the loss.
          groups: names of groups; empty for a single group.

        Raises:
          Refused: if there are no measures, two have the same title, or one does not suit the
            labels.
        """
        if not measures:
            raise Refused(
                "evaluation.measures is empty; name one or more", key="evaluation.measures"
            )
        for measure in measures:
            refuse_unsuited(measure, scoring)
        titles = [measure.title(scoring) for measure in measures]
        for title in titles:
            if titles.count(title) > 1:
                raise Refused(
                    f"evaluation.measures has {title!r} more than once; name each measure once",
                    key="evaluation.measures",
                )
        return cls(tuple(measures), scoring, tuple(groups))

    @property
    def length(self) -> int:
        """The number of entries m of a row."""
        return max(len(self.groups), 1) * self._group_length

    def of_examples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Returns one vector per example, from which `of_clients` computes rows.

        A vector has a 1 and then, for each measure: 1 if the measure counts the example, otherwise
        0 (only with `Count.APART`), and the measure's vector of the example times this number.

        Args:
          outputs: the model's outputs, shape `[n, *positions, width]`.
          y: labels, shape `[n, *]`.

        Returns:
          Shape `[n, k]`, float64.
        """
        columns = [torch.ones(len(y), 1, dtype=torch.float64, device=y.device)]
        for measure in self.measures:
            vectors = within_unit(measure.vectors(outputs, y, self.scoring))
            counted = columns[0]
            if measure.count(self.scoring) is Count.APART:
                counted = measure.counted(y, self.scoring).double()[:, None]
            columns += [counted, counted * vectors]
        return torch.cat(columns, 1)

    def of_clients(
        self, examples: Tensor, offsets: Indices, groups: Indices | None = None
    ) -> Tensor:
        """Returns the rows of clients.

        Args:
          examples: the vectors from `of_examples`, shape `[n, k]`.
          offsets: client i owns `examples[offsets[i]:offsets[i + 1]]`; shape `[c + 1]`, from 0 to
            n.
          groups: index of each example's group, shape `[n]`; None for a single group.

        Returns:
          Rows of L2 norm at most 1, shape `[c, m]`, float64.
        """
        clients = len(offsets) - 1
        means = group_means(examples, offsets, groups, max(len(self.groups), 1))
        columns = [means[:, :1] * self.weights.count] if self.weights.count else []
        at = 1
        for measure in self.measures:
            end = at + 1 + measure.columns(self.scoring)
            share, scored = means[:, at : at + 1], means[:, at + 1 : end]
            at = end
            mean = scored / torch.where(share > 0, share, 1.0)
            if measure.count(self.scoring) is Count.APART:
                columns.append(share * self.weights.measure)
            columns.append(within_unit(measure.parts(mean)) * share * self.weights.measure)
        return torch.cat(columns, 1).view(clients, self.length)

    def estimates(
        self, total: Tensor, std: float, rate: float, confidence: float = 0.95
    ) -> dict[str, dict[str, Estimate]]:
        """Computes the measures' estimates from the noised sum of rows, as post-processing.

        Args:
          total: sum of rows with approximately normal noise, shape `[m]`.
          std: standard deviation of the noise on each entry.
          rate: probability with which each client was sampled, as in `NoisedSum`.
          confidence: confidence of each single interval, not of all intervals jointly.

        Returns:
          Estimates by name of the group, then by title of the measure. The group "" is the whole
          population; it is estimated from the sum over all groups, which has the noise of all.
        """
        by_group = total.detach().double().cpu().view(-1, self._group_length)
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        wider = std * math.sqrt(len(by_group))
        sums = [("", by_group.sum(0), wider)]
        sums += [(name, by_group[n], std) for n, name in enumerate(self.groups)]
        return {
            name: {
                measure.title(self.scoring): measure.estimate(noised, self.scoring)
                for measure, noised in self._noised(numbers, noise, rate, quantile)
            }
            for name, numbers, noise in sums
        }

    @cached_property
    def weights(self) -> Weights:
        """The factors w and w_S on the parts of a row; w_S is 0 without a shared count.

        The module's docstring derives them.
        """
        counts = [measure.count(self.scoring) for measure in self.measures]
        root = math.sqrt(counts.count(Count.SHARED))
        square = 1 / (len(counts) + counts.count(Count.APART) + root)
        return Weights(math.sqrt(square), math.sqrt(square * root))

    @cached_property
    def _group_length(self) -> int:
        return sum(
            self._parts_length(measure) + (measure.count(self.scoring) is Count.APART)
            for measure in self.measures
        ) + (self.weights.count > 0)

    def _parts_length(self, measure: Measure) -> int:
        nothing = torch.zeros(1, measure.columns(self.scoring), dtype=torch.float64)
        return measure.parts(nothing).shape[1]

    def _noised(
        self, numbers: Tensor, std: float, rate: float, quantile: float
    ) -> Iterator[tuple[Measure, NoisedSum]]:
        """Yields each measure with its part of `numbers`, divided by the weights.

        Args:
          numbers: noised sum of the entries of rows for one group, shape `[m / groups]`.
          std: standard deviation of the noise on each entry of `numbers`.
          rate: as in `NoisedSum`.
          quantile: as in `NoisedSum`.
        """
        weights, at = self.weights, int(self.weights.count > 0)
        for measure in self.measures:
            kind = measure.count(self.scoring)
            weight = weights.measure if kind is Count.APART else weights.count or math.nan
            place = at if kind is Count.APART else 0
            at += kind is Count.APART
            end = at + self._parts_length(measure)
            yield (
                measure,
                NoisedSum(
                    numbers[at:end] / weights.measure,
                    std / weights.measure,
                    float(numbers[place]) / weight,
                    std / weight,
                    rate,
                    quantile,
                ),
            )
            at = end


_DRAWS = 20
"""Number of simulated sums over which an interval's width is averaged."""


def half_widths(
    row: MeasureRow, clients: float, std: float, confidence: float = 0.95
) -> dict[str, float]:
    """Returns half the width of each measure's interval if noise is the only uncertainty.

    The width is a mean over simulated noise, for a model that predicts the baseline (best constant
    prediction). No data are used, and the simulated noise is always the same. With groups, the
    interval is that of the whole population. Client sampling, which is not included, makes
    intervals wider.

    Args:
      row: the layout of a client's row.
      clients: the cohort size.
      std: standard deviation of the noise on each entry of the sum of rows.
      confidence: confidence of each interval.

    Returns:
      Half-widths by title of measure, in the measure's units.
    """
    scored = row.of_examples(*row.scoring.guess())
    total = clients * row.of_clients(scored, np.array([0, len(scored)]))[0]
    generator = torch.Generator().manual_seed(0)
    widths: dict[str, float] = {}
    for _ in range(_DRAWS):
        noise = torch.randn(row.length, generator=generator, dtype=torch.float64)
        estimates = row.estimates(total + std * noise, std, 1.0, confidence)[""]
        for title, each in estimates.items():
            widths[title] = widths.get(title, 0.0) + (each.high - each.low) / 2 / _DRAWS
    return widths
