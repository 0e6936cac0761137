"""Evaluations as events that TensorBoard shows."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any, Self

from privfed.core.errors import Refused
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.run.outcome import Observer, RoundRecord
from privfed.run.watch.watcher import Watcher, is_nominal

FOLDER = "report/tensorboard"


class TensorBoard(Watcher):
    """Writes each evaluation for TensorBoard, into `report/tensorboard/`.

    What is public is tagged `public/…`, and what no epsilon covers `simulation/…`, which is there
    only where the run opted in. All values bear the time at which the run began or went on: how
    long a round takes depends on who was drawn. Needs the extra `tensorboard`.
    """

    def observer(self) -> Observer:
        """What writes the events of one run."""
        return _Events()

    def refuse_unusable(self) -> None:
        """Raises `Refused` where TensorBoard is not installed."""
        _writers()


class _Events(Observer):
    """Writes events into the run whose path it is told."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._began = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Events of later rounds than `done`, which a crash left, are said to be void."""
        self._nominal = is_nominal(plan)
        self._writer = _writers().SummaryWriter(str(path / FOLDER), purge_step=done + 1)

    def after(self, record: RoundRecord) -> None:
        record = record.nominally() if self._nominal else record
        for tag, value in record.tagged().items():
            self._writer.add_scalar(tag, value, record.round, walltime=self._began)
        self._writer.flush()


def _writers() -> Any:
    """The module that writes events. Raises `Refused` where it is not installed."""
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise Refused(
            "run.watch has 'tensorboard', which needs the package tensorboard, and that is not "
            'installed; run "pip install tensorboard" (the extra `tensorboard`), or watch "csv"',
            key="run.watch",
        ) from error
