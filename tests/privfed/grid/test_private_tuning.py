"""Choosing among runs, charged: one line before the first of them, and the best alone leaves."""

import json
import stat
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from grids import BASE, in_process, write
from scipy.stats import binom, chi2

import privfed
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from accounting.repetitions import Repetitions
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.config.assembly import assembled
from privfed.config.chosen import Chosen
from privfed.config.overrides import assign
from privfed.config.reading import read_raw
from privfed.errors import Broken, Refused
from privfed.grid.cell_results import STOPPED
from privfed.grid.load import load_grid
from privfed.grid.process_pool import Died, Ended, Started
from privfed.grid.results import DONE, FAILED, Files
from privfed.grid.tuned import tune as tuning
from privfed.grid.tuned.candidates import candidates
from privfed.grid.tuned.proposal import propose
from privfed.plan.refusals.choice import choice_refusals
from privfed.run.resume import resume

BUDGET = BASE.replace("noise_multiplier = 2.0", "epsilon = 4.0")
TUNED = """
base = "base.toml"
[tune]
private = true
candidates = 4
[tune.over]
"client.lr" = [0.03, 0.1, 0.3]
"""


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(tuning, "work", in_process)


def proposed(path):
    files = Files(path, path.parent)
    return files, propose(files, load_grid(path))


def tuned(path):
    files, proposal = proposed(path)
    return tuning.tune(files, proposal, 1)


def number(monkeypatch, count):
    """Make the secret number of candidates `count`."""
    monkeypatch.setattr("accounting.repetitions.Repetitions.number", lambda law, bits: count)


def scored(*outcomes):
    """Candidates that end with these scores, or as these results say, in order; none is trained."""
    left = iter(outcomes)

    def do(jobs):
        for job in jobs:
            yield Started(job)
            ended = next(left)
            if isinstance(ended, float):
                ended = {"status": DONE, "outcome": {"accuracy": ended}}
            yield Ended(job, ended)

    return lambda do_job, jobs, count: do(jobs)


def public(folder):
    """All files that are not under a private/ of the tuning."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder) for path in files if not _under_private(folder, path)}


def _under_private(folder, path):
    return "private" in path.relative_to(folder).parts


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


def test_a_lost_key_never_draws_other_candidates(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    path = write(tmp_path, TUNED, BUDGET)
    monkeypatch.setattr(tuning, "work", scored({"status": STOPPED, "reason": "full"}))
    with pytest.raises(Refused, match="cut off"):
        tuned(path)
    (tmp_path / "private/key").unlink()
    with pytest.raises(Broken, match="missing"):
        tuned(path)


@pytest.mark.parametrize(
    "cut",
    [Died(-9), {"status": STOPPED, "reason": "disk"}, {"status": "waiting", "reason": "busy"}],
    ids=["killed", "stopped", "waiting"],
)
def test_the_machines_trouble_chooses_nothing(tmp_path, monkeypatch, cut):
    number(monkeypatch, 3)
    path = write(tmp_path, TUNED, BUDGET)
    monkeypatch.setattr(tuning, "work", scored(0.5, cut))
    with pytest.raises(Refused, match="the same command goes on"):
        tuned(path)
    assert not (tmp_path / "best").exists()


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


def test_a_chosen_run_goes_no_further(tmp_path, monkeypatch):
    number(monkeypatch, 1)
    tuned(write(tmp_path, TUNED, BUDGET))
    with pytest.raises(Refused, match="chosen among others"):
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


REFUSED = {
    "no noise": ('mechanism = "none"', "", "have no noise"),
    "infinite": ("epsilon = inf", "", "have no noise"),
    "noise of zero": ("noise_multiplier = 0.0", "", "no accountant bounds"),
    "other rounds": ("", '"run.rounds" = [4, 5]', "one and the same"),
    "other cohort": ("", '"cohort.size" = [4, 5]', "one and the same"),
    "other people": ("", '"data.size_mean" = [1.0, 2.0]', "one and the same"),
    "a key that is none": ("", '"client.rate" = [1.0]', "client"),
    "a run that is refused": ("", '"client.lr" = [-1.0]', "client.lr"),
}


@pytest.mark.parametrize("keys, over, why", REFUSED.values(), ids=REFUSED)
def test_what_has_no_proof_is_refused_before_it_is_charged(tmp_path, keys, over, why):
    grid = TUNED if not over else TUNED[: TUNED.index('"client.lr"')] + over
    base = BUDGET.replace("epsilon = 4.0", keys) if keys else BUDGET
    with pytest.raises(Refused, match=why):
        tuned(write(tmp_path, grid, base))
    assert not (tmp_path / "tuning.jsonl").exists()


@pytest.mark.parametrize(
    "section, why",
    [
        ('[data]\nholdout = "examples"\n', "holdout"),
        ('[run]\nheads = "heads.jsonl"\n', "run.heads"),
        ('[run]\nwatch = ["csv"]\n', "run.watch"),
        ("[audit]\ncanaries = 30\n", "canaries"),
        ('[secure]\nprotocol = "masks"\n[privacy]\nmechanism = "skellam"\n', "second guarantee"),
        ("[client.privacy]\nmechanism = 'dp_sgd'\nnoise_multiplier = 1.0\n", "examples of silos"),
    ],
    ids=["scored on members", "heads", "watchers", "canaries", "shared noise", "silos"],
)
def test_what_the_charge_leaves_out_is_refused(tmp_path, section, why):
    write(tmp_path, TUNED, BUDGET)
    (tmp_path / "further.toml").write_text(section)
    raw = read_raw(tmp_path / "base.toml")
    for name, keys in read_raw(tmp_path / "further.toml").items():
        for key, value in keys.items():
            assign(raw, f"{name}.{key}", value)
    config = assembled(raw)
    assert not [*choice_refusals(config)]
    config = replace(config, chosen=Chosen(Repetitions.with_mean(1.0, 4.0)))
    assert any(why in reason for reason in choice_refusals(config))


@pytest.mark.parametrize(
    "grid, why",
    [
        (TUNED + '[grid]\n"privacy.epsilon" = [1.0]\n', "is about several"),
        (TUNED + '[[method]]\nname = "a"\n', "is about several"),
        ("seeds = [0, 1]\n" + TUNED, "the one seed"),
        (TUNED.replace("candidates", "seeds = [3]\ncandidates"), "the one seed"),
        (TUNED.replace("candidates = 4", "candidates = 0.5"), "expected 1 or more"),
        (TUNED.replace("private = true\n", ""), "is for tune.private = true"),
    ],
    ids=["grid", "methods", "seeds", "tuning seeds", "fewer than one", "not private"],
)
def test_contradictory_grids_are_refused(tmp_path, grid, why):
    with pytest.raises(Refused, match=why):
        load_grid(write(tmp_path, grid, BUDGET))


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
    assert "choosing makes it" in run(path, "--dry-run").output
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
    assert "covers that it was chosen" in page.read_text()
    assert "covers that it was chosen" in CliRunner().invoke(main, ["audit", said["best"]]).output


def test_a_measure_that_is_none_is_refused_before_it_is_charged(tmp_path):
    grid = TUNED.replace("candidates = 4", 'candidates = 4\nby = "acuracy"')
    path = write(tmp_path, grid, BUDGET)
    with pytest.raises(Refused, match="acuracy"):
        tuned(path)
    assert not (tmp_path / "tuning.jsonl").exists()


def test_noise_that_is_fixed_has_the_epsilon_that_it_has(tmp_path, monkeypatch):
    number(monkeypatch, 2)
    done = tuned(write(tmp_path, TUNED, BASE))
    assert done.outcome["noise_multiplier"] == 2.0
    assert done.proposal.single.epsilon < done.guarantee.epsilon < 10.0
    assert audit(tmp_path / "best").guarantee.epsilon == done.guarantee.epsilon


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
    ahead = privfed.experiment(path, dry_run=True)
    assert ahead.epsilon_of_one_run < ahead.epsilon
    done = privfed.experiment(path)
    assert done.epsilon == ahead.epsilon
    assert str(tmp_path / "best") in str(done)
