"""A user's table as `privfed describe` reads it: questions about its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from privfed.analytics.counted_table import CountedTable, of_counts
from privfed.analytics.questions import ColumnQuestion, NumbersQuestion, Questions, as_values
from privfed.analytics.spelling import Spelling
from privfed.data.sources.declared_table import Bounds
from privfed.data.tables.dates import Dates


class DescribedTable(CountedTable):
    """A table whose columns are counted.

    Nothing is declared about `columns`. The keys `ranges`, `dates` and `values` are those of a run
    file's [data.features], [data.dates] and [data.categories]. Like these, they are public.
    """

    columns: list[str] = []
    """Columns about which nothing is declared."""
    ranges: dict[str, Bounds] = {}
    """Columns of numbers, and their bounds [low, high]."""
    dates: dict[str, Dates] = {}
    """Columns of dates, and their first and last day."""
    values: dict[str, list[str | int | bool]] = {}
    """Columns of words, and their declared values."""
    buckets: int = Field(32, ge=1, le=4096)
    """Number of buckets for words that were not listed."""
    letters: int = Field(12, ge=1, le=64)
    """Number of leading bytes that are recovered of words that were not listed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [*self.columns, *self.ranges, *self.dates, *self.values]
        if not names:
            raise ValueError("name at least one column to describe")
        repeated = {name for name in names if names.count(name) > 1}
        if twice := sorted(repeated | {*names} & {self.client, self.site}):
            raise ValueError(f"{twice[0]!r} is named twice; expected each column once")
        for name, (low, high) in self.ranges.items():
            if not low < high:
                raise ValueError(
                    f"the bounds of {name!r} are [{low:g}, {high:g}]; expected low < high"
                )
        return self

    @property
    def questions(self) -> Questions:
        """The questions that each client answers."""
        spelling = Spelling(self.buckets, self.letters)
        questions: list[ColumnQuestion] = [
            *(NumbersQuestion(name, spelling=spelling) for name in self.columns),
            *(NumbersQuestion(name, (low, high)) for name, (low, high) in self.ranges.items()),
            *(NumbersQuestion(name, each.bounds, each.format) for name, each in self.dates.items()),
            *(as_values(name, values) for name, values in self.values.items()),
        ]
        return Questions(tuple(questions), self.rows_per_client)

    @property
    def of_model(self) -> dict[str, Any]:
        return of_counts(self.questions)

    def requested(self) -> Mapping[str, Iterable[str]]:
        return {
            "columns": self.columns,
            "features": self.ranges,
            "dates": self.dates,
            "categories": self.values,
        }
