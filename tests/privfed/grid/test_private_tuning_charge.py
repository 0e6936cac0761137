"""One charge pays for one release: of the candidates drawn for it, at the noise that it states."""

import shutil
import stat
from dataclasses import replace

import pytest
from grids import in_process, write
from lanes import every_case
from private_tunings import BUDGET, TUNED, number, proposed, scored, tuned

from accounting.ledger import Ledger
from privfed.core.errors import Broken, Refused
from privfed.grid import private_tuning as tuning
from privfed.grid.cells import STOPPED
from privfed.run.train import train


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(tuning, "work", in_process)


def cut_off(path, monkeypatch):
    """A tuning that was charged and drawn, and none of whose candidates ended."""
    monkeypatch.setattr(tuning, "work", scored({"status": STOPPED, "reason": "full"}))
    with pytest.raises(Refused, match="repeat the command to resume"):
        tuned(path)
    monkeypatch.setattr(tuning, "work", in_process)


def another_run(folder):
    """A run of the same people at another budget, that nobody chose."""
    loose = BUDGET.replace("epsilon = 4.0", "noise_multiplier = 0.5")
    config = proposed(write(folder.parent / "other", TUNED, loose))[1].cells[0].config
    assert config is not None
    train(config, folder)


def test_a_run_that_lies_at_best_is_refused_before_anything_is_charged(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    another_run(tmp_path / "best")
    with pytest.raises(Refused, match="best"):
        tuned(path)
    assert not (tmp_path / "tuning.jsonl").exists()


def test_a_run_that_is_put_in_the_place_of_the_best_is_refused(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    shutil.rmtree(tmp_path / "best")
    another_run(tmp_path / "best")
    with pytest.raises(Refused, match="not a run of this tuning"):
        tuned(path)


@every_case("lost", ["private", "private/key", "private/candidates"])
def test_one_charge_never_releases_two_winners(tmp_path, monkeypatch, lost):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    shutil.rmtree(tmp_path / "best")
    gone = tmp_path / lost
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    with pytest.raises(Broken, match="is spent"):
        tuned(path)
    assert not (tmp_path / "best").exists()


def test_a_key_of_another_tuning_is_not_drawn_from(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    cut_off(path, monkeypatch)
    key = tmp_path / "private/key"
    owner, _, secret = key.read_text().partition(" ")
    key.write_text(f"{owner} {secret[::-1].strip()}\n")
    with pytest.raises(Broken, match="commitment"):
        tuned(path)


def test_candidates_without_their_ledger_are_not_charged_anew(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    shutil.rmtree(tmp_path / "best")
    (tmp_path / "tuning.jsonl").unlink()
    with pytest.raises(Refused, match="restore that ledger"):
        tuned(path)


def test_what_was_cut_off_before_the_charge_begins_anew(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    charge, cut = Ledger.charge, []

    def interrupted(ledger, *words):
        if not cut:
            cut.append(ledger.path)
            raise KeyboardInterrupt
        return charge(ledger, *words)

    monkeypatch.setattr(Ledger, "charge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned(path)
    assert Ledger.load(tmp_path / "tuning.jsonl").charges == ()
    tuned(path)
    assert len(Ledger.load(tmp_path / "tuning.jsonl").charges) == 1


def test_candidates_spend_what_was_charged_when_a_tuning_goes_on(tmp_path, monkeypatch):
    """Anything that no cell's name holds may change the noise: earlier runs, another version."""
    number(monkeypatch, 2)
    path = write(tmp_path, TUNED, BUDGET)
    cut_off(path, monkeypatch)
    files, proposal = proposed(path)
    release = proposal.event.release
    less = tuple((each, count - 1) for each, count in release.of)
    other = replace(proposal, event=replace(proposal.event, release=replace(release, of=less)))
    with pytest.raises(Refused, match="another"):
        tuning.tune(files, other, 1)
    assert len(Ledger.load(tmp_path / "tuning.jsonl").charges) == 1


def test_a_tuning_goes_on_over_the_earlier_runs_that_it_states(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    tuned(write(tmp_path / "before", TUNED, BUDGET))
    prior = f'epsilon = 9.0\nprior = ["{tmp_path / "before/best"}"]'
    path = write(tmp_path / "after", TUNED, BUDGET.replace("epsilon = 4.0", prior))
    cut_off(path, monkeypatch)
    files, proposal = proposed(path)
    fewer = replace(proposal, before=replace(proposal.before, runs=()))
    with pytest.raises(Refused, match=r"privacy\.prior"):
        tuning.tune(files, fewer, 1)
    assert 8.9 < tuned(path).guarantee.epsilon <= 9.0
    composed = BUDGET.replace("epsilon = 4.0", 'accountant = "pld"\n' + prior)
    with pytest.raises(Refused, match="cannot be composed with earlier runs"):
        tuned(write(tmp_path / "third", TUNED, composed))


def test_a_runs_secret_stays_private_where_it_is_copied(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    (key,) = (folder / "private/key" for folder in tmp_path.glob("private/candidates/*/run"))
    key.parent.mkdir(0o700)
    key.touch(0o600)
    shutil.rmtree(tmp_path / "best")
    tuned(path)
    copied = tmp_path / "best/private/key"
    assert stat.S_IMODE(copied.stat().st_mode) == 0o600
    assert stat.S_IMODE(copied.parent.stat().st_mode) == 0o700
