"""The data source of `privfed describe`: a user's table, and the columns to count."""

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
    """A table whose columns are described by counts.

    The keys `ranges`, `dates` and `values` have the meaning of a run file's [data.features],
    [data.dates] and [data.categories]. Like these, they are public. Nothing is declared about the
    columns in `columns`.
    """

    columns: list[str] = []
    """Names of the columns about which nothing is declared."""
    ranges: dict[str, Bounds] = {}
    """Columns of numbers, by name, each with its bounds [low, high]."""
    dates: dict[str, Dates] = {}
    """Columns of dates, by name, each with its first and last day."""
    values: dict[str, list[str | int | bool]] = {}
    """Columns of categories, by name, each with its declared values."""
    buckets: int = Field(32, ge=1, le=4096)
    """Number of hash buckets for the words in `columns`."""
    letters: int = Field(12, ge=1, le=64)
    """Number of leading UTF-8 bytes that can be recovered of the words in `columns`."""

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
        """The questions about the columns: their counts, to which each client adds."""
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
