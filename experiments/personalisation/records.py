"""Results, a line for each set of client models, kept in a file so that a study can resume."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from experiments.personalisation.cases import Changes
from privfed.run.evaluation.heterogeneity import distribution

_DIGITS = 4


@dataclass(frozen=True)
class Record:
    """The accuracy of clients with one model each: their mean, and that of the worst tenth.

    `chosen` and `adaptation` are the settings with which the models were trained.
    """

    setting: str
    arm: str
    epsilon: float
    seed: int
    chosen: str
    adaptation: str
    mean: float
    worst_decile: float

    @property
    def changes(self) -> Changes:
        return tuple(self.chosen.split("; ")) if self.chosen else ()

    @property
    def key(self) -> tuple[str, str, float, int, str]:
        """The run of this record."""
        return self.setting, self.arm, self.epsilon, self.seed, self.chosen

    @classmethod
    def of(
        cls,
        key: tuple[str, str, float, int],
        chosen: Changes,
        adaptation: object,
        scores: np.ndarray,
    ) -> Record:
        spread = distribution(scores)
        measures = (round(spread[name], _DIGITS) for name in ("mean", "worst_decile"))
        return cls(*key, "; ".join(chosen), str(adaptation or ""), *measures)

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Record:
        kinds = {"str": str, "int": int, "float": float}
        return cls(**{key: kinds[cls.__annotations__[key]](text) for key, text in row.items()})


def read(path: Path) -> list[Record]:
    """Returns the records written so far."""
    if not path.exists():
        return []
    return [Record.read(row) for row in csv.DictReader(path.read_text("utf-8").splitlines())]


def append(path: Path, records: Iterable[Record]) -> None:
    """Appends further lines."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [each.name for each in fields(Record)], lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    with path.open("a", encoding="utf-8") as file:
        file.write(out.getvalue())
