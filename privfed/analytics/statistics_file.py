"""The file `statistics.json`: what a release says of each column, and what it cost."""

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


class StatedEstimate(Part):
    """A `value` and its interval, of 95 %; None is an end that is not bounded."""

    value: float
    low: float | None
    high: float | None


class CellCount(Part):
    """How many numbers lie from `low` to `high`, which are the same for a single number."""

    low: float | None
    high: float | None
    count: StatedEstimate


class ValueCount(Part):
    """How often `value` stands in a column; of a word that is `cut`, more letters may follow."""

    value: str
    count: StatedEstimate
    cut: bool = False


class NumberStatistics(Part):
    """What is known of the numbers in a column.

    All follows from one `histogram`. `range` holds all cells where numbers are seen through the
    noise, and `outside` is the part of numbers beyond it. `mean`, `deviation` and `quantiles` (by
    probability) are those of the numbers clipped to the range.
    """

    count: StatedEstimate
    range: tuple[float, float]
    outside: StatedEstimate
    mean: StatedEstimate
    deviation: StatedEstimate
    quantiles: dict[str, StatedEstimate]
    histogram: list[CellCount]


class ColumnStatistics(Part):
    """What is known of the column `name`: the parts of rows where it is empty or holds other words.

    `numbers` is None where none are seen through the noise. `values` are those that were declared,
    or words that were read from the sums; `unnamed` counts the words that were not.
    """

    name: str
    kind: Literal["open", "numbers", "dates", "values"]
    missing: StatedEstimate
    words: StatedEstimate
    numbers: NumberStatistics | None
    values: list[ValueCount]
    unnamed: StatedEstimate | None


class Statistics(Part):
    """A release of statistics: its columns, about `rows` rows of `clients` clients, and its cost.

    `rows_of_clients` counts clients by their numbers of rows, of which `rows_per_client` counted at
    most. `noise` is the deviation on each coordinate of the sum, of vectors of norm 1 at most.
    `data`, `privacy`, `secure`, `randomness` and `seed` are those of the `run` that released it,
    and a run on these people needs the same. `earlier` are the runs that it counts besides.
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
    clients: StatedEstimate
    rows: StatedEstimate
    rows_of_clients: list[CellCount]
    columns: list[ColumnStatistics]
    earlier: list[str] = []
    data: dict[str, Any]
    privacy: dict[str, Any]
    secure: dict[str, Any]
    randomness: str
    seed: int

    def column(self, name: str) -> ColumnStatistics | None:
        """The column of that name; None where it was not asked for."""
        return next((column for column in self.columns if column.name == name), None)


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Write `statistics` to `path`, atomically."""
    text = dump(statistics.model_dump(mode="json"), indent=1)
    durable.write_atomically(path, (text + "\n").encode())


def read_statistics(path: Path) -> Statistics:
    """What a file at `path` states, or that in a folder. Raises `Refused` for any other file."""
    file = path / STATISTICS if path.is_dir() else path
    try:
        text = regular.read_text(file)
        stated = from_json(text)
    except FileNotFoundError:
        raise Refused(
            f"{file} does not exist; expected the {STATISTICS} of `privfed describe`"
        ) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{file} cannot be read: {public_text(error)}", str(error)) from None
    if isinstance(stated, dict) and stated.get("format", _FORMAT) != _FORMAT:
        raise Refused(
            f"{file} has format = {stated['format']!r}; this version of privfed reads {_FORMAT}"
        )
    try:
        return Statistics.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise Refused(
            f"{file} is not what `privfed describe` writes: {at or 'it'}: {first['msg']}"
        ) from None
