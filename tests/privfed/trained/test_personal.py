"""Runs whose clients keep models of their own: planned, trained, cut off, resumed and scored."""

import io
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from lanes import every_case, mostly_slow
from rich.console import Console
from small import same_run, small, stop_after, trained

from accounting.ledger import Ledger
from privfed.cli.main import main
from privfed.core.errors import Broken, Refused
from privfed.plan.plan import plan
from privfed.report.plan import plan_table
from privfed.report.trained_model import export_table
from privfed.run.check import check
from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients
from privfed.run.train import resume
from privfed.store.run_directory import RunDirectory
from privfed.trained import personalise
from privfed.trained.evaluate import evaluate
from privfed.trained.export import export
from privfed.trained.kept_models import score_kept_models
from privfed.trained.personalise import comparison_of

SILO = ("data.setting=cross_silo", "model.name=mlp", "model.hidden=[5]")
HEADS = (*SILO, 'model.local=["3*"]', "client.local_epochs=1")
ADAPTERS = (
    *(*SILO, 'model.local=["*_lora_B"]', "model.lora.rank=2"),
    *('model.lora.targets=["3"]', 'model.lora.trained=["1"]'),
)
SEEDED = ("run.randomness=seeded",)
OPEN = ("privacy.mechanism=none",)
BY_CLIENTS = ("evaluation.by=clients", "evaluation.every=2", "evaluation.personal=true")
CLUSTERS = ("client.objective=ifca", "server.optimizer=fedavg")


def test_what_stays_is_neither_sent_nor_noised():
    """d is what is shared: shorter messages, less noise, and the event of a smaller model."""
    full, partial = check(small(*SILO)), check(small(*HEADS))
    d, p = 6 * 5 + 5, 5 * 3 + 3
    assert (full.forecast.parameters, partial.forecast.parameters) == (d + p, d)
    assert partial.forecast.remembered == 4 * p
    assert (full.forecast.remembered, full.plan.event) == (0, partial.plan.event)
    assert partial.forecast.noise / full.forecast.noise == pytest.approx(math.sqrt(d / (d + p)))
    assert full.forecast.up / partial.forecast.up == pytest.approx((d + p) / d)
    text = " ".join(map(str, plan_table(partial.plan, partial.forecast, None).columns[1].cells))
    assert f"{d} parameters sent, {p} kept by clients" in text
    assert "1 of the local part, then of the shared part" in text
    assert f"each stores {4 * p} bytes between rounds" in text


def test_every_cluster_is_sent_and_has_its_slot():
    plain, clusters = (
        check(small(*SILO, *keys)).forecast for keys in ((), (*CLUSTERS, "client.clusters=3"))
    )
    d = plain.parameters
    assert clusters.down == 3 * plain.down
    assert clusters.up / plain.up == pytest.approx(3 * (d + 1) / d)


def test_adapters_stay_beside_a_shared_body():
    forecast = check(small(*ADAPTERS)).forecast
    assert (forecast.parameters, forecast.remembered) == (6 * 5 + 5, 4 * 2 * 3)


@every_case("name", ["ditto", "apfl", "per_fedavg", "per_fedavg_hf", "ifca"])
def test_a_round_is_charged_as_fedavgs_is(name):
    plain = plan(small("data.setting=cross_silo"))
    keys = CLUSTERS if name == "ifca" else (f"client.objective={name}",)
    assert plan(small(*keys, *SILO)).event == plain.event


REFUSED = {
    "clients that do not return": (
        ("data.setting=cross_device", 'model.local=["3*"]', "model.name=mlp"),
        "do not; use data.setting",
    ),
    "a gradient of what is sent": ((*HEADS, "client.objective=mime"), "which lack the local part"),
    "a second gradient of it": (
        (*SILO, 'model.local=["3*"]', "client.objective=per_fedavg_hf"),
        "which lack the local part",
    ),
    "a model of one's own": ((*SILO, 'model.local=["3*"]', "client.objective=ditto"), "of the two"),
    "one of many": ((*SILO, 'model.local=["3*"]', *CLUSTERS), "of the two"),
    "epochs of nothing": ((*SILO, "client.local_epochs=1"), "no local part"),
    "all epochs": ((*HEADS, "client.local_epochs=2"), "raise client.epochs"),
    "few steps": ((*HEADS, "client.steps=3"), "set client.steps = 0"),
    "corrected steps": ((*HEADS, "client.objective=fedprox"), "changes all local steps"),
    "sites": ((*HEADS, "data.sites=3", "secure.protocol=masks"), "sites keep none"),
    "attackers who steer": (
        (*HEADS, *OPEN, "attack.name=neurotoxin", "attack.fraction=0.2"),
        "leaves parameters out of it",
    ),
    "attackers who steer one of several": (
        (*CLUSTERS, *OPEN, "attack.name=neurotoxin", "attack.fraction=0.2"),
        "has several",
    ),
    "canaries that train": ((*HEADS, "audit.canaries=4", "audit.kind=input"), "canaries cannot"),
    "sampler": ((*HEADS, "cohort.sampler=fixed_size"), "no privacy amplification"),
    "nobody to score": (("evaluation.personal=true",), "only clients can evaluate"),
    "no models": (
        ("evaluation.personal=true", "evaluation.by=clients", "evaluation.every=7"),
        "have no personal models",
    ),
    "many models": (
        ("evaluation.personal=true", "evaluation.by=clients", "evaluation.every=7",
         *CLUSTERS),
        "neither measure nor send",
    ),
}  # fmt: skip


@every_case("case", list(REFUSED))
def test_what_has_no_proof_or_no_meaning_is_refused(case):
    keys, says = REFUSED[case]
    with pytest.raises(Refused) as refused:
        plan(small(*keys))
    assert says in " ".join(str(refused.value).split())


def test_examples_are_protected_in_what_stays_too(tmp_path, monkeypatch):
    """All that DP-SGD trains is held against gradients of single examples, before a run begins."""
    (tmp_path / "norm_net_of_silos.py").write_text(
        "from torch import nn\n\ndef net(features, width):\n    return nn.Sequential("
        "nn.Linear(*features, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, width))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = ("data.setting=cross_silo", "model.name=norm_net_of_silos:net", 'model.local=["1*"]')
    assert check(small(*keys, *OPEN, "run.trainer=loop"))
    with pytest.raises(Refused, match=r"these layers: '1' \(BatchNorm1d, with buffers\)"):
        check(small(*keys, *OPEN, "client.privacy.mechanism=dp_sgd", "run.trainer=loop"))


def test_a_row_rule_and_masks_take_what_is_shared():
    """All that takes a row of updates does: it has no number more than these."""
    for keys in (
        ("aggregation.rule=krum", *OPEN),
        ("secure.protocol=masks", "privacy.mechanism=skellam"),
        ("privacy.mechanism=local_gaussian", "aggregation.rule=median"),
    ):
        full = ("cohort.sampler=full", "cohort.size=0")
        for whose in (HEADS, (*SILO, "client.objective=ditto")):
            assert plan(small(*whose, *keys, *full), length=35).event


KEEPING = {
    "heads": HEADS,
    "adapters": ADAPTERS,
    "ditto": (*SILO, "client.objective=ditto"),
    "ifca": (*SILO, *CLUSTERS, "client.spread=1.0"),
}


@pytest.mark.parametrize("name", mostly_slow(["heads", "ditto"], "heads"))
def test_what_clients_keep_survives_a_run_that_is_cut_off(name, tmp_path, monkeypatch):
    trained(tmp_path / "whole", *KEEPING[name], *SEEDED)
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "part", *KEEPING[name], *SEEDED)
    with pytest.raises(Refused, match="was interrupted in round 5"):
        score_kept_models(tmp_path / "part")
    resume(tmp_path / "part", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "part")
    scores = [score_kept_models(tmp_path / run).to_json() for run in ("whole", "part")]
    for each in scores:
        del each["run"]
    assert scores[0] == scores[1]
    assert (tmp_path / "whole/private").stat().st_mode & 0o777 == 0o700
    RunDirectory.open(tmp_path / "part").states.unlink()
    with pytest.raises(Broken, match="the clients' states, without"):
        score_kept_models(tmp_path / "part")


@pytest.mark.parametrize("name", mostly_slow(KEEPING, "heads"))
def test_kept_models_are_scored_by_client_with_intervals(name, tmp_path):
    """On the examples that clients hold back: as they scored in the last round, when all did."""
    scored = "before" if name == "ifca" else "after"
    trained(
        tmp_path / "run", *KEEPING[name], *OPEN, *SEEDED, "data.size_min=30", "run.rounds=8",
        "client.lr=0.3", "evaluation.by=clients", "evaluation.every=4", "client.epochs=4",
        "cohort.sampler=full", "cohort.size=0",
        f"evaluation.personal={'true' if scored == 'after' else 'false'}",
    )  # fmt: skip
    shown = CliRunner().invoke(
        main, ["evaluate", str(tmp_path / "run"), "--personalise", "0", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    printed = json.loads(shown.stdout)
    assert (printed["simulation"], printed["clients"], printed["epochs"]) == (True, 12, 0)
    assert "examples that clients hold out" in printed["note"]
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert printed[scored]["mean"] == pytest.approx(last["clients_accuracy"], abs=1e-6)
    for side in ("before", "after"):
        low, high = printed["intervals"][side]
        assert 0 <= low < printed[side]["mean"] < high <= 1
    assert printed["after"]["mean"] > printed["before"]["mean"] + 0.02
    table = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run"), "--personalise", "0"])
    assert "no ε covers" in " ".join(table.output.split())


def test_a_run_without_models_of_their_own_has_none_to_score(tmp_path):
    trained(tmp_path, *SEEDED)
    with pytest.raises(Refused, match="keep no personal models"):
        score_kept_models(tmp_path)


def test_fine_tuning_has_what_stays_trained_too(tmp_path, monkeypatch):
    trained(tmp_path, *HEADS, *OPEN, *SEEDED, "data.size_min=30", "client.lr=0.1")
    tuned, score = [], personalise.client_score

    def client_score(network, scoring, model, client):
        tuned.append(model[6 * 5 + 5 :])
        return score(network, scoring, model, client)

    monkeypatch.setattr(personalise, "client_score", client_score)
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path), "--personalise", "20", "--json"])
    assert shown.exit_code == 0, shown.output
    assert len({tuple(head.tolist()) for head in tuned}) == len(tuned) == 12
    printed = json.loads(shown.stdout)
    assert printed["after"]["mean"] > printed["before"]["mean"] + 0.1
    lacks = "18 parameters of this model (3.weight, 3.bias) are local to each client"
    assert lacks in evaluate(tmp_path).note
    exported = export(tmp_path, tmp_path / "model.safetensors")
    assert lacks in exported.facts["lacks"]
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(export_table(exported))
    assert lacks in console.export_text()


@pytest.mark.parametrize("name", mostly_slow(["heads", "ditto"], "ditto"))
def test_clients_score_their_own_models_in_charged_rounds(name, tmp_path):
    """The same rows, but of other models: what is charged stays."""
    keys = (*KEEPING[name], *SEEDED, "evaluation.by=clients", "evaluation.every=3", "run.rounds=6",
            "privacy.noise_multiplier=0.01", "data.size_min=30", "client.epochs=6",
            "cohort.sampler=full", "cohort.size=0")  # fmt: skip
    measured = {}
    for personal in ("false", "true"):
        config = small(*keys, f"evaluation.personal={personal}")
        trained(tmp_path / personal, *keys, f"evaluation.personal={personal}")
        lines = (tmp_path / personal / "metrics.jsonl").read_text().splitlines()
        measured[personal] = [json.loads(line) for line in lines]
        assert plan(config).event == plan(small(*keys)).event
    shared, local = (
        [line["clients_accuracy"] for line in measured[kind] if "clients_accuracy" in line]
        for kind in ("false", "true")
    )
    assert len(local) == 2
    assert local != shared
    assert measured["true"][-1]["epsilon"] == measured["false"][-1]["epsilon"]
    asked = evaluate_by_clients(tmp_path / "false", 1e6, {"personal": True})
    scores = score_kept_models(tmp_path / "false")
    assert asked.measures["accuracy"].value == pytest.approx(scores.after["mean"], abs=0.02)
    assert abs(scores.after["mean"] - scores.before["mean"]) > 0.05


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """A run whose clients keep heads, and score them."""
    folder = tmp_path_factory.mktemp("heads")
    trained(folder / "before", *SILO, "run.rounds=2", "data.population=mine")
    trained(
        folder / "run", *HEADS, *BY_CLIENTS, "run.rounds=4", "data.population=mine",
        f"model.init={folder / 'before'}", f'privacy.prior=["{folder / "before"}"]',
    )  # fmt: skip
    return folder


def asked(folder, *further):
    """What `privfed evaluate --federated` says of that run, on one line."""
    words = ["evaluate", str(folder / "run"), "--federated", "--epsilon", "1", *further]
    result = CliRunner().invoke(main, words)
    return result, " ".join(result.output.split())


def test_further_clients_score_the_runs_model(heads, tmp_path):
    """What stays is as newcomers begin; and of what it began from nobody is asked either."""
    others = ("--set", "data.alpha=3.0", "--set", "data.population=others")
    refused, words = asked(heads, *others, "--out", str(tmp_path / "out"))
    assert (refused.exit_code, "privacy.disjoint" in words) == (2, True)
    others += ("--set", f'privacy.disjoint=["{heads / "before"}"]', "--out", str(tmp_path / "out"))
    refused, words = asked(heads, *others, "--set", "evaluation.personal=true")
    assert (refused.exit_code, "have not trained" in words) == (2, True)
    refused, words = asked(heads, *others, "--set", 'evaluation.measures=["auc"]')
    assert (refused.exit_code, "one of two classes" in words) == (2, True)
    assert not (tmp_path / "out").exists(), "what was refused stands in nobody's way"
    scored, words = asked(heads, *others)
    assert scored.exit_code == 0, words
    assert "are local to each client (model.local) and have their initial values here" in words
    terms = Ledger.load(tmp_path / "out/ledger.jsonl").terms
    assert [each["run"] for each in terms["disjoint"]] == [
        str(heads / n) for n in ("run", "before")
    ]
    scored, words = asked(heads, *others)
    assert (scored.exit_code, "contains another run" in words) == (2, True)


def test_it_is_said_whose_models_are_scored(heads):
    scored, words = asked(heads)
    assert scored.exit_code == 0, words
    assert "run, each client's own model, charged as round 5" in words
    assert "initial values here" not in words
    scored, words = asked(heads, "--set", "evaluation.personal=false")
    assert "each client's own model" not in words
    assert "initial values here" in words


def test_a_folder_to_write_to_is_not_silently_ignored(heads):
    words = ["evaluate", str(heads / "run"), "--personalise", "0", "--out", "elsewhere"]
    refused = CliRunner().invoke(main, words)
    assert (
        refused.exit_code,
        "leave the other options out" in " ".join(refused.output.split()),
    ) == (2, True)


def test_intervals_over_clients_by_hand():
    before, after = np.full(40, 0.5), np.full(40, 0.5)
    after[:30] = 0.7
    facts = comparison_of(before, after, lower_is_better=False)
    assert facts["improved"] == 0.75
    z, n, share = 1.959964, 40, 0.75
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert facts["intervals"]["improved"] == pytest.approx((middle - half, middle + half), rel=1e-4)
    low, high = facts["intervals"]["change"]
    normal = 1.96 * np.std(after - before) / math.sqrt(40)
    assert (0.15 - low, high - 0.15) == pytest.approx((normal, normal), rel=0.2)
    assert facts["intervals"]["before"] == (0.5, 0.5)
    assert comparison_of(before, after, lower_is_better=True)["improved"] == 0.0
    assert comparison_of(before[:1], after[:1], lower_is_better=False)["intervals"] == {}
