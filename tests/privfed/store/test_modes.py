"""The modes of what a run leaves: those that the reference of its files states, for every kind."""

import os
import stat

import pytest
from grids import in_process, write
from lanes import every_case
from patients import DECLARED, SMALL, patients
from private_tunings import BUDGET, TUNED, number, tuned
from small import trained
from test_secrets import SECRET

import privfed
from privfed.grid import private_tuning as tuning
from privfed.run.train import resume
from privfed.secure.summation import Culprit
from privfed.store.run_directory import RunDirectory
from privfed.store.run_files import FILES

SECRET_FOLDERS = [name.rstrip("/") for name, what in FILES.items() if "mode 0700" in what]
"""What lies in these is shut to others by the folder."""
KINDS = {
    name: SECRET[name]
    for name in ("buffers", "canaries", "canaries that train", "layers", "silos", "central")
} | {
    "scaffold": ("client.objective=scaffold", "data.setting=cross_silo"),
    "histories": ("privacy.mechanism=none", "aggregation.rule=foolsgold"),
    "attackers": ("attack.name=label_flip", "attack.fraction=0.2", 'run.watch=["csv"]'),
}


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def assert_as_stated(run):
    """Folders that are stated as secret are 0700, as are all in them; all others are as usual."""
    inside = {str(path.relative_to(run)): path for path in sorted(run.rglob("*"))}
    assert inside
    for name, path in inside.items():
        mode = stat.S_IMODE(path.stat().st_mode)
        if any(name == folder or name.startswith(f"{folder}/") for folder in SECRET_FOLDERS):
            assert mode in ((0o700,) if path.is_dir() else (0o600, 0o644)), name
        elif path.name != ".lock":
            assert mode == (0o755 if path.is_dir() else 0o644), name
        listed = [each for each in FILES if name == each or name.startswith(f"{each.rstrip('/')}/")]
        assert listed or path.is_dir() or name.startswith("."), name


@every_case("kind", KINDS)
def test_modes_of_a_run_are_those_that_the_reference_states(tmp_path, kind):
    trained(tmp_path / "run", *KINDS[kind], "run.rounds=1")
    assert_as_stated(tmp_path / "run")


@pytest.mark.parametrize("kind", ["scaffold", "histories"])
def test_a_resume_shuts_what_was_left_open(tmp_path, kind):
    trained(tmp_path / "run", *KINDS[kind], "run.rounds=1")
    (tmp_path / "run" / "private").chmod(0o755)
    resume(tmp_path / "run", lambda stored: stored.with_run(rounds=2))
    assert_as_stated(tmp_path / "run")


def test_a_run_over_people_who_were_passed_is_as_stated(tmp_path):
    """Their digest, and the key that it is made with, lie in the secret folder."""
    table = privfed.Table(patients(60), test=patients(20, seed=1), **DECLARED)
    privfed.train(table, model="mlp", out=tmp_path / "run", **{**SMALL, "rounds": 1})
    assert (tmp_path / "run/private/population").exists()
    assert_as_stated(tmp_path / "run")


REMEMBERING = BUDGET.replace("[client]", '[client]\nobjective = "scaffold"').replace(
    "clients = 12", 'clients = 12\nsetting = "cross_silo"'
)


@pytest.mark.slow
@pytest.mark.parametrize("base", [BUDGET, REMEMBERING], ids=["plain", "scaffold"])
def test_a_privately_tuned_run_is_as_stated_and_all_else_of_it_is_shut(tmp_path, monkeypatch, base):
    """The best run by its own folders' modes; the candidates, and their secret, under private/."""
    monkeypatch.setattr(tuning, "work", in_process)
    number(monkeypatch, 2)
    tuned(write(tmp_path, TUNED, base))
    assert (tmp_path / "best/private").exists() == (base is REMEMBERING)
    assert_as_stated(tmp_path / "best")
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "private/key").stat().st_mode) == 0o600
    candidates = [path.parent for path in (tmp_path / "private").rglob("config.toml")]
    assert len(candidates) == 2
    for each in candidates:
        assert_as_stated(each)


WRITERS = {
    "key": lambda run: run.key.read_or_draw("a", fresh=True),
    "proofs": lambda run: run.exclusions.note(Culprit(1, 1, 0, "wrong share", b"proof")),
}


@pytest.mark.parametrize("first", WRITERS)
def test_whoever_makes_the_secret_folder_shuts_it(tmp_path, first):
    directory = RunDirectory.create(tmp_path / "run")
    WRITERS[first](directory)
    assert_as_stated(directory.path)
