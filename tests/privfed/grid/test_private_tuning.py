"""Choosing among runs, charged: one line before the first of them, and the best alone leaves."""

import errno
import json
import stat
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from grids import BASE, in_process, write
from lanes import every_case
from private_tunings import BUDGET, TUNED, number, proposed, public, scored, tuned
from scipy.stats import binom, chi2
from waiting import until

import privfed
from accounting.choosing.repetitions import Repetitions
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.config.resolved import Chosen
from privfed.core.errors import Refused
from privfed.grid import cell_job
from privfed.grid import private_tuning as tuning
from privfed.grid.cell_job import Job, run_cell
from privfed.grid.cells import STOPPED
from privfed.grid.private_tuning import candidates
from privfed.grid.process_pool import Died, Ended, Started
from privfed.grid.results import FAILED
from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients
from privfed.run.train import resume


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(tuning, "work", in_process)


def test_the_best_leaves_and_its_epsilon_covers_the_choice(tmp_path, monkeypatch):
    number(monkeypatch, 5)
    path = write(tmp_path, TUNED, BUDGET)
    done = tuned(path)
    ledger, best = Ledger.load(tmp_path / "tuning.jsonl"), tmp_path / "best"
    (charge,) = ledger.charges
    audited, terms = audit(best), Ledger.load(best / "ledger.jsonl").terms
    assert audited.problems == ()
    assert terms["chosen"] == {"event": charge.event.to_json(), "charge": charge.hash}
    summary = json.loads((best / "report/summary.json").read_text())
    line = json.loads((best / "metrics.jsonl").read_text().splitlines()[0])
    bounds = [audited.guarantee.epsilon, done.guarantee.epsilon]
    stated = [*bounds, summary["epsilon"], line["epsilon"]]
    assert stated == [guarantee({charge.event: 1}, 1e-3).epsilon] * 4
    assert 3.99 < stated[0] <= 4.0
    assert stated[0] > 1.2 * done.proposal.single.epsilon
    scores = [
        json.loads((each / "result.json").read_text())["outcome"]["accuracy"]
        for each in (tmp_path / "private/candidates").iterdir()
    ]
    assert len(scores) == 5
    assert summary["accuracy"] == max(scores) == done.outcome["accuracy"]
    assert summary["run"] == str(best)


def test_nothing_of_the_others_lies_outside_private(tmp_path, monkeypatch):
    number(monkeypatch, 7)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    assert {file.parts[0] for file in public(tmp_path)} == {
        "best", "tuning.jsonl", "base.toml", "grid.toml",
    }  # fmt: skip
    private = tmp_path / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {item.name for item in private.iterdir() if item.is_dir()} == {"candidates"}
    runs = [Ledger.load(run / "run/ledger.jsonl") for run in (private / "candidates").iterdir()]
    ids = {ledger.terms["id"] for ledger in runs}
    assert len(ids) == 7
    shown = b"".join((tmp_path / file).read_bytes() for file in public(tmp_path))
    assert sum(each.encode() in shown for each in ids) == 1
    assert b"candidates/" not in shown
    lines = (tmp_path / "tuning.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    assert kinds == ["open", "define", "charge"], "one line, whatever their number"


@pytest.mark.parametrize("count", [1, 4])
def test_what_is_public_has_the_same_form_whatever_the_number(tmp_path, monkeypatch, count):
    number(monkeypatch, count)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    listed = sorted(str(file) for file in public(tmp_path))
    assert listed == [
        "base.toml", "best/checkpoint.safetensors", "best/config.toml", "best/ledger.jsonl",
        "best/metrics.jsonl", "best/report/summary.json", "grid.toml", "tuning.jsonl",
    ]  # fmt: skip
    trained = [file.stat().st_mtime for file in tmp_path.glob("private/candidates/*/run/*")]
    dates = [file.stat().st_mtime for file in (tmp_path / "best").rglob("*") if file.is_file()]
    dates.append((tmp_path / "tuning.jsonl").stat().st_mtime)
    assert min(dates) >= max(trained), "dates of what is released tell when all ended, only"


def test_the_ledger_of_a_tuning_says_nothing_of_the_number(tmp_path, monkeypatch):
    seeded, written = BUDGET.replace("[run]", '[run]\nrandomness = "seeded"'), set()
    for count in (1, 2, 9):
        number(monkeypatch, count)
        tuned(write(tmp_path / str(count), TUNED, seeded))
        written.add((tmp_path / str(count) / "tuning.jsonl").read_bytes())
    assert len(written) == 1


def test_it_is_charged_before_anything_is_drawn(tmp_path, monkeypatch):
    seen = []

    def drawn(proposal, key):
        seen.append(len(Ledger.load(tmp_path / "tuning.jsonl").charges))
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "candidates", drawn)
    path = write(tmp_path, TUNED, BUDGET)
    with pytest.raises(KeyboardInterrupt):
        tuned(path)
    assert seen == [1]


def test_a_tuning_that_was_cut_off_goes_on_with_the_same_candidates(tmp_path, monkeypatch):
    number(monkeypatch, 4)
    path = write(tmp_path, TUNED, BUDGET)

    def cut(do, jobs, count):
        for job in list(jobs)[:2]:
            yield Started(job)
            yield Ended(job, do(job))
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "work", cut)
    with pytest.raises(KeyboardInterrupt):
        tuned(path)
    ledger, key = (tmp_path / "tuning.jsonl").read_bytes(), (tmp_path / "private/key").read_bytes()
    folder = tmp_path / "private/candidates"
    before = {path: path.read_bytes() for path in folder.rglob("result.json")}
    assert len(before) == 2
    assert not (tmp_path / "best").exists()
    ran = []

    def rest(do, jobs, count):
        ran.extend(job.name for job in jobs)
        yield from in_process(do, jobs, count)

    monkeypatch.setattr(tuning, "work", rest)
    tuned(path)
    assert ran == ["000003", "000004"]
    assert (tmp_path / "tuning.jsonl").read_bytes() == ledger
    assert (tmp_path / "private/key").read_bytes() == key
    assert all(path.read_bytes() == content for path, content in before.items())
    ran.clear()
    again = tuned(path)
    assert ran == []
    assert (
        again.outcome["accuracy"]
        == json.loads((tmp_path / "best/report/summary.json").read_text())["accuracy"]
    )


@every_case(
    "cut",
    [Died(-9), {"status": STOPPED, "reason": "disk"}, {"status": "waiting", "reason": "busy"}],
    ids=["killed", "stopped", "waiting"],
)
def test_the_machines_trouble_chooses_nothing(tmp_path, monkeypatch, cut):
    number(monkeypatch, 3)
    path = write(tmp_path, TUNED, BUDGET)
    monkeypatch.setattr(tuning, "work", scored(0.5, cut))
    with pytest.raises(Refused, match="repeat the command to resume"):
        tuned(path)
    assert not (tmp_path / "best").exists()


@every_case(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory."), OSError(errno.ENOMEM, "x")],
    ids=["python", "torch", "system"],
)
def test_no_memory_is_the_machines_trouble(tmp_path, monkeypatch, error):
    def trained(job, path):
        raise error

    monkeypatch.setattr(cell_job, "_trained", trained)
    chosen = Chosen(Repetitions(1.0, 0.5))
    candidate = Job("000001", {}, str(tmp_path / "000001"), False, chosen)
    assert run_cell(candidate)["status"] == STOPPED
    assert not (tmp_path / "000001").exists()
    assert run_cell(replace(candidate, chosen=None))["status"] == FAILED, (
        "of a table's cell, its own"
    )


def test_a_candidate_that_fails_is_the_worst_and_never_tried_again(tmp_path, monkeypatch):
    number(monkeypatch, 3)
    path = write(tmp_path, TUNED, BUDGET)
    ran = []

    def diverge(do, jobs, count):
        for job in jobs:
            ran.append(job.name)
            yield Started(job)
            result = do(job)
            if job.name != "000002":
                result = {"status": FAILED, "reason": "diverged"}
            yield Ended(job, result)

    monkeypatch.setattr(tuning, "work", diverge)
    assert tuned(path).outcome["run"] == str(tmp_path / "best")
    assert ran == ["000001", "000002", "000003"]


def fail_and_fill(monkeypatch, tried):
    """The first candidate fails, and at the second the disk is full, once."""
    real = cell_job.train

    def train(config, path):
        name = path.parent.name
        tried.append(name)
        if name == "000001":
            raise ValueError("a bug of this candidate")
        if name == "000002" and tried.count(name) == 1:
            raise OSError(errno.ENOSPC, "no space left")
        return real(config, path)

    monkeypatch.setattr(cell_job, "train", train)


def test_a_candidate_that_failed_is_not_tried_again_when_the_tuning_goes_on(tmp_path, monkeypatch):
    number(monkeypatch, 3)
    path, tried = write(tmp_path, TUNED, BUDGET), []
    fail_and_fill(monkeypatch, tried)
    with pytest.raises(Refused, match="interrupted"):
        tuned(path)
    tuned(path)
    assert Counter(tried) == {"000001": 1, "000002": 2, "000003": 1}


def test_trying_a_failed_candidate_again_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FAILED", "no status")
    with pytest.raises(AssertionError):
        test_a_candidate_that_failed_is_not_tried_again_when_the_tuning_goes_on(
            tmp_path, monkeypatch
        )


def test_where_all_fail_nothing_leaves_and_the_charge_stays(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    path = write(tmp_path, TUNED, BUDGET)
    failed = {"status": FAILED, "reason": "a reason that quotes someone"}
    monkeypatch.setattr(tuning, "work", scored(failed, failed))
    with pytest.raises(Refused, match="nothing is released") as refused:
        tuned(path)
    assert "someone" not in str(refused.value)
    assert len(Ledger.load(tmp_path / "tuning.jsonl").charges) == 1
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("lower, place", [(False, 1), (True, 2)])
def test_the_first_of_the_best_is_taken(tmp_path, lower, place):
    words = f'by = "loss"\nlower_is_better = {str(lower).lower()}\n'
    path = write(tmp_path, TUNED.replace("candidates = 4\n", "candidates = 4\n" + words), BUDGET)
    assert proposed(path)[1].better([0.2, 0.9, 0.1, 0.9, 0.1]) == place


def test_candidates_follow_the_law_and_the_key(tmp_path):
    proposal = proposed(write(tmp_path, TUNED, BUDGET))[1]
    keys = [place.to_bytes(32, "big") for place in range(600)]
    drawn = [candidates(proposal, key) for key in keys]
    assert candidates(proposal, keys[0]) == drawn[0]
    counts = [len(each) for each in drawn]
    singles, chance = counts.count(1), proposal.repetitions.gamma
    assert 1e-4 < binom.cdf(singles, 600, chance) < 1 - 1e-4
    assert not 1e-4 < binom.cdf(singles, 600, 1.4 * chance) < 1 - 1e-4
    tried = Counter(each.cell.values["client.lr"] for one in drawn for each in one)
    expected = sum(tried.values()) / 3
    assert chi2.sf(sum((tried[lr] - expected) ** 2 / expected for lr in tried), 2) > 1e-4
    assert {len({each.folder for each in one}) - len(one) for one in drawn} == {0}


def test_secret_keys_differ_from_tuning_to_tuning(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    keys = set()
    for name in ("first", "second"):
        tuned(write(tmp_path / name, TUNED, BUDGET))
        keys.add((tmp_path / name / "private/key").read_text())
    assert len(keys) == 2


def test_a_simulation_says_so_and_repeats_itself(tmp_path):
    seeded = BUDGET.replace("[run]", '[run]\nrandomness = "seeded"')
    first, second = (tuned(write(tmp_path / name, TUNED, seeded)) for name in ("a", "b"))
    assert first.outcome["accuracy"] == second.outcome["accuracy"]
    assert first.outcome["combination"] == second.outcome["combination"]
    models = [(tmp_path / name / "best/checkpoint.safetensors").read_bytes() for name in ("a", "b")]
    assert models[0] == models[1]
    assert first.ledger.read_bytes() == second.ledger.read_bytes()
    assert "simulation" in Ledger.load(first.ledger).terms["note"]
    assert first.to_json()["simulation"]
    assert not (tmp_path / "a/private/key").exists()


def test_the_charge_is_of_this_tuning_only(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    path = write(tmp_path, TUNED, BUDGET)
    tuned(path)
    for change in ("[0.03, 0.1, 0.5]", "[0.03, 0.1]"):
        write(tmp_path, TUNED.replace("[0.03, 0.1, 0.3]", change), BUDGET)
        with pytest.raises(Refused, match="another tuning"):
            tuned(path)
    write(tmp_path, TUNED.replace("candidates = 4", "candidates = 5"), BUDGET)
    with pytest.raises(Refused, match="another tuning"):
        tuned(path)


def test_an_earlier_run_is_counted_once_and_marked_once(tmp_path, monkeypatch):
    number(monkeypatch, 3)
    before = write(tmp_path / "before", TUNED, BUDGET)
    tuned(before)
    earlier = tmp_path / "before/best"
    more = BUDGET.replace("epsilon = 4.0", f'epsilon = 9.0\nprior = ["{earlier}"]')
    done = tuned(write(tmp_path / "after", TUNED, more))
    marks = (earlier / "counted_by.txt").read_text().splitlines()
    assert marks == [str((tmp_path / "after").resolve())], "a mark each would count candidates"
    audited = audit(tmp_path / "after/best")
    assert audited.problems == ()
    assert 8.9 < audited.guarantee.epsilon == done.guarantee.epsilon <= 9.0
    assert len(Ledger.load(tmp_path / "after/tuning.jsonl").spending) == 2
    assert tuned(tmp_path / "after/grid.toml").guarantee == done.guarantee, "it goes on"


def test_a_chosen_run_goes_no_further(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    tuned(write(tmp_path, TUNED, BUDGET))
    with pytest.raises(Refused, match="chose this run among several"):
        resume(tmp_path / "best", lambda stored: stored.with_run(rounds=9))
    assert resume(tmp_path / "best", lambda stored: stored).charges == 4


def test_the_epsilon_of_a_single_run_is_no_claim_of_the_chosen_one(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    done = tuned(write(tmp_path, TUNED, BUDGET))
    summary = tmp_path / "best/report/summary.json"
    claim = json.loads(summary.read_text()) | {"epsilon": done.proposal.single.epsilon}
    summary.write_text(json.dumps(claim))
    assert "claims epsilon" in audit(tmp_path / "best").problems[0]
    config = tmp_path / "best/config.toml"
    text = config.read_text()
    config.write_text(text[: text.index("[resolved.chosen]")])
    assert any("config.toml" in problem for problem in audit(tmp_path / "best").problems)


def run(path, *words):
    return CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1", *words])


def test_the_command_says_what_it_costs_and_never_how_many_were_tried(tmp_path, monkeypatch):
    number(monkeypatch, 6)
    path = write(tmp_path, TUNED, BUDGET)
    ahead = run(path, "--dry-run", "--json")
    assert ahead.exit_code == 0, ahead.output
    facts = json.loads(ahead.output.splitlines()[-1])
    assert facts["combinations"] == 3
    assert facts["expected_candidates"] == pytest.approx(4.0)
    assert facts["each_tried"] == pytest.approx(1 - 0.25 * (2 / 3) / (1 - 0.75 * 2 / 3))
    assert facts["epsilon_of_one_run"] < facts["epsilon"] <= 4.0
    assert not (tmp_path / "tuning.jsonl").exists()
    assert "the choice costs" in run(path, "--dry-run").output
    done = run(path, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output.splitlines()[-1])
    assert said["best"] == str(tmp_path / "best")
    assert said["epsilon"] == facts["epsilon"]
    assert 6 not in said.values()
    assert run(path, "--retry").exit_code == 2
    listed = json.loads(CliRunner().invoke(main, ["runs", str(tmp_path), "--json"]).output)
    assert [row["run"] for row in listed["rows"]] == [str(tmp_path / "best")]
    page = tmp_path / "best/report/page.html"
    assert CliRunner().invoke(main, ["report", said["best"]]).exit_code == 0
    assert "covers the choice" in page.read_text()
    assert "covers the choice" in CliRunner().invoke(main, ["audit", said["best"]]).output


def test_noise_that_is_fixed_has_the_epsilon_that_it_has(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    done = tuned(write(tmp_path, TUNED, BASE))
    assert done.outcome["noise_multiplier"] == 2.0
    assert done.proposal.single.epsilon < done.guarantee.epsilon < 10.0
    assert audit(tmp_path / "best").guarantee.epsilon == done.guarantee.epsilon


def test_the_score_may_be_what_clients_measured_and_was_charged(tmp_path, monkeypatch):
    number(monkeypatch, 4)
    words = '[evaluation]\nby = "clients"\nevery = 2\n[budget]\nevaluation = 0.3\n'
    done = tuned(write(tmp_path, TUNED, BUDGET + words))
    assert done.proposal.measure == "clients_accuracy"
    scores = [
        json.loads((each / "result.json").read_text())["outcome"]["clients"]["accuracy"]["value"]
        for each in (tmp_path / "private/candidates").iterdir()
    ]
    assert done.to_json()["clients_accuracy"] == max(scores)
    (choice,) = Ledger.load(tmp_path / "tuning.jsonl").run_spending
    assert [count for _, count in choice.release.of] == [2, 2], "training and evaluation"
    audited = audit(tmp_path / "best")
    assert audited.problems == ()
    assert 3.99 < audited.guarantee.epsilon == done.guarantee.epsilon <= 4.0


def test_a_chosen_run_is_not_evaluated_for_more(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    tuned(write(tmp_path, TUNED, BUDGET))
    before = (tmp_path / "best/ledger.jsonl").read_bytes()
    with pytest.raises(Refused, match="chose this run among several"):
        evaluate_by_clients(tmp_path / "best", 0.5, {})
    assert (tmp_path / "best/ledger.jsonl").read_bytes() == before


def test_a_clip_may_be_chosen_since_it_changes_no_event(tmp_path):
    path = write(tmp_path, TUNED.replace('"client.lr"', '"privacy.clip"'), BUDGET)
    assert len(proposed(path)[1].cells) == 3


@pytest.mark.slow
def test_candidates_run_in_processes(tmp_path, monkeypatch):
    number(monkeypatch, 3)
    path = write(tmp_path, TUNED, BUDGET)
    files, proposal = proposed(path)
    tuning.tune(files, proposal, 2)
    assert audit(tmp_path / "best").problems == ()


def test_from_python(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    path = write(tmp_path, TUNED, BUDGET)
    with pytest.raises(Refused, match=r"on_end is given, but the results of .* are secret"):
        privfed.experiment(path, on_end=print)
    ahead = privfed.experiment(path, dry_run=True)
    assert ahead.epsilon_of_one_run < ahead.epsilon
    done = privfed.experiment(path)
    assert done.epsilon == ahead.epsilon
    assert str(tmp_path / "best") in str(done)


@pytest.mark.slow
def test_what_was_killed_goes_on_to_the_same_end(tmp_path):
    """A process that is killed in the middle of candidates, held against one that is not."""
    seeded = BUDGET.replace("[run]", '[run]\nrandomness = "seeded"').replace(
        "rounds = 4", "rounds = 60"
    )
    paths = [write(tmp_path / name, TUNED, seeded) for name in ("cut", "through")]
    command = [sys.executable, "-m", "privfed", "experiment", "--jobs", "1"]
    with subprocess.Popen([*command, str(paths[0])], stderr=subprocess.DEVNULL) as process:

        def released():
            assert process.poll() is None
            return [*paths[0].parent.glob("private/candidates/*/run/releases/*")]

        until(released, "a candidate's release")
        process.kill()
    assert not (paths[0].parent / "best").exists()
    for path in paths:
        subprocess.run([*command, str(path)], check=True, capture_output=True)
    for name in ("tuning.jsonl", "best/checkpoint.safetensors", "best/metrics.jsonl"):
        first, second = ((path.parent / name).read_bytes() for path in paths)
        assert first == second, name
