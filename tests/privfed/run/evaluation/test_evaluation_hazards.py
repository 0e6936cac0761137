"""What may go wrong where clients evaluate, and must not: crashes, resumes, further parts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from lanes import FULL, mostly_slow
from small import SMALL, model, small, trained

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.plan.prior_spending import charged_under
from privfed.run.prepare import prepare
from privfed.run.train import resume, train
from privfed.store.round_logs import Releases

BY = ("evaluation.by=clients", "evaluation.every=4", "run.rounds=8", "run.evaluate_every=4")
MASKS = ("secure.protocol=masks", "secure.simulate=arithmetic", "cohort.dropout=0.05")


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def crash(*_, **__):
    raise RuntimeError("crash")


def crashed_evaluation(path, monkeypatch, *arguments):
    """An evaluation that is gone once its release is durable."""
    real = Releases.write

    def write(self, *stored):
        real(self, *stored)
        crash()

    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", write)
        assert run("evaluate", path, "--federated", *arguments).exit_code == 1


@FULL
def test_a_clients_row_does_not_hang_on_who_else_is_scored(full):
    keys = ("data.clients=8", "data.size_min=2", "evaluation.holdout=0.5", "run.chunk=100")
    setup = prepare(small(*BY, *keys, "data.features=6"))
    measures, worst = setup.executor.measures, 0.0
    for seed in range(60 if full else 10):
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(1, 6, generator=generator) * 100
        steps = torch.randint(-1, 2, (3, 6), generator=generator)
        params = torch.zeros(21)
        params[:18] = (weights * (1 + 1.2e-7 * steps)).float().reshape(-1)
        for count in range(2, 8):
            ids = np.arange(count)
            change = measures.rows(ids, params, 4)[:-1] - measures.rows(ids[:-1], params, 4)
            worst = max(worst, float(change.sum(0).norm()))
    assert worst == 0.0


@pytest.mark.slow
def test_the_second_guarantee_is_counted_after_a_resume_with_more_rounds(tmp_path):
    keys = [key for key in SMALL if not key.startswith("privacy.noise")]
    keys += [*MASKS, "data.clients=2000", "cohort.size=400", "evaluation.size=100"]
    keys += ["evaluation.by=clients", "evaluation.every=2", "run.evaluate_every=2", "run.rounds=2"]
    keys += ["privacy.mechanism=skellam", "privacy.against=readers"]
    keys += ["privacy.delta=1e-7", "privacy.epsilon=1"]
    train(load(None, keys), tmp_path / "run")

    def more(config):
        privacy = config.privacy.model_copy(update={"epsilon": 30.0})
        return replace(config.with_run(rounds=6), privacy=privacy)

    planned = resume(tmp_path / "run", more).plan
    ledger = Ledger.load(tmp_path / "run/ledger.jsonl")
    assert not audit(tmp_path / "run").problems
    counted = guarantee(charged_under(ledger, "other"), 1e-7).epsilon
    assert counted == planned.other_party(6).epsilon
    assert len(ledger.run_spending) == 2


def test_a_release_of_measures_is_never_replayed_as_an_update(tmp_path, monkeypatch):
    path = tmp_path / "run"
    trained(path, "data.features=2", "run.rounds=8")  # 9 parameters, as long as 3 groups' row
    before = model(path)["model/1.weight"]
    crashed_evaluation(path, monkeypatch, "--epsilon", 0.1, "--set", "evaluation.group=label")
    outcome = resume(path, lambda config: config.with_run(rounds=9))
    assert outcome.updates == 8
    assert torch.equal(model(path)["model/1.weight"], before)


@pytest.mark.parametrize("measures", mostly_slow(['["loss"]', '["loss", "accuracy"]'], '["loss"]'))
def test_a_resume_reads_what_was_measured_afterwards_as_what_it_was(tmp_path, measures):
    path = tmp_path / "run"
    trained(path, *BY)
    asked = ("--set", f"evaluation.measures={measures}")
    assert run("evaluate", path, "--federated", "--epsilon", 5, *asked).exit_code == 0
    before = json.loads((path / "report/summary.json").read_text())["clients"]
    assert resume(path, lambda config: config).to_json()["clients"] == before


@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_an_interrupted_evaluation_is_no_dead_end(tmp_path, monkeypatch, randomness):
    path = tmp_path / "run"
    trained(path, f"run.randomness={randomness}")
    crashed_evaluation(path, monkeypatch, "--epsilon", 1)
    assert run("train", "--resume", path).exit_code == 0
    assert run("evaluate", path, "--federated", "--epsilon", 1).exit_code == 0
    assert run("train", "--resume", path, "--set", "run.rounds=12").exit_code == 0


def test_a_torn_charge_of_a_seeded_run_is_re_executed(tmp_path):
    path = tmp_path / "run"
    trained(path, *BY, "run.randomness=seeded", "run.rounds=4", "run.checkpoint_every=4")
    ledger = path / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"event":0,"hash":"ab')
    assert resume(path, lambda config: config.with_run(rounds=8)).charges == 8


def test_a_run_that_writes_simulation_metrics_evaluates(tmp_path):
    keys = ("run.simulation_metrics=true", "run.checkpoint_every=4")
    assert trained(tmp_path / "run", *BY, *keys).evaluations == 2


def test_attackers_of_updates_are_no_reason_not_to_evaluate(tmp_path):
    keys = ("attack.name=sign_flip", "attack.fraction=0.2")
    assert trained(tmp_path / "run", *BY, *keys).evaluations == 2


@pytest.mark.slow
def test_a_raised_budget_is_that_of_the_summary_and_of_a_resume(tmp_path):
    keys = [key for key in SMALL if not key.startswith("privacy.noise")]
    train(load(None, [*keys, "privacy.epsilon=8.0"]), tmp_path / "run")
    run("evaluate", tmp_path / "run", "--federated", "--epsilon", 2)
    summary = json.loads((tmp_path / "run/report/summary.json").read_text())
    assert summary["epsilon"] <= summary["budget"]
    assert summary["budgets"]
    assert run("train", "--resume", tmp_path / "run").exit_code == 0
