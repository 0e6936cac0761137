"""Estimates the statistics of every column from the noised sums of a release.

The estimates are consistent with each other; for example, every column has the same number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privfed.analytics.number_estimates import TWO_SIDED, CountedNumbers, interval
from privfed.analytics.questions import (
    MISSING_NODE,
    OTHER_NODE,
    SIZES,
    ColumnQuestion,
    NumbersQuestion,
    Questions,
    ValuesQuestion,
)
from privfed.analytics.spelling import ReadWord
from privfed.analytics.statistics_file import (
    CellCount,
    ColumnStatistics,
    IntervalEstimate,
    ValueCount,
)
from privfed.analytics.tree import (
    AgreeingCounts,
    Reals,
    Tree,
    agreeing,
    measured_total,
    nonnegative,
)

_EXACT_SIZES = 16
"""Largest r for which the number of clients with exactly r rows is a count of its own."""


@dataclass(frozen=True, eq=False)
class Sums:
    """The noised counts of a release, rescaled to numbers of rows and of clients.

    Attributes:
      questions: the questions whose counts these are.
      counts: the noised counts, shape `[d]`.
      stds: standard deviation of the noise on each count, shape `[d]`.
    """

    questions: Questions
    counts: Reals
    stds: Reals

    @classmethod
    def of(cls, questions: Questions, total: Reals, std: float) -> Sums:
        """Returns the noised counts: a noised sum of clients' vectors, divided by the amplitudes.

        Args:
          questions: the questions.
          total: the noised sum, shape `[d]`.
          std: standard deviation of the noise on each entry of `total`.
        """
        amplitudes = questions.amplitudes
        return cls(questions, total / amplitudes, std / amplitudes)

    def part(self, number: int) -> tuple[Reals, Reals]:
        """Returns the noised counts of one question, and their standard deviations.

        Args:
          number: index of the question, from 0; the index after the last question selects the
            histogram of clients by their number of rows.
        """
        ends = [*self.questions.starts.tolist(), self.questions.length]
        return (
            self.counts[ends[number] : ends[number + 1]],
            self.stds[ends[number] : ends[number + 1]],
        )

    def rows(self) -> tuple[float, float]:
        """Returns an estimate of the number of counted rows, and its variance.

        It combines the estimates of all questions, weighted by their inverse variances.
        """
        totals = []
        for number, question in enumerate(self.questions.questions):
            counts, stds = self.part(number)
            nodes = len(question.tree)
            total, variance = measured_total(question.tree, counts[:nodes], stds[:nodes] ** 2)
            totals.append((float(total), variance))
        if self.questions.rows <= _EXACT_SIZES:
            counts, stds = self.part(len(self.questions.questions))
            counted = np.minimum(SIZES, self.questions.rows)
            totals.append((float(counted @ counts), float(counted**2 @ stds**2)))
        weights = np.array([1.0 / max(variance, 1e-18) for _, variance in totals])
        return float(weights @ [total for total, _ in totals] / weights.sum()), 1.0 / weights.sum()

    def clients(self) -> tuple[IntervalEstimate, list[CellCount]]:
        """Returns the number of clients, and the histogram of clients by their number of rows.

        If only one row of each client is counted, every estimate of the number of rows is also one
        of the number of clients.
        """
        counts, stds = self.part(len(self.questions.questions))
        tree = Tree.flat(len(SIZES))
        if self.questions.rows == 1:
            total, variance = self.rows()
        else:
            of_sizes, variance = measured_total(tree, counts, stds**2)
            total = float(of_sizes)
        agreed = agreeing(tree, counts, stds**2, total, variance)
        shown = nonnegative(tree, agreed.counts)
        estimates, spread = agreed.linear(np.eye(len(SIZES)))
        ends = [float(end) for end in (*np.array(SIZES[1:]) - 1, np.inf)]
        cells = [
            CellCount(
                low=float(SIZES[n]),
                high=ends[n] if np.isfinite(ends[n]) else None,
                count=interval(shown[n], estimates[n], spread[n], 0.0),
            )
            for n in np.flatnonzero(shown > 0.0)
        ]
        return interval(float(shown.sum()), total, variance**0.5, 0.0), cells

    def columns(self) -> list[ColumnStatistics]:
        """Returns the statistics of each column."""
        total, variance = self.rows()
        columns = []
        for number, question in enumerate(self.questions.questions):
            counts, stds = self.part(number)
            nodes = len(question.tree)
            measured, spread = counts[:nodes], stds[:nodes]
            agreed = agreeing(question.tree, measured, spread**2, total, variance)
            column = Column(question, agreed, nonnegative(question.tree, agreed.counts), total)
            columns.append(column.summary(counts, stds))
        return columns


@dataclass(frozen=True, eq=False)
class Column:
    """Estimated counts of one column.

    Attributes:
      question: the question about the column.
      agreed: unbiased estimates of the tree's counts, in which children add up to their parent.
      counts: non-negative estimates of the tree's counts, shape `[n]`.
      total: estimated number of counted rows.
    """

    question: ColumnQuestion
    agreed: AgreeingCounts
    counts: Reals
    total: float

    def summary(self, measured: Reals, stds: Reals) -> ColumnStatistics:
        """Returns the column's statistics, with 95 % intervals.

        Args:
          measured: noised counts, shape `[length]`.
          stds: their standard deviations, shape `[length]`.
        """
        question, nodes = self.question, len(self.question.tree)
        if isinstance(question, ValuesQuestion):
            return self._summary("values", values=self._declared(question))
        if not isinstance(question, NumbersQuestion):
            raise TypeError(f"there is no estimate for a {type(question).__name__}")
        numbers = CountedNumbers(
            question.cells, self.agreed, self.counts, measured[:nodes], stds[:nodes]
        ).summary()
        if question.spelling is None:
            return self._summary("dates" if question.dates else "numbers", numbers=numbers)
        read = question.spelling.read(measured[nodes:], float(stds[-1]))
        values = [
            ValueCount(
                value=word.word,
                count=IntervalEstimate(value=word.count, low=word.low, high=word.high),
                cut=word.cut,
            )
            for word in sorted(read, key=lambda word: -word.count)
        ]
        return self._summary("open", numbers=numbers, values=values, unnamed=self._unnamed(read))

    def _unnamed(self, read: Sequence[ReadWord]) -> IntervalEstimate:
        """Returns an estimate of the number of rows whose entry is neither empty, nor a number, nor
        one of the recovered words `read`.
        """
        (words,), (std,) = self.agreed.linear(self._weights(OTHER_NODE))
        value = max(self.counts[OTHER_NODE] - sum(word.count for word in read), 0.0)
        low = words - TWO_SIDED * std - sum(word.high for word in read)
        high = words + TWO_SIDED * std - sum(word.low for word in read)
        return IntervalEstimate(value=value, low=min(max(low, 0.0), value), high=max(high, value))

    def _summary(self, kind: str, **parts: object) -> ColumnStatistics:
        blank: dict[str, object] = {"numbers": None, "values": [], "unnamed": None}
        shares = {"missing": self._share(MISSING_NODE), "words": self._share(OTHER_NODE)}
        return ColumnStatistics.model_validate(
            {"name": self.question.name, "kind": kind, **shares, **blank, **parts}
        )

    def _weights(self, node: int) -> Reals:
        return np.eye(1, len(self.question.tree), node)

    def _share(self, node: int) -> IntervalEstimate:
        """Returns an estimate of the fraction of counted rows whose entry is counted by the top
        node `node`; 0, with the interval [0, 1], if `total` is not positive.
        """
        if self.total <= 0.0:
            return IntervalEstimate(value=0.0, low=0.0, high=1.0)
        value = float(np.clip(self.counts[node] / self.total, 0.0, 1.0))
        weights = self._weights(node) - value * self.question.tree.is_leaf
        (estimate,), (std,) = self.agreed.linear(weights)
        return interval(value, value + float(estimate) / self.total, std / self.total, 0.0, 1.0)

    def _declared(self, question: ValuesQuestion) -> list[ValueCount]:
        nodes = OTHER_NODE + 1 + np.arange(len(question.values))
        estimates, stds = self.agreed.linear(np.eye(len(question.tree))[nodes])
        return [
            ValueCount(value=value, count=interval(self.counts[node], estimate, std, 0.0))
            for value, node, estimate, std in zip(
                question.values, nodes, estimates, stds, strict=True
            )
        ]
