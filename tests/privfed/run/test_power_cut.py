"""A power cut: what was synced is left, and names that their folder was not synced for are lost."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from lanes import every_case
from small import small, trained

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.core.errors import Broken
from privfed.run.train import resume
from privfed.store.run_directory import RunDirectory

SHORT = ("run.rounds=2", "run.checkpoint_every=2", "run.evaluate_every=1")
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0")
SILO = ("data.setting=cross_silo",)
RUNS = {
    "banded": ("privacy.mechanism=banded", "privacy.bands=2", *CYCLIC),
    "canaries": ("audit.canaries=20", "data.clients=24"),
    "canaries that train": (
        *("audit.canaries=20", "data.clients=24", "audit.kind=input"),
        *("audit.examples=2", "audit.craft_steps=2"),
    ),
    "scaffold": ("client.objective=scaffold", *SILO),
    "histories": ("privacy.mechanism=none", "aggregation.rule=foolsgold"),
    "histories of noised rows": ("privacy.mechanism=local_gaussian", "aggregation.rule=fldetector"),
    "silos": (
        *(*SILO, "privacy.mechanism=none", "cohort.sampler=full", "cohort.size=0"),
        *("client.privacy.mechanism=dp_sgd", "client.privacy.noise_multiplier=3.0"),
        *("client.privacy.sampling_rate=1.0", "data.clients=3"),
    ),
}
"""Runs of every kind that keeps something under private/."""


class PowerCut(BaseException):
    pass


class Disk:
    """Which names a power cut would leave; it comes with the first sync that is `due`."""

    def __init__(self, monkeypatch, due):
        self.due, self.names = due, {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor):
        if self.due():
            raise PowerCut
        self._fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            self.names[path] = {item.name for item in path.iterdir()}

    def forget(self, folder):
        """Remove what would be lost."""
        for path in folder.iterdir():
            if path.name not in self.names.get(folder, ()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_dir():
                self.forget(path)


def cut_run(path, monkeypatch, due, *settings):
    """Whether the power was cut before the run had ended."""
    with monkeypatch.context() as patch:
        disk = Disk(patch, due)
        try:
            trained(path, *settings)
        except PowerCut:
            disk.forget(path.parent)
            return True
    return False


def at(moment):
    """At the `moment`-th sync, from 0."""
    syncs = itertools.count()
    return lambda: next(syncs) == moment


def charged(path):
    """Right after the first charge."""
    return lambda: b'"charge"' in durable_bytes(path / "ledger.jsonl")


def durable_bytes(path):
    return path.read_bytes() if path.exists() else b""


def goes_on(path):
    outcome = resume(path, lambda stored: stored)
    charges = [charge.round for charge in Ledger.load(path / "ledger.jsonl").charges]
    assert charges == [1, 2]
    assert outcome.updates in (1, 2)
    assert audit(path).problems == ()
    assert not [*path.rglob(".*.tmp")], "half a file is left"


@every_case("kind", RUNS)
def test_all_that_a_charge_relies_on_is_durable_before_it(tmp_path, monkeypatch, kind):
    path = tmp_path / "run"
    assert cut_run(path, monkeypatch, charged(path), *RUNS[kind], *SHORT)
    assert (path / "private").is_dir()
    goes_on(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_goes_on_after_a_power_cut_at_any_moment(tmp_path, monkeypatch, kind):
    moment = resumed = 0
    while cut_run(tmp_path / f"{moment}", monkeypatch, at(moment), *RUNS[kind], *SHORT):
        path, moment = tmp_path / f"{moment}", moment + 1
        if (path / "config.toml").exists():  # else it never began
            resumed += 1
            goes_on(path)
            shutil.rmtree(path)
    assert resumed > 15, "the cuts did not reach into the run"


def test_an_unsynced_folder_is_lost_here(tmp_path, monkeypatch):
    """The check of the check."""

    def unsynced(path, mode=0o777):
        path.mkdir(mode, parents=True, exist_ok=True)

    path = tmp_path / "run"
    monkeypatch.setattr("accounting.durable.make_folder", unsynced)
    assert cut_run(path, monkeypatch, charged(path), *RUNS["banded"], *SHORT)
    assert not (path / "private").exists()
    with pytest.raises(Broken, match="private/key"):
        resume(path, lambda stored: stored)


LOST = {
    "banded": ("private/key: the noise of past rounds",),
    "canaries": (
        "private/key: the canaries' inclusion",
        "private/canaries.f64: the canaries' observations",
    ),
    "canaries that train": ("private/canaries.safetensors: the examples that canaries",),
    "scaffold": ("private/settled.f32: the clients' states",),
    "histories": ("private/histories/settled.f32: the rule's history of clients",),
}


@every_case("kind", LOST)
def test_a_run_without_its_private_folder_says_what_is_lost_and_what_can_be_done(tmp_path, kind):
    path = tmp_path / "run"
    trained(path, *RUNS[kind], *SHORT)
    shutil.rmtree(path / "private")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    words = ["train", "--resume", str(path), "--set", "run.rounds=4"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 5
    assert not (path / "private").exists()
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for lost in LOST[kind]:
        assert lost in result.stderr
    for way in ("evaluated, exported and audited", "privacy.prior", "model of round 2"):
        assert way in result.stderr
    assert "--resume" not in result.stderr
    assert CliRunner().invoke(main, ["evaluate", str(path)]).exit_code == 0
    assert CliRunner().invoke(main, ["audit", str(path)]).exit_code == 0


def test_what_it_advises_works(tmp_path):
    path = tmp_path / "run"
    trained(path, *RUNS["banded"], *SHORT)
    shutil.rmtree(path / "private")
    start = (f'privacy.prior=["{path}"]', f'model.init="{path}"')
    outcome = trained(tmp_path / "next", *RUNS["banded"], *SHORT, *start)
    assert outcome.guarantee.epsilon > audit(path).guarantee.epsilon


def test_half_written_files_are_swept_when_a_run_goes_on(tmp_path):
    path = tmp_path / "run"
    trained(path, *SHORT)
    halves = [path / ".checkpoint.safetensors.tmp", path / "releases/.000003.safetensors.tmp"]
    halves += [path / "report/.summary.json.tmp"]
    for half in halves:
        half.write_bytes(b"half")
    (path / "releases/notes.tmp").write_text("somebody's own")
    resume(path, lambda stored: stored)
    assert not any(half.exists() for half in halves)
    assert (path / "releases/notes.tmp").exists()


def test_a_run_that_is_in_use_is_not_swept(tmp_path):
    path = tmp_path / "run"
    trained(path, *SHORT)
    half = path / "releases/.000003.safetensors.tmp"
    half.write_bytes(b"half")
    with RunDirectory(path).locked():
        result = CliRunner().invoke(main, ["train", "--resume", str(path)])
    assert result.exit_code == 2
    assert half.exists()


def test_an_existing_folder_is_made_durable_before_a_run_relies_on_it(tmp_path, monkeypatch):
    """Of a start that was cut off after it had made the folder."""
    (tmp_path / "run").mkdir()
    path = tmp_path / "run"
    assert cut_run(path, monkeypatch, charged(path), *SHORT)
    goes_on(path)


def test_a_charged_run_whose_states_alone_are_gone_is_broken(tmp_path):
    path = tmp_path / "run"
    trained(path, *RUNS["scaffold"], *SHORT)
    (path / "private/settled.f32").unlink()
    with pytest.raises(Broken, match="the clients' states"):
        resume(path, lambda _: small(*RUNS["scaffold"], *SHORT, "run.rounds=3"))
