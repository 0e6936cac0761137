"""Runs in MLflow and W&B, offline: tagged, each round once; skipped if not installed."""

import functools
import json
import struct
import sys

import pytest
import watching
from lanes import every_case
from small import trained
from waiting import until

from privfed.core.errors import Refused
from privfed.run.train import resume
from privfed.run.watch.files import _Tracked

OPTED = ("run.randomness=seeded", "run.simulation_metrics=true", "run.checkpoint_every=4")
ROUNDS = [2, 4, 6, 7]


class Rows(_Tracked):
    """A tracker whose rows are a list."""

    name = "rows"
    rows, ends = [], []

    def _begin(self, path, known):
        return known or "first"

    def _log(self, values, round):
        self.rows.append((self._id, round, sorted(values)))

    def _end(self, kind):
        self.ends.append(kind and kind.__name__)


def from_rows(path):
    return [(number, tags) for _, number, tags in Rows.rows]


def from_mlflow(path):
    """The rounds and tags that MLflow's database has of the run at `path`, and its status."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}/report/mlflow.db")
    made = json.loads((path / "report/mlflow.json").read_text())["id"]
    assert [run.info.run_id for run in client.search_runs(["1"])] == [made]
    run = client.get_run(made)
    assert (run.info.status, run.info.run_name) == ("FINISHED", path.name)
    history = client.get_metric_history(made, "public/accuracy")
    return [(row.step, sorted(run.data.metrics)) for row in history]


def records_of(content):
    """The records of a `.wandb` file: a header of 7 bytes, then LevelDB's log format."""
    place, whole = 7, b""
    while place < len(content):
        if 32768 - place % 32768 < 7:  # a block ends in less than a record's header
            place += 32768 - place % 32768
            continue
        _, length, form = struct.unpack_from("<IHB", content, place)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if form in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def from_wandb(path):
    """The rounds and tags in all files that `wandb sync` would send of the run at `path`."""
    from wandb.proto import wandb_internal_pb2

    made, rows = json.loads((path / "report/wandb.json").read_text())["id"], []

    def records(file):
        content = map(wandb_internal_pb2.Record.FromString, records_of(file.read_bytes()))
        read = [(record.WhichOneof("record_type"), record) for record in content]
        return read if read and read[-1][0] == "exit" else None

    for file in sorted(path.glob(f"report/wandb/offline-run-*/run-{made}.wandb")):
        for form, record in until(functools.partial(records, file), "W&B's last record"):
            if form == "history":
                items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
                tags = sorted(name for name in items if not name.startswith("_"))
                rows.append((int(items["_step"]), tags))
    return rows


READ = {"test_trackers:Watch": from_rows, "mlflow": from_mlflow, "wandb": from_wandb}


def Watch():  # noqa: N802
    return Rows()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Neither tracker has an account or a server; earlier tests' rows are gone."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "test_trackers", sys.modules[__name__])
    Rows.rows.clear()
    Rows.ends.clear()


@pytest.fixture(params=READ)
def tracker(request):
    if ":" not in request.param:
        pytest.importorskip(request.param)
    return request.param


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the packages themselves
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_run_that_failed_and_went_on_has_each_row_once(tracker, tmp_path, monkeypatch):
    monkeypatch.setattr(watching.Failing, "fails", True)
    with pytest.raises(ZeroDivisionError):  # after round 4 was logged, and before its checkpoint
        trained(tmp_path / "run", f'run.watch=["{tracker}", "watching:Failing"]')
    monkeypatch.setattr(watching.Failing, "fails", False)
    resume(tmp_path / "run", lambda config: config)
    rows = READ[tracker](tmp_path / "run")
    assert [number for number, _ in rows] == ROUNDS
    assert rows[-1][1] == ["public/accuracy", "public/epsilon", "public/loss"]
    resume(tmp_path / "run", lambda config: config.with_run(rounds=9))
    assert [number for number, _ in READ[tracker](tmp_path / "run")] == [*ROUNDS, 8, 9]


def test_a_stopped_run_ends_as_failed_and_goes_on_as_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(watching.Failing, "fails", True)
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "run", 'run.watch=["test_trackers:Watch", "watching:Failing"]')
    monkeypatch.setattr(watching.Failing, "fails", False)
    resume(tmp_path / "run", lambda config: config)
    assert Rows.ends == ["ZeroDivisionError", None]
    assert {made for made, _, _ in Rows.rows} == {"first"}
    trained(tmp_path / "other", 'run.watch=["test_trackers:Watch"]')
    assert len(Rows.rows) == 2 * len(ROUNDS), "another run has rows of its own"


def test_what_no_epsilon_covers_is_tagged(tracker, tmp_path):
    trained(tmp_path / "run", f'run.watch=["{tracker}"]', *OPTED)
    tags = {tag for _, tags in READ[tracker](tmp_path / "run") for tag in tags}
    assert {"public/nominal_epsilon", "simulation/cohort"} <= tags
    assert "public/epsilon" not in tags


@every_case("name", ["mlflow", "wandb"])
def test_without_its_package_it_is_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Refused, match=f"pip install {name}"):
        trained(tmp_path / "run", f'run.watch=["{name}"]')
    assert not (tmp_path / "run").exists()
