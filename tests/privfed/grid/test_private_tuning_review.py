"""Failing tests of a review of private tuning: each states what should hold, and does not yet."""

import errno
import shutil
from dataclasses import replace

import pytest
from grids import in_process, write
from private_tunings import BUDGET, TUNED, number, proposed, scored, tuned

from accounting.ledger import Ledger
from accounting.repetitions import Repetitions
from privfed.config.chosen import Chosen
from privfed.errors import PrivfedError, Refused
from privfed.grid import cell_job
from privfed.grid.cell_job import Job, run_cell
from privfed.grid.cell_results import STOPPED
from privfed.grid.results import FAILED
from privfed.grid.tuned import tune as tuning
from privfed.run.train import train
from privfed.store.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(tuning, "work", in_process)


@pytest.mark.parametrize("order", ['["secret", "seeded"]', '["seeded", "secret"]'])
def test_candidates_that_are_simulations_are_not_mixed_with_others(tmp_path, order):
    grid = TUNED[: TUNED.index('"client.lr"')] + f'"run.randomness" = {order}\n'
    with pytest.raises(Refused, match="randomness"):
        proposed(write(tmp_path, grid, BUDGET))


def test_a_run_that_lies_at_best_is_not_taken_for_the_tunings(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    loose = BUDGET.replace("epsilon = 4.0", "epsilon = 50.0")
    config = proposed(write(tmp_path / "other", TUNED, loose))[1].cells[0].config
    assert config is not None
    train(config, tmp_path / "best")
    with pytest.raises(Refused, match="best"):
        tuned(path)
    assert not (tmp_path / "tuning.jsonl").exists(), "refused before it is charged"


def test_one_charge_never_releases_two_winners(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    shutil.rmtree(tmp_path / "best")
    shutil.rmtree(tmp_path / "private")
    with pytest.raises(PrivfedError):
        tuned(path)
    assert not (tmp_path / "best").exists()


def test_what_is_busy_or_full_does_not_say_which_candidate(tmp_path, monkeypatch):
    number(monkeypatch, 5)
    path = write(tmp_path, TUNED, BUDGET)
    full = {"status": STOPPED, "reason": "private/candidates/000003/run/x: No space left"}
    monkeypatch.setattr(tuning, "work", scored(0.5, 0.5, full))
    with pytest.raises(Refused) as refused:
        tuned(path)
    assert "000003" not in str(refused.value)
    monkeypatch.setattr(tuning, "work", in_process)
    with (
        RunDirectory.create(tmp_path / "private/candidates/000004/run").locked(),
        pytest.raises(Refused) as refused,
    ):
        tuned(path)
    assert "000004" not in str(refused.value)


@pytest.mark.parametrize("by", ["", 'by = "loss"\n'])
def test_without_a_test_set_nothing_is_charged_for_a_score_that_nobody_has(tmp_path, by):
    base = BUDGET.replace('source = "synthetic"', 'source = "synthetic"\nholdout = "none"')
    path = write(tmp_path, TUNED.replace("private = true\n", "private = true\n" + by), base)
    with pytest.raises(Refused, match=r"tune\.by|holdout"):
        proposed(path)


def test_candidates_spend_what_was_charged_when_a_tuning_goes_on(tmp_path, monkeypatch):
    """Anything that no cell's name holds may change the noise: earlier runs, another version."""
    number(monkeypatch, 2)
    path = write(tmp_path, TUNED, BUDGET)
    monkeypatch.setattr(tuning, "work", scored({"status": STOPPED, "reason": "full"}))
    with pytest.raises(Refused, match="goes on"):
        tuned(path)
    files, proposal = proposed(path)
    release = proposal.event.release
    less = tuple((each, count - 1) for each, count in release.of)
    other = replace(proposal, event=replace(proposal.event, release=replace(release, of=less)))
    monkeypatch.setattr(tuning, "work", in_process)
    with pytest.raises(Refused, match="another"):
        tuning.tune(files, other, 1)
    assert len(Ledger.load(tmp_path / "tuning.jsonl").charges) == 1


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory."), OSError(errno.ENOMEM, "x")],
    ids=["memory", "torch", "system"],
)
def test_no_memory_is_the_machines_trouble(tmp_path, monkeypatch, error):
    def trained(job, path):
        raise error

    monkeypatch.setattr(cell_job, "_trained", trained)
    chosen = Chosen(Repetitions(1.0, 0.5))
    result = run_cell(Job("000001", {}, str(tmp_path / "000001"), False, chosen))
    assert result["status"] != FAILED
    assert not (tmp_path / "000001/result.json").exists()


def test_candidates_print_nothing(tmp_path, capfd, monkeypatch):
    """Whatever a part prints, once for each candidate, would count them."""
    (tmp_path / "speaking.py").write_text(
        "from torch import nn\n"
        "def small(features, width):\n"
        "    print('a network')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(features[0], width))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    base = BUDGET.replace("[client]", '[model]\nname = "speaking:small"\n[client]')
    counts = []
    for count in (1, 4):
        number(monkeypatch, count)
        tuned(write(tmp_path / str(count), TUNED, base))
        counts.append(capfd.readouterr().out.count("a network"))
    assert counts[0] == counts[1]
