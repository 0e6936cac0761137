"""A client's row of measures, and what the noised sum of rows says.

**What a row is.** A client's examples each belong to one group (one for all, where none are
declared). For group g and measure j let s be the share of all the client's examples that lie in g
and that j counts, and m the mean over these of j's vectors. The row joins

    s of all its examples in g, times the weight of the count, and
    s phi_j(m) times the weight w of a measure, phi_j = `Measure.parts` (and s times w, for a
    measure that counts examples apart)

over all g and j. A client without examples sends zeros.

**Its bound.** Every phi_j(m) has norm at most 1, so a group's part has norm at most its share of
the client's examples as the squares of the weights sum to 1, and the whole row has at most
sqrt(sum of squared shares) <= 1, whatever the examples, the model and its outputs are, and however
many examples there are: a client counts once. Neighbouring populations that differ by one client
(add/remove, zero-out: its row becomes zero) have sums at most 1 apart in L2; those that have one
client replaced, at most 2. The unit is the client. Rounding to float32 may lift a norm by some 1e-7
over 1: what adds the noise clips to 1, as it does with every row.

**The weights.** The ratio V / S of a measure's sum and the count has a variance in proportion to
1 / w^2 + r^2 / w_S^2, at worst with r = 1. For K measures, of which k share the count, w_S^2 =
sqrt(k) w^2 makes the sum of the worst variances of those k least. One measure alone: 1/2 and 1/2.
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
    """Sums of clients' `examples` `[n, k]` by group, over all of the client's: `[c * count, k]`.

    Client i's are `examples[offsets[i]:offsets[i + 1]]`, and `groups` `[n]` their groups, of
    `count` (None: all in the first). Row i * count + g is client i's of group g. The sum over a
    client's groups is the mean of its examples, so that many examples weigh as much as few; a
    client without any has zeros. Raises `ValueError` where offsets do not reach from 0 to n, or a
    group is none of them.
    """
    if offsets[0] != 0 or offsets[-1] != len(examples) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; expected 0 to {len(examples)}, rising"
        )
    groups = np.zeros(len(examples), dtype=np.int64) if groups is None else groups
    if len(groups) and not 0 <= groups.min() <= groups.max() < count:
        raise ValueError(f"groups go from {groups.min()} to {groups.max()}, of {count}")
    sizes = np.diff(offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    weights = torch.from_numpy(1.0 / np.repeat(sizes, sizes)).to(examples.device)
    places = torch.from_numpy(owners * count + groups).to(examples.device)
    sums = examples.new_zeros(len(sizes) * count, examples.shape[1], dtype=torch.float64)
    return sums.index_add_(0, places, examples.double() * weights[:, None])


@dataclass(frozen=True)
class Weights:
    """By what a measure's part of a row is multiplied, and the count that measures share."""

    measure: float
    count: float


@dataclass(frozen=True)
class MeasureRow:
    """The row of clients that are scored by `measures`, in each of the `groups`."""

    measures: tuple[Measure, ...]
    scoring: Scoring
    groups: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, measures: Sequence[Measure], scoring: Scoring, groups: Sequence[str] = ()
    ) -> MeasureRow:
        """The row of these measures. Raises `Refused` for none, for one twice, or one unsuited."""
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
                    f"evaluation.measures has {title!r} more than once; name it once",
                    key="evaluation.measures",
                )
        return cls(tuple(measures), scoring, tuple(groups))

    @property
    def length(self) -> int:
        """m, how many numbers a row has."""
        return max(len(self.groups), 1) * self._group_length

    def of_examples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What examples say `[n, k]`: 1, and for each measure whether it counts them, its vector.

        `outputs` `[n, *positions, width]` are those of the model, y `[n, *]` their labels.
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
        """The rows `[c, m]`, float64, of what clients' examples say, `of_examples` `[n, k]`.

        Client i's are `examples[offsets[i]:offsets[i + 1]]`, with `offsets` `[c + 1]` from 0 to n,
        and `groups` `[n]` says in which group each is, a place among the row's.
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
        self, total: Tensor, deviation: float, rate: float, confidence: float = 0.95
    ) -> dict[str, dict[str, Estimate]]:
        """What the noised sum of rows says: estimates by title of measure, by group.

        `total` `[m]` is the sum of rows with noise, near enough to normal, of this `deviation` in
        each number; `rate` the probability by which a client took part, as `NoisedSum` has it. The
        group "" is everybody: the sum of all groups, and of their noise. Each interval has the
        `confidence` by itself, not all of them together. It is post-processing of the sum.
        """
        by_group = total.detach().double().cpu().view(-1, self._group_length)
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        wider = deviation * math.sqrt(len(by_group))
        sums = [("", by_group.sum(0), wider)]
        sums += [(name, by_group[n], deviation) for n, name in enumerate(self.groups)]
        return {
            name: {
                measure.title(self.scoring): measure.estimate(noised, self.scoring)
                for measure, noised in self._noised(numbers, noise, rate, quantile)
            }
            for name, numbers, noise in sums
        }

    @cached_property
    def weights(self) -> Weights:
        """The weights of a measure, and of the count that measures share."""
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
        self, numbers: Tensor, deviation: float, rate: float, quantile: float
    ) -> Iterator[tuple[Measure, NoisedSum]]:
        """Each measure with its part of a group's noised sum, in units of a client."""
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
                    deviation / weights.measure,
                    float(numbers[place]) / weight,
                    deviation / weight,
                    rate,
                    quantile,
                ),
            )
            at = end


_DRAWS = 20
"""How many made-up sums a width is the mean over."""


def half_widths(
    row: MeasureRow, clients: float, deviation: float, confidence: float = 0.95
) -> dict[str, float]:
    """Half the width of each measure's interval, by its title, that noise alone would leave.

    It is the mean over made-up sums of a cohort of so many `clients`, whose model does no better
    than a constant answer, with noise of this `deviation` on each number of the sum; of everybody,
    where there are groups. Nobody's data are in it, and the made-up noise is always the same. How
    much clients differ, where they are drawn, comes on top.
    """
    scored = row.of_examples(*row.scoring.guess())
    total = clients * row.of_clients(scored, np.array([0, len(scored)]))[0]
    generator = torch.Generator().manual_seed(0)
    widths: dict[str, float] = {}
    for _ in range(_DRAWS):
        noise = torch.randn(row.length, generator=generator, dtype=torch.float64)
        estimates = row.estimates(total + deviation * noise, deviation, 1.0, confidence)[""]
        for title, each in estimates.items():
            widths[title] = widths.get(title, 0.0) + (each.high - each.low) / 2 / _DRAWS
    return widths
