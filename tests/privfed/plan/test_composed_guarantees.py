"""The epsilon of all planned rounds, beside that of the rounds done, where a run ends early."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest
from commands import run
from small import SMALL, small, stop_after, trained

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.api.guarantee import RunGuarantee
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.plan.composed_guarantees import planned_guarantee
from privfed.plan.prior_spending import charged_under, planned_by
from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients
from privfed.run.prepare import plan_with_length
from privfed.run.train import resume, started, train

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


def stated(path):
    return RunGuarantee.of(audit(path))


def broken_off(path, *words, rounds=2):
    """Runs `rounds` rounds and ends the run there, as a `break` does."""
    with started(small(*words), path) as loop:
        for now in loop:
            if now.round == rounds:
                break
        return loop.end()


def with_epsilon(epsilon, rounds):
    def change(stored):
        privacy = stored.privacy.model_copy(update={"epsilon": epsilon})
        return replace(stored.with_run(rounds=rounds), privacy=privacy)

    return change


OF_FOUR = ("data.clients=60", "privacy.epsilon=4", "run.rounds=4")


def test_the_budget_is_no_bound_once_an_evaluation_may_raise_it(tmp_path):
    path = tmp_path / "run"
    broken_off(path, *OF_FOUR)
    for epsilon in (1.0, 3.0):
        evaluate_by_clients(path, epsilon, {})
        ledger = Ledger.load(path / "ledger.jsonl")
        terms = ledger.terms
        wanted = guarantee(planned_by(4, ledger), terms["delta"], terms["accountant"])
        assert stated(path).epsilon >= wanted.epsilon * (1 - 1e-9)
        assert "ended early" in stated(path).sentence
        assert "unplanned releases" in stated(path).sentence


def test_an_evaluation_after_a_complete_run_is_said_to_have_been_unplanned(tmp_path):
    path = tmp_path / "run"
    trained(path, *OF_FOUR)
    assert stated(path).epsilon <= 4
    evaluate_by_clients(path, 1.0, {})
    ledger = Ledger.load(path / "ledger.jsonl")
    assert stated(path).epsilon == guarantee(ledger.spending, 1e-3).epsilon
    assert "evaluations, were charged (1) after the run began" in stated(path).sentence
    assert "ended early" not in stated(path).sentence
    (prior,) = priors(small(f'privacy.prior=["{path}"]', "data.clients=60")).runs
    assert prior.odometer


def test_rounds_that_were_added_later_are_said_to_be_so(tmp_path):
    """Raised with the budget, so that nothing bounds them that was fixed before."""
    path = tmp_path / "run"
    broken_off(path, *OF_FOUR)
    resume(path, with_epsilon(9.0, 8))
    assert audit(path).charges == 8
    assert "rounds were raised from 4 to 8" in stated(path).sentence
    assert "odometer" in stated(path).sentence
    assert stated(path).epsilon == guarantee({event_of(path): 8}, 1e-3).epsilon
    later = ("data.clients=60", "run.rounds=3", f'privacy.prior=["{path}"]')
    assert "were not all planned" in " ".join(run("check", *keys(*later)).output.split())
    trained(tmp_path / "later", *later)
    assert "were not all planned: ε is an odometer" in stated(tmp_path / "later").sentence


def charged(path, budget, events, *words):
    """A ledger at `path` of a run of `words`, with charges of these events, and a budget."""
    trained(path.parent / "run", *words)
    terms = dict(Ledger.load(path.parent / "run/ledger.jsonl").terms)
    ledger = Ledger.create(path, {**terms, "budget": budget})
    for round, event in enumerate(events, start=1):
        ledger.charge(round, event)
    return ledger


def test_an_unchanged_budget_bounds_rounds_that_were_added_later(tmp_path):
    event = plan_with_length(small("run.rounds=4")).event
    ledger = charged(tmp_path / "ledger.jsonl", 1.5, [event] * 5, "run.rounds=4")
    bound = planned_guarantee(5, ledger, "tightest")
    assert bound.epsilon == 1.5 > guarantee({event: 6}, 1e-3).epsilon
    assert "rounds were raised from 4 to 5 after the run began, so that ε is the budget" in str(
        bound
    )
    assert "odometer" not in bound.caveat


def test_a_raised_budget_leaves_the_planned_rounds_as_the_bound(tmp_path):
    path = tmp_path / "run"
    trained(path, "privacy.epsilon=0.9", "run.rounds=4")
    resume(path, lambda stored: stored.with_run(rounds=40))
    assert audit(path).planned is None  # it ended at a budget that was fixed before
    resume(path, with_epsilon(1.2, 40))
    assert stated(path).epsilon == guarantee({event_of(path): 40}, 1e-3).epsilon > 1.2


def test_a_break_before_a_cheaper_round_is_not_an_end_at_the_budget(tmp_path):
    """Round 5 evaluates, at more than a training round; the next training round still fits."""
    planned = plan_with_length(small(*EVALUATED))
    events = [*[planned.event] * 4, planned.evaluation.event]
    affords, not_ = ({planned.event: t, events[-1]: e} for t, e in ((5, 1), (4, 2)))
    assert guarantee(affords, 1e-3).epsilon < 3.3 < guarantee(not_, 1e-3).epsilon
    ledger = charged(tmp_path / "ledger.jsonl", 3.3, events, *EVALUATED)
    assert planned_guarantee(10, ledger, "tightest").epsilon == 3.3


READ_BY_ALL = (
    *("privacy.mechanism=discrete_gaussian", "secure.protocol=masks"),
    *("secure.simulate=arithmetic", "data.clients=60", "cohort.size=30", "run.rounds=4"),
    "run.randomness=seeded",
)


def test_other_guarantees_of_a_run_that_ended_early_count_its_planned_rounds(tmp_path):
    complete = small(*READ_BY_ALL)
    train(complete, tmp_path / "complete")
    broken_off(tmp_path / "run", *READ_BY_ALL)
    (wanted,), (early,) = stated(tmp_path / "complete").others, stated(tmp_path / "run").others
    assert early["epsilon"] == wanted["epsilon"] > audit(tmp_path / "run").other.epsilon
    assert "all planned rounds are counted" in early["meaning"]
    assert "odometer" not in wanted["meaning"]
    later = (*READ_BY_ALL, f'privacy.prior=["{tmp_path / "run"}"]')
    train(small(*later), tmp_path / "later")
    (after,) = stated(tmp_path / "later").others
    assert "its rounds done are counted, so that ε is an odometer" in after["meaning"]


def test_examples_of_silos_are_counted_for_all_planned_rounds(tmp_path):
    words = (
        "privacy.mechanism=none",
        "data.setting=cross_silo",
        "cohort.sampler=full",
        "cohort.size=0",
    )
    words += ("client.privacy.mechanism=dp_sgd", "client.privacy.noise_multiplier=3.0")
    words += ("client.privacy.sampling_rate=1.0", "run.rounds=4")
    broken_off(tmp_path / "run", *words)
    ledger = Ledger.load(tmp_path / "run/ledger.jsonl")
    wanted = guarantee(
        charged_under(ledger, "examples", rounds=4), ledger.terms["examples"]["delta"]
    )
    assert wanted.rounds == 4
    (early,) = stated(tmp_path / "run").others
    assert early["epsilon"] == wanted.epsilon > audit(tmp_path / "run").examples.epsilon
    assert "all planned rounds are counted" in early["meaning"]


def test_a_complete_run_after_one_that_ended_early_names_that_run(stopped, tmp_path):
    later = (*PEOPLE, "run.rounds=3", f'privacy.prior=["{stopped}"]')
    trained(tmp_path / "later", *later)
    bound = stated(tmp_path / "later")
    assert f"{stopped}, counted as earlier, ended early" in bound.sentence
    assert "the run ended early" not in bound.sentence
    assert bound.rounds == 43
    assert bound.rows["over"] == "43 rounds"
