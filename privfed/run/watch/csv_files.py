"""Evaluations as CSV files in a run's `report/`."""

from __future__ import annotations

from pathlib import Path

from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.run.outcome import Observer, RoundRecord
from privfed.run.watch.columns import ColumnsFile
from privfed.run.watch.watcher import Watcher, is_nominal

PUBLIC, SIMULATION = "report/metrics.csv", "report/simulation.csv"


class Csv(Watcher):
    """Appends each evaluation to a CSV file, `report/metrics.csv`.

    What no epsilon covers goes into a file of its own, `report/simulation.csv`, and only where the
    run opted in.
    """

    def observer(self) -> Observer:
        """What writes the rows of one run."""
        return _Rows()


class _Rows(Observer):
    """Writes rows into the run whose path it is told."""

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
