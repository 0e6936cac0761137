"""Writes evaluations to CSV files, TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from accounting import durable, regular
from accounting.documents import from_json
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
        _module("torch.utils.tensorboard", "tensorboard")


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
        """Opens a writer; TensorBoard then hides earlier events of rounds after `done`."""
        self._nominal = is_nominal(plan)
        writers = _module("torch.utils.tensorboard", "tensorboard")
        self._writer = writers.SummaryWriter(str(path / FOLDER), purge_step=done + 1)

    def after(self, record: RoundRecord) -> None:
        record = record.nominally() if self._nominal else record
        for tag, value in record.tagged().items():
            self._writer.add_scalar(tag, value, record.round, walltime=self._began)
        self._writer.flush()


def _module(name: str, extra: str) -> Any:
    """Returns the module `name`, which `extra` installs. Raises `Refused` if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused(
            f'run.watch has {extra!r}, but the package {extra} is not installed; run "pip '
            f'install {extra}" (the extra `{extra}`), or watch "csv"',
            key="run.watch",
        ) from error


class Mlflow(Watcher):
    """Logs each evaluation to MLflow: to the configured tracking server, else `report/mlflow.db`.

    Public values are named `public/…`, and values that no epsilon covers `simulation/…`. All values
    have the time at which the run began or resumed. A resumed run continues the same MLflow run,
    and repeats no logged evaluation, except one that was logged before a crash but not yet noted in
    `report/mlflow.json`. Needs the extra `mlflow`.
    """

    def observer(self) -> Observer:
        """An observer that logs one run."""
        return _MlflowRun()

    def refuse_unusable(self) -> None:
        """Raises `Refused` if MLflow is not installed."""
        _module("mlflow", "mlflow")


class WeightsAndBiases(Watcher):
    """Logs each evaluation to Weights & Biases, or to `report/wandb/` if WANDB_MODE is "offline".

    Public values are named `public/…`, and values that no epsilon covers `simulation/…`. No console
    output, code, Git state or machine statistics are sent. A resumed run continues the same run of
    W&B, and repeats no logged evaluation, except one that was logged before a crash but not yet
    noted in `report/wandb.json`. Needs the extra `wandb`.
    """

    def observer(self) -> Observer:
        """An observer that logs one run."""
        return _WandbRun()

    def refuse_unusable(self) -> None:
        """Raises `Refused` if wandb is not installed."""
        _module("wandb", "wandb")


class _Tracked(Observer):
    """A run in a tracker, whose logged values cannot be replaced, so each round is logged once.

    A file in the run directory states the tracker's id of the run and the last logged round.
    """

    name: ClassVar[str]
    _id = ""
    _last = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._id:
            self._end(kind)

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Begins a run of the tracker, or continues the run that an earlier process began."""
        durable.make_folder(path / "report")
        self._nominal, self._note = is_nominal(plan), path / f"report/{self.name}.json"
        known = from_json(regular.read_text(self._note)) if self._note.exists() else {}
        self._last = known.get(_ROUND, 0)
        self._id = self._begin(path, known.get("id", ""))
        self._write_note()

    def after(self, record: RoundRecord) -> None:
        if record.round <= self._last:
            return  # logged before a crash, which lost its checkpoint
        record = record.nominally() if self._nominal else record
        self._log(record.tagged(), record.round)
        self._last = record.round
        self._write_note()

    def _write_note(self) -> None:
        note = {"id": self._id, _ROUND: self._last}
        durable.write_atomically(self._note, json.dumps(note).encode())

    @abstractmethod
    def _begin(self, path: Path, known: str) -> str:
        """Begins the tracker's run, or continues the run `known` ("": none); returns its id."""

    @abstractmethod
    def _log(self, values: Mapping[str, float], round: int) -> None:
        """Logs the tagged values of a round."""

    @abstractmethod
    def _end(self, kind: type[BaseException] | None) -> None:
        """Ends the tracker's run; `kind` is the type of the exception that stopped it, or None."""


class _MlflowRun(_Tracked):
    """Logs through a separate client; the process's active MLflow run, if any, is unaffected."""

    name = "mlflow"

    def _begin(self, path: Path, known: str) -> str:
        mlflow, self._began = _module("mlflow", "mlflow"), int(1000 * time.time())
        chosen = mlflow.tracking.is_tracking_uri_set()
        here = f"sqlite:///{(path / 'report/mlflow.db').absolute()}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=None if chosen else here)
        if known:
            self._client.update_run(known, status="RUNNING")
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "privfed")
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        return str(self._client.create_run(place, run_name=path.name).info.run_id)

    def _log(self, values: Mapping[str, float], round: int) -> None:
        metric = _module("mlflow.entities", "mlflow").Metric
        names = {tag: re.sub(r"[^\w\-./ :]", "_", tag) for tag in values}
        rows = [metric(names[tag], value, self._began, round) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=rows)

    def _end(self, kind: type[BaseException] | None) -> None:
        self._client.set_terminated(self._id, "FAILED" if kind else "FINISHED")


class _WandbRun(_Tracked):
    """Logs to a new W&B run; other W&B runs of the process are unaffected."""

    name = "wandb"

    def _begin(self, path: Path, known: str) -> str:
        wandb, new = _module("wandb", "wandb"), known or secrets.token_hex(8)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "privfed"),
            name=path.name,
            id=new,
            resume="allow",
            reinit="create_new",
            dir=str(path / "report"),
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        return new

    def _log(self, values: Mapping[str, float], round: int) -> None:
        self._run.log(dict(values), step=round)

    def _end(self, kind: type[BaseException] | None) -> None:
        self._run.finish(exit_code=1 if kind else 0)


_ROUND = "round"


class ColumnsFile:
    """The CSV file at `path`, created by its first row.

    Its first column is the round; a missing number is an empty cell. Rows are durable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []

    def go_on(self, done: int) -> None:
        """Removes the rows of rounds after `done`, and an incomplete row."""
        if not self.path.exists():
            return
        rows = [row for row in self._rows() if _is_until(row, done)]
        if rows:
            self._columns = list(rows[0])
            self._rewrite(rows)
        else:
            self.path.unlink()

    def append(self, round: int, values: Mapping[str, Any]) -> None:
        """Adds the row of `round`. A new name begins a new column, empty in earlier rows."""
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
    """Writes evaluations as rows of CSV files in the directory of the observed run."""

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
