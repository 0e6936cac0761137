"""Distributed noise in whole runs: released, planned, charged against both parties, and audited."""

import json
import math
from collections import Counter

import pytest
import torch
from click.testing import CliRunner
from distributed_noise import ARITHMETIC, DISTRIBUTED, EVERYBODY, SEEDED, SKELLAM, shown
from lanes import mostly_slow
from small import SMALL, model, same_run, small, trained

from accounting.accountants import epsilon
from accounting.events import ZERO_OUT, Event
from accounting.guarantee import guarantee, stated
from accounting.ledger import Ledger
from accounting.noises import Skellam
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.text import ceiling
from privfed.plan.composed_guarantees import other_guarantee
from privfed.plan.prior_spending import Prior, Priors
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.report.tables import two_sided
from privfed.run.train import resume


def test_masks_ciphertexts_and_arithmetic_release_the_same(tmp_path):
    for name, keys in {
        "masks": (),
        "committee": ("secure.protocol=committee",),
        "regions": ("secure.protocol=regions",),
        "bfv": ("secure.protocol=bfv",),
        "arithmetic": ("secure.simulate=arithmetic",),
    }.items():
        trained(tmp_path / name, SEEDED, *DISTRIBUTED, *keys)
    models = [
        model(tmp_path / name) for name in ("masks", "bfv", "arithmetic", "committee", "regions")
    ]
    for name in models[0]:
        if name.startswith("model"):
            assert torch.equal(models[0][name], models[2][name])
            assert torch.equal(models[0][name], models[3][name])
            assert torch.equal(models[0][name], models[4][name])
            torch.testing.assert_close(models[0][name], models[1][name], rtol=1e-4, atol=1e-4)


ADAPTIVE = ("privacy.adaptive_clip=true", "privacy.count_noise=3.0", "privacy.clip=0.1")


@pytest.mark.parametrize(
    "noise, more",
    mostly_slow(
        [("skellam", ()), ("discrete_gaussian", ()), ("discrete_gaussian", ADAPTIVE)],
        *(("skellam", ()), ("discrete_gaussian", ADAPTIVE)),
    ),
)
def test_without_noise_a_run_is_the_plain_one_up_to_rounding(tmp_path, noise, more):
    """decode(encode) is right on average, and its error small on a fine grid."""
    keys = (SEEDED, *EVERYBODY, "privacy.noise_multiplier=0.0", *more)
    trained(tmp_path / "plain", *keys)
    trained(tmp_path / "sum", *keys, "secure.protocol=masks", f"privacy.mechanism={noise}")
    plain, found = model(tmp_path / "plain"), model(tmp_path / "sum")
    for name in plain:
        if name.startswith("model") or name == "mechanism/clip":
            torch.testing.assert_close(plain[name], found[name], rtol=0, atol=1e-4)
    if more:
        assert plain["mechanism/clip"] != pytest.approx(0.1, rel=0.1)


def test_a_plan_says_what_each_client_adds_and_what_that_assumes():
    options = [*SMALL, *DISTRIBUTED, "secure.bits=16", "aggregation.byzantine=3"]
    args = ["check", *(item for key in options for item in ("--set", key))]
    output = " ".join(CliRunner().invoke(main, args, env={"COLUMNS": "250"}).output.split())
    assert (
        "10 clients add enough noise, and a sum of fewer clients aborts; 53% of the noise is from "
        "honest clients" in output
    )
    assert "at most 3 of a cohort are assumed; they add no noise, and learn who" in output
    assert "with its noise; no party sees a row" in output
    assert "modular overflow an entry of the sum with a probability of" in output
    assert "a server that knows the cohort; only the noise of honest survivors counts" in output


def test_both_guarantees_are_planned_charged_and_audited(tmp_path):
    outcome = trained(tmp_path, *DISTRIBUTED, "privacy.sizing=layers", "secure.minimum=0")
    plan_ = outcome.plan
    assert plan_.event.relation == ZERO_OUT
    assert isinstance(plan_.event.release, Skellam)
    honest = plan_.cost.summation.protocol.honest(plan_.cost.summation.limits)
    assert plan_.event.release.variance == pytest.approx(
        honest * plan_.other.release.variance, rel=1e-9
    )
    audited = audit(tmp_path)
    assert audited.guarantee.against == "server"
    assert audited.other.against == "readers"
    assert audited.guarantee.epsilon > audited.other.epsilon
    assert audited.guarantee.epsilon == epsilon({plan_.event: 7}, 1e-3, "rdp")
    result = CliRunner().invoke(main, ["audit", str(tmp_path)], env={"COLUMNS": "250"}).output
    assert "a server that knows the cohort; only the noise of honest survivors counts" in result
    assert "readers of the released aggregates" in result
    stated = json.loads(CliRunner().invoke(main, ["audit", str(tmp_path), "--json"]).stdout)
    assert [one["against"] for one in stated["guarantees"]] == ["server", "readers"]


READERS = (*SKELLAM, "privacy.against=readers", "privacy.noise_multiplier=2.5")


def events_of(path):
    """By party: the event of each round, as the ledger states it."""
    ledger_read = Ledger.load(path / "ledger.jsonl")
    other = ledger_read.terms["other"]
    (event,) = ledger_read.run_spending
    return {ledger_read.terms["against"]: event, other["against"]: Event.from_json(other["event"])}


@pytest.fixture(scope="module")
def skellam(tmp_path_factory):
    path = tmp_path_factory.mktemp("skellam") / "first"
    trained(path, *SKELLAM)
    return path


@pytest.mark.parametrize("second", [SKELLAM, READERS], ids=["server", "readers"])
def test_each_partys_guarantee_covers_earlier_runs_too(skellam, tmp_path, second):
    """Whichever of the two the budget gates, and wherever they are stated."""
    keys = [*second, f'privacy.prior=["{skellam}"]', "run.rounds=4", "privacy.clip=0.5"]
    path = tmp_path / "second"
    outcome = trained(path, *keys)
    first, own = events_of(skellam), events_of(path)
    wanted = {
        party: guarantee(Counter({first[party]: 3}) + Counter({own[party]: 4}), 1e-3).epsilon
        for party in ("server", "readers")
    }
    assert wanted["readers"] > guarantee({own["readers"]: 4}, 1e-3).epsilon
    options = [item for key in [*SMALL, *keys] for item in ("--set", key)]
    told = [
        json.loads(shown("check", *options, "--json")),
        outcome.to_json(),
        json.loads((path / "report/summary.json").read_text()),
        json.loads(shown("audit", path, "--json")),
        json.loads(shown("audit", skellam, path, "--json")),
    ]
    for one in told:
        by_party = {bound["against"]: bound["epsilon"] for bound in one["guarantees"]}
        assert by_party == pytest.approx(wanted, rel=1e-12)
    assert told[-1]["against"] == "server"
    other_party = OTHER_PARTY[outcome.guarantee.against]
    for said in (
        shown("check", *options),
        shown("train", *options, "--out", tmp_path / "third"),
        shown("audit", path),
        shown("audit", path, skellam),
    ):
        row = next(line for line in said.splitlines() if "second adversary" in line)
        assert ceiling(wanted[other_party]) in row


def test_a_summary_that_claims_less_against_the_other_party_is_noticed(skellam, tmp_path):
    path = tmp_path / "run"
    trained(path, *SKELLAM, f'privacy.prior=["{skellam}"]')
    file = path / "report/summary.json"
    summary = json.loads(file.read_text())
    summary["guarantees"][1]["epsilon"] *= 0.7
    file.write_text(json.dumps(summary))
    assert "claims epsilon" in audit(path).problems[0]


def test_without_a_ledger_that_states_it_no_joint_bound_exists(skellam, tmp_path):
    """As an older version wrote it: its charges, and nothing of the other party."""
    prior = Prior.of("runs/a", Ledger.load(skellam / "ledger.jsonl"))
    older = {key: prior.to_json()[key] for key in ("run", "id", "head", "charges")}
    (known,) = Priors.from_terms({"against": "server", "prior": [older]}).runs
    assert known.spending == prior.spending
    assert known.toward("server") is known
    assert known.toward("readers") is None
    bound = other_guarantee({}, "readers", (known,), 1e-3)
    assert bound.epsilon == math.inf
    (said,) = stated(bound)
    assert said["against"] == "readers"
    assert (
        "no ledger states the charges against readers of the releases of runs/a" in said["meaning"]
    )
    assert "of runs/a" in two_sided("server", bound)["second adversary"]


def test_a_chain_that_an_older_version_wrote_is_completed_by_the_runs_themselves(
    skellam, tmp_path, monkeypatch
):
    known = ("run", "id", "head", "charges")
    whole = Prior.to_json
    with monkeypatch.context() as patch:
        patch.setattr(Prior, "to_json", lambda one: {key: whole(one)[key] for key in known})
        trained(tmp_path / "second", *SKELLAM, f'privacy.prior=["{skellam}"]')
    assert audit(tmp_path / "second").other.epsilon == math.inf
    lines = shown("audit", tmp_path / "second").splitlines()
    row = next(line for line in lines if "second adversary" in line)
    assert "ε = ∞" in row
    names = [str(tmp_path / "second"), str(skellam)]
    for prior in (names, names[::-1]):
        found = priors(small(*SKELLAM, f"privacy.prior={json.dumps(prior)}"))
        assert sum(found.spending.values()) == 6
        assert all(run.other for run in found.runs)
        assert not found.uncovered


def test_epsilons_about_different_parties_are_never_summed(skellam, tmp_path):
    trained(tmp_path / "central", *ARITHMETIC)
    result = CliRunner().invoke(main, ["audit", str(tmp_path / "central"), str(skellam)])
    assert result.exit_code == 2
    assert "epsilon of the first run holds against" in " ".join(result.output.split())
    with pytest.raises(Refused, match="no ledger states the earlier spending"):
        trained(tmp_path / "more", *SKELLAM, f'privacy.prior=["{tmp_path / "central"}"]')


def test_a_run_in_layers_resumes_and_repeats_itself(tmp_path):
    keys = (SEEDED, *DISTRIBUTED, "privacy.sizing=layers", "cohort.dropout=0.1")
    trained(tmp_path / "whole", *keys, "run.rounds=8")
    trained(tmp_path / "parts", *keys, "run.rounds=4")
    resume(tmp_path / "parts", lambda stored: stored.with_run(rounds=8))
    same_run(tmp_path / "whole", tmp_path / "parts")
