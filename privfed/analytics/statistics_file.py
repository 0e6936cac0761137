"""The file `statistics.json`: the statistics of each released column, and the release's cost."""

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
    """An estimated `value` and its 95 % interval [low, high]; None marks an unbounded end."""

    value: float
    low: float | None
    high: float | None


class CellCount(Part):
    """The count of a histogram's cell from `low` to `high`; None marks an unbounded end.

    The two ends are equal for a cell of a single number.
    """

    low: float | None
    high: float | None
    count: IntervalEstimate


class ValueCount(Part):
    """The number of counted rows whose entry is `value`, or begins with it if `cut` is True."""

    value: str
    count: IntervalEstimate
    cut: bool = False


class NumberStatistics(Part):
    """The statistics of the numbers in a column, all from one `histogram`.

    Attributes:
      count: number of counted rows whose entry is a number.
      range: lower and upper end of the cells in which numbers are visible through the noise.
      outside: fraction of numbers beyond the range.
      mean: mean of the numbers clipped to the range.
      std: standard deviation of the clipped numbers.
      quantiles: quantiles of the clipped numbers, by probability ("0.05" to "0.95").
      histogram: counts of the cells whose estimate is positive.
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
      name: the column's name.
      kind: what was declared about the column: its values, a range of numbers or of dates, or
        nothing ("open").
      missing: fraction of counted rows in which the column is empty.
      words: fraction of counted rows with another entry: an undeclared value, or a word in a column
        whose numbers are counted.
      numbers: statistics of the numbers; None if no numbers are visible through the noise, and for
        columns of declared values.
      values: counts of declared values, or of words recovered from the sums.
      unnamed: number of counted rows with a word that was not recovered; None unless the column is
        open.
    """

    name: str
    kind: Literal["open", "numbers", "dates", "values"]
    missing: IntervalEstimate
    words: IntervalEstimate
    numbers: NumberStatistics | None
    values: list[ValueCount]
    unnamed: IntervalEstimate | None


class Statistics(Part):
    """The statistics of a release, their guarantee, and the settings of its run.

    A run on the same population needs the settings `data`, `privacy` and `secure` (keys of these
    sections of the run file), `randomness` and `seed`.

    Attributes:
      clients: number of clients.
      rows: number of counted rows.
      rows_of_clients: histogram of clients by number of rows; at most `rows_per_client` rows of
        each client are counted.
      noise: standard deviation of the noise on each entry of the sum of vectors of norm at most 1.
      run: the directory of the run that made the release.
      earlier: directories of earlier runs whose charges are composed with those of this release.
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
        """Returns the statistics of the column `name`; None if it was not described."""
        return next((column for column in self.columns if column.name == name), None)


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Writes `statistics` as JSON to the file `path`, atomically."""
    text = dump(statistics.model_dump(mode="json"), indent=1)
    durable.write_atomically(path, (text + "\n").encode())


def read_statistics(path: Path) -> Statistics:
    """Reads statistics from the file `path`, or from `statistics.json` in the folder `path`.

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
