"""The file `statistics.json`: the statistics of each column in a release, and their cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from accounting import durable, regular
from accounting.documents import from_json
from privfed.core.errors import Refused, public_text
from privfed.core.parts import Part
from privfed.core.text import dump

STATISTICS = "statistics.json"
_FORMAT = 1


class IntervalEstimate(Part):
    """A `value` and its 95 % interval; None marks an unbounded end."""

    value: float
    low: float | None
    high: float | None


class CellCount(Part):
    """The count of numbers between `low` and `high`; the two are equal for a single number."""

    low: float | None
    high: float | None
    count: IntervalEstimate


class ValueCount(Part):
    """The count of `value` in a column; if `cut`, of all words that begin with `value`."""

    value: str
    count: IntervalEstimate
    cut: bool = False


class NumberStatistics(Part):
    """The statistics of the numbers in a column, all from one `histogram`.

    Attributes:
      count: number of numbers.
      range: the range of all cells in which numbers are visible through the noise.
      outside: fraction of numbers beyond the range.
      mean: mean of the numbers clipped to the range.
      std: standard deviation of the clipped numbers.
      quantiles: quantiles of the clipped numbers, by probability.
      histogram: counts of the occupied cells.
    """

    count: IntervalEstimate
    range: tuple[float, float]
    outside: IntervalEstimate
    mean: IntervalEstimate
    std: IntervalEstimate
    quantiles: dict[str, IntervalEstimate]
    histogram: list[CellCount]


class ColumnStatistics(Part):
    """The statistics of the column `name`.

    Attributes:
      missing: fraction of rows where the column is empty.
      words: fraction of rows where it holds a word that matches no question.
      numbers: None if no numbers are visible through the noise.
      values: counts of declared values, or of words recovered from the sums.
      unnamed: count of the words that were not recovered.
    """

    name: str
    kind: Literal["open", "numbers", "dates", "values"]
    missing: IntervalEstimate
    words: IntervalEstimate
    numbers: NumberStatistics | None
    values: list[ValueCount]
    unnamed: IntervalEstimate | None


class Statistics(Part):
    """A release of statistics: its columns, and its cost.

    Attributes:
      clients: number of clients.
      rows: number of counted rows.
      rows_of_clients: numbers of clients by number of rows; at most `rows_per_client` rows of each
        client are counted.
      noise: standard deviation on each coordinate of the sum of vectors of norm at most 1.
      run: the run that released it. A run on the same population needs that run's `data`,
        `privacy`, `secure`, `randomness` and `seed`.
      earlier: earlier runs whose charges are composed with those of this release.
    """

    format: Literal[1] = 1
    epsilon: float | Literal["inf"]
    delta: float
    unit: str
    relation: str
    mechanism: str
    population: str
    rows_per_client: int
    note: str | None
    ledger_head: str
    run: str
    noise: float
    clients: IntervalEstimate
    rows: IntervalEstimate
    rows_of_clients: list[CellCount]
    columns: list[ColumnStatistics]
    earlier: list[str] = []
    data: dict[str, Any]
    privacy: dict[str, Any]
    secure: dict[str, Any]
    randomness: str
    seed: int

    def column(self, name: str) -> ColumnStatistics | None:
        """Returns the column of that name; None if it was not requested."""
        return next((column for column in self.columns if column.name == name), None)


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Writes `statistics` to `path`, atomically."""
    text = dump(statistics.model_dump(mode="json"), indent=1)
    durable.write_atomically(path, (text + "\n").encode())


def read_statistics(path: Path) -> Statistics:
    """Reads the statistics in the file or folder `path`.

    Raises:
      Refused: if the file is missing, damaged, or of another format.
    """
    file = path / STATISTICS if path.is_dir() else path
    try:
        text = regular.read_text(file)
        stated = from_json(text)
    except FileNotFoundError:
        raise Refused(
            f"{file} does not exist; expected the {STATISTICS} of `privfed describe`"
        ) from None
    except (OSError, ValueError) as error:
        raise Refused(
            f"{file} cannot be read: {public_text(error)}; expected the {STATISTICS} of `privfed "
            "describe`",
            str(error),
        ) from None
    if isinstance(stated, dict) and stated.get("format", _FORMAT) != _FORMAT:
        raise Refused(
            f"{file} has format = {stated['format']!r}, but this version of privfed reads "
            f"{_FORMAT}; run privfed describe again, which charges a new release"
        )
    try:
        return Statistics.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise Refused(
            f"{file} is not the output of `privfed describe`: {at or 'it'}: {first['msg']}"
        ) from None
