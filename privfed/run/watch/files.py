"""Evaluations in a run's `report/`, as CSV files and as TensorBoard events."""

from __future__ import annotations

import csv
import importlib
import io
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from accounting import durable, regular
from privfed.core.errors import Refused
from privfed.core.text import visible
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.run.outcome import Observer, RoundRecord
from privfed.run.watch.watcher import Watcher, is_nominal

FOLDER = "report/tensorboard"


class TensorBoard(Watcher):
    """Writes each evaluation for TensorBoard, into `report/tensorboard/`.

    Public values are tagged `public/…`. Values that no epsilon covers are tagged `simulation/…`,
    and exist only if the run enables them. All values have the time at which the run began or
    resumed, because the duration of a round depends on its sampled cohort. Needs the extra
    `tensorboard`.
    """

    def observer(self) -> Observer:
        """An observer that writes the events of one run."""
        return _Events()

    def refuse_unusable(self) -> None:
        """Raises `Refused` if TensorBoard is not installed."""
        _writers()


class _Events(Observer):
    """Writes events into the directory of the observed run."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._began = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Marks events of rounds later than `done`, left by a crash, as void."""
        self._nominal = is_nominal(plan)
        self._writer = _writers().SummaryWriter(str(path / FOLDER), purge_step=done + 1)

    def after(self, record: RoundRecord) -> None:
        record = record.nominally() if self._nominal else record
        for tag, value in record.tagged().items():
            self._writer.add_scalar(tag, value, record.round, walltime=self._began)
        self._writer.flush()


def _writers() -> Any:
    """The module that writes events. Raises `Refused` if it is not installed."""
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise Refused(
            "run.watch has 'tensorboard', but the package tensorboard is not installed; run \"pip "
            'install tensorboard" (the extra `tensorboard`), or watch "csv"',
            key="run.watch",
        ) from error


_ROUND = "round"


class ColumnsFile:
    """The CSV file at `path`, created by its first row.

    Its first column is the round; a missing number is an empty cell. Rows are durable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []

    def go_on(self, done: int) -> None:
        """Keeps the rows of rounds up to `done`, and removes an incomplete one."""
        if not self.path.exists():
            return
        rows = [row for row in self._rows() if _is_until(row, done)]
        if rows:
            self._columns = list(rows[0])
            self._rewrite(rows)
        else:
            self.path.unlink()

    def append(self, round: int, values: Mapping[str, Any]) -> None:
        """Adds the row of `round`. A new name is a new column, empty in earlier rows."""
        row = {_ROUND: round, **{visible(name): _cell(value) for name, value in values.items()}}
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite([*self._rows(), row])
        else:
            durable.append(self.path, self._text([row]))

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        text = regular.read_text(self.path, errors="replace")
        return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        durable.make_folder(self.path.parent)
        durable.write_atomically(self.path, self._text([header, *rows]))

    def _text(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, lineterminator="\n", extrasaction="ignore")
        writer.writerows(rows)
        return text.getvalue().encode()


def _cell(value: Any) -> str:
    return "" if value is None else visible(str(value))


def _is_until(row: Mapping[str, str], last: int) -> bool:
    text = row.get(_ROUND) or ""
    return text.isdecimal() and int(text) <= last


PUBLIC, SIMULATION = "report/metrics.csv", "report/simulation.csv"


class Csv(Watcher):
    """Appends each evaluation to a CSV file, `report/metrics.csv`.

    Values that no epsilon covers are written to a separate file, `report/simulation.csv`, and only
    if the run enables them.
    """

    def observer(self) -> Observer:
        """An observer that writes the rows of one run."""
        return _Rows()


class _Rows(Observer):
    """Writes rows into the directory of the observed run."""

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        self._public, self._simulation = ColumnsFile(path / PUBLIC), ColumnsFile(path / SIMULATION)
        self._nominal = is_nominal(plan)
        self._public.go_on(done)
        self._simulation.go_on(done)

    def after(self, record: RoundRecord) -> None:
        record = record.nominally() if self._nominal else record
        self._public.append(record.round, record.public)
        if record.simulation:
            self._simulation.append(record.round, record.simulation)
