"""The epsilon of all planned rounds, beside that of the rounds done, where a run ends early."""

import json
import shutil
from collections import Counter

import pytest
from commands import run
from small import SMALL, small, stop_after, trained

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.run.prepare import plan_with_length
from privfed.run.train import resume, train

PEOPLE = ("data.clients=60", "data.holdout=clients")
IMPATIENT = (*PEOPLE, "stop.patience=1", "run.rounds=40", "run.evaluate_every=2", "client.lr=3.0")


def keys(*words):
    return [item for word in (*SMALL, *words) for item in ("--set", word)]


def event_of(path):
    (event,) = Ledger.load(path / "ledger.jsonl").run_spending
    return event


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of 40 planned rounds whose patience ended long before."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    outcome = trained(path, *IMPATIENT)
    assert outcome.stopped_early
    assert outcome.charges < 20
    return path


def test_a_run_that_lost_patience_states_the_epsilon_of_all_planned_rounds(stopped):
    wanted = guarantee({event_of(stopped): 40}, 1e-3).epsilon
    stated = json.loads(run("audit", stopped, "--json").stdout)
    assert stated["planned"]["epsilon"] == wanted > stated["epsilon"]
    assert stated["planned"]["rounds"] == 40
    summary = json.loads((stopped / "report/summary.json").read_text())
    assert summary["planned"] == stated["planned"]
    page_at = stopped.parent / "page.html"
    assert run("report", stopped, "--out", page_at).exit_code == 0
    page = page_at.read_text()
    for shown in (run("audit", stopped).output, page):
        assert "planned ε" in shown
        assert "odometer" in shown


def test_an_interrupted_run_states_it_until_it_is_finished(tmp_path, monkeypatch):
    with monkeypatch.context() as interrupted:
        stop_after(2, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small(), tmp_path / "run")
    event = event_of(tmp_path / "run")
    assert audit(tmp_path / "run").planned.epsilon == guarantee({event: 7}, 1e-3).epsilon
    assert resume(tmp_path / "run", lambda stored: stored).planned is None
    assert audit(tmp_path / "run").planned is None


def test_a_run_that_stops_at_its_budget_states_no_other(tmp_path):
    trained(tmp_path / "run", "privacy.epsilon=0.9", "run.rounds=4")
    outcome = resume(tmp_path / "run", lambda stored: stored.with_run(rounds=9))
    assert outcome.stopped_at_budget
    assert outcome.planned is None
    assert audit(tmp_path / "run").planned is None


def test_noise_after_a_run_that_ended_early_is_said_to_count_rounds_done(stopped, tmp_path):
    later = (*PEOPLE, "run.rounds=3", f'privacy.prior=["{stopped}"]')
    (prior,) = priors(small(*later)).runs
    assert sum(prior.planned.values()) == 40 > sum(prior.spending.values())
    shown = " ".join(run("check", *keys(*later)).output.split())
    assert "ended early, so this ε counts only the completed rounds (an odometer)" in shown
    outcome = trained(tmp_path / "later", *later)
    wanted = Counter({event_of(stopped): 40}) + Counter({event_of(tmp_path / "later"): 3})
    assert outcome.planned.epsilon == guarantee(wanted, 1e-3).epsilon
    assert audit(tmp_path / "later").planned.epsilon == outcome.planned.epsilon


EVALUATED = (
    *("data.clients=60", "evaluation.by=clients", "evaluation.every=5", "run.rounds=10"),
    *("run.evaluate_every=5", "budget.evaluation=0.8"),
)


def test_rounds_of_a_kind_that_was_not_charged_yet_are_planned_as_theirs(tmp_path, monkeypatch):
    """Stopped before the first evaluation round, whose event costs far more than a training one."""
    with monkeypatch.context() as interrupted:
        stop_after(2, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small(*EVALUATED), tmp_path / "run")
    wanted = plan_with_length(small(*EVALUATED)).guarantee.epsilon
    assert audit(tmp_path / "run").planned.epsilon == pytest.approx(wanted, rel=1e-9)


def test_a_further_evaluation_adds_to_what_was_planned(stopped, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path, ignore=shutil.ignore_patterns("counted_by.txt"))
    planned = audit(path).planned.epsilon
    result = run("evaluate", path, "--federated", "--epsilon", "0.03")
    assert result.exit_code == 0, result.output
    after = audit(path)
    assert after.planned.epsilon > planned
    assert after.planned.epsilon > after.guarantee.epsilon


def test_the_budget_bounds_the_planned_rounds_where_none_before_depended_on_releases(
    stopped, tmp_path, monkeypatch
):
    keys_ = (*PEOPLE, "privacy.epsilon=1.5", "run.rounds=6", f'privacy.prior=["{stopped}"]')
    with monkeypatch.context() as interrupted:
        stop_after(2, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small(*keys_), tmp_path / "later")
    early = audit(tmp_path / "later").planned.epsilon
    resume(tmp_path / "later", lambda stored: stored)
    assert audit(tmp_path / "later").planned.epsilon == early > 1.5


def test_a_run_that_ended_at_its_budget_ended_as_planned(tmp_path):
    trained(tmp_path / "first", "privacy.epsilon=0.9", "run.rounds=4", "data.population=all")
    resume(tmp_path / "first", lambda stored: stored.with_run(rounds=400))
    (prior,) = priors(small("data.population=all", f'privacy.prior=["{tmp_path / "first"}"]')).runs
    assert prior.planned is None
