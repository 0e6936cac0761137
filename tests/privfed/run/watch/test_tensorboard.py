"""Events that TensorBoard reads: tagged, each round once, and no times of rounds."""

import sys

import pytest
import watching
from small import trained

from privfed.core.errors import Refused
from privfed.run.train import resume

WATCH = 'run.watch=["tensorboard"]'
OPTED = ("run.randomness=seeded", "run.simulation_metrics=true", "run.checkpoint_every=4")


@pytest.fixture
def events():
    """What TensorBoard shows of a folder: tag -> its events."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(path):
        shown = module.EventAccumulator(str(path / "report/tensorboard"))
        shown.Reload()
        return {tag: shown.Scalars(tag) for tag in shown.Tags()["scalars"]}

    return read


def test_a_run_that_failed_and_went_on_has_each_event_once(tmp_path, events, monkeypatch):
    with pytest.raises(ZeroDivisionError):  # after round 4 was written, and before its checkpoint
        trained(tmp_path / "run", 'run.watch=["tensorboard", "watching:Failing"]')
    monkeypatch.setattr(watching.Failing, "fails", False)
    resume(tmp_path / "run", lambda config: config)
    shown = events(tmp_path / "run")
    assert set(shown) == {"public/accuracy", "public/loss", "public/epsilon"}
    assert [event.step for event in shown["public/epsilon"]] == [2, 4, 6, 7]
    resume(tmp_path / "run", lambda config: config.with_run(rounds=9))
    again = events(tmp_path / "run")["public/epsilon"]
    assert [event.step for event in again] == [2, 4, 6, 7, 8, 9]


def test_how_long_rounds_took_is_not_written(tmp_path, events):
    trained(tmp_path / "run", WATCH)
    times = {event.wall_time for shown in events(tmp_path / "run").values() for event in shown}
    assert len(times) == 1


def test_what_no_epsilon_covers_is_tagged(tmp_path, events):
    trained(tmp_path / "run", WATCH, *OPTED)
    assert "simulation/cohort" in events(tmp_path / "run")


def test_without_the_package_it_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Refused, match="pip install tensorboard"):
        trained(tmp_path / "run", WATCH)
    assert not (tmp_path / "run").exists()
