"""Canaries in a run: real clients are as before, and broken mechanisms are shown."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from lanes import every_case, mostly_slow
from scipy import stats
from scipy.signal import lfilter
from small import same_run, small, trained

from accounting.events import ZERO_OUT, Event
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation
from privfed.auditing.canaries import power as canary_power
from privfed.auditing.canaries.clients import Canaries
from privfed.auditing.canaries.log import CanaryLog, CanaryRecord
from privfed.auditing.canaries.power import power_of
from privfed.auditing.canaries.scores import Scale, likelihood_ratios, weigh
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanisms import central_gaussian as gaussian
from privfed.report.plan_privacy import fewest_text
from privfed.run.train import resume
from privfed.sampling.cohort import Witness
from privfed.store.run_directory import RunDirectory

MORE = ("data.clients=24", "audit.canaries=20")
SEEDED = ("run.randomness=seeded", *MORE)
MASKS = ("secure.protocol=masks", "cohort.size=20")
WIDE = (
    "data.features=60",
    "data.classes=10",
    "data.clients=400",
    "cohort.size=120",
    "audit.canaries=400",
    "privacy.delta=1e-4",
)


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_directions_have_length_one_and_coins_are_fair():
    canaries = Canaries.drawn(2000, 50, Streams(3, simulated=True))
    assert torch.allclose(canaries.directions.norm(dim=1), torch.ones(2000))
    gram = canaries.directions @ canaries.directions.T - torch.eye(2000)
    assert float(gram.std()) == pytest.approx(50**-0.5, rel=0.02)
    assert abs(canaries.inclusion.mean() - 0.5) < 0.05
    again = Canaries.drawn(2000, 50, Streams(3, simulated=True))
    assert torch.equal(canaries.directions, again.directions)
    assert not np.array_equal(
        canaries.inclusion, Canaries.drawn(2000, 1, Streams(4, True)).inclusion
    )


def test_coins_and_directions_follow_from_the_secret_key():
    ours, theirs = (Canaries.drawn(100, 8, Streams(3, key=key * 32)) for key in (b"a", b"b"))
    assert not (ours.directions == theirs.directions).all(1).any()
    assert not np.array_equal(ours.inclusion, theirs.inclusion)


def test_real_clients_are_drawn_counted_and_charged_as_without(tmp_path):
    counted = ("run.simulation_metrics=true", "run.checkpoint_every=2")
    with_them = trained(tmp_path / "a", *SEEDED, *counted)
    without = trained(tmp_path / "b", *SEEDED, *counted, "audit.canaries=0")
    assert with_them.guarantee.epsilon == without.guarantee.epsilon
    assert with_them.plan.event == without.plan.event
    cohorts = [
        [line["simulation_only"]["cohort"] for line in metrics(tmp_path / name)] for name in "ab"
    ]
    assert cohorts[0] == cohorts[1]
    assert with_them.measures["loss"] != without.measures["loss"]  # they took part
    terms = json.loads((tmp_path / "a/ledger.jsonl").read_text().splitlines()[0])
    assert "canaries" in json.dumps(terms)


def test_a_canary_sends_its_direction_at_the_clip(tmp_path):
    """Everybody's rows are zero, there is no noise, and all take part: sums are of canaries."""
    still = ("client.lr=0.0", "privacy.epsilon=inf", "cohort.sampler=full", "cohort.size=0")
    trained(tmp_path / "run", *SEEDED, *still, "privacy.clip=0.3", "run.rounds=1")
    directory = RunDirectory.open(tmp_path / "run")
    seen = CanaryLog(directory.canaries, 20).read()
    canaries = Canaries.drawn(20, seen.dimension, Streams(0, simulated=True))
    rows = clip_rows(0.3 * canaries.directions[canaries.entered], 0.3).rows
    expected = canaries.directions @ rows.sum(0) / 24
    np.testing.assert_allclose(seen.products[0], expected, atol=1e-6)
    assert np.array_equal(seen.inclusion, canaries.inclusion)


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path):
    trained(tmp_path / "whole", *SEEDED)
    trained(tmp_path / "parts", *SEEDED, "run.rounds=4")
    log = tmp_path / "parts/private/canaries.f64"
    with log.open("ab") as file:
        file.write(b"torn")
    resume(tmp_path / "parts", lambda _: small(*SEEDED))
    same_run(tmp_path / "whole", tmp_path / "parts")
    ours, theirs = (
        CanaryLog(RunDirectory.open(tmp_path / name).canaries, 20).read()
        for name in ("whole", "parts")
    )
    assert ours.rounds.tolist() == [*range(1, 8)]
    np.testing.assert_array_equal(ours.products, theirs.products)
    np.testing.assert_array_equal(ours.final, theirs.final)
    assert ours.ended


def test_a_resume_holds_the_way_from_the_model_that_was_started_from(tmp_path):
    """A run that goes on builds its model anew, without the file that it once started from."""
    trained(tmp_path / "before", "run.randomness=seeded")
    before = tmp_path / "before"
    asked = (*SEEDED, f"model.init={before}", f'privacy.disjoint=["{before}"]')
    trained(tmp_path / "whole", *asked)
    trained(tmp_path / "parts", *asked, "run.rounds=4")
    resume(tmp_path / "parts", lambda _: small(*asked))
    ours, theirs = (
        CanaryLog(RunDirectory.open(tmp_path / name).canaries, 20).read().final
        for name in ("whole", "parts")
    )
    np.testing.assert_array_equal(ours, theirs)


def test_in_secret_mode_a_resume_keeps_coins_and_directions(tmp_path):
    trained(tmp_path / "run", *MORE, "run.rounds=4")
    before = CanaryLog(RunDirectory.open(tmp_path / "run").canaries, 20).read()
    resume(tmp_path / "run", lambda _: small(*MORE))
    after = CanaryLog(RunDirectory.open(tmp_path / "run").canaries, 20).read()
    assert np.array_equal(before.inclusion, after.inclusion)
    np.testing.assert_array_equal(before.products, after.products[:4])
    assert (tmp_path / "run/private").stat().st_mode & 0o077 == 0


def test_an_honest_run_is_not_refuted_and_its_estimate_is_near_the_claim(tmp_path):
    still = ("client.lr=0.0", "run.rounds=1", "cohort.sampler=full", "cohort.size=0")
    trained(tmp_path / "run", *WIDE, *still, "run.randomness=seeded")
    audited = audit(tmp_path / "run").canaries
    assert not audited.refuted
    claim = audited.epsilon_claimed
    assert 0.7 * claim < audited.epsilon_estimate_all_iterates < 1.6 * claim  # of some 200 and 200
    assert audited.epsilon_estimate_all_iterates == pytest.approx(audited.epsilon_estimate_final)
    assert audited.epsilon_lower_bound <= claim
    assert audited.epsilon_lower_bound_split <= claim
    assert audited.epsilon_lower_bound_most > audited.epsilon_lower_bound


@every_case("slack", [0.0, 1e-3, 0.4, 1.0])
def test_what_a_run_may_deviate_by_is_added_to_its_p_value(slack):
    """All of 60 coins are guessed right: impossible under the claim, and not beside it."""
    inclusion = np.arange(60) < 30
    final = np.where(inclusion, 1.0, -1.0)
    record = CanaryRecord(
        inclusion, 0, np.empty(0), np.empty(0), np.empty((0, 60)), final, ended=True
    )
    event = Event(Gaussian(1.0), "full", ZERO_OUT)
    weighed = weigh(record, event, None, [(0.1, 1e-9)], 0.95, slack)
    assert weighed.p_value == pytest.approx(slack, abs=1e-8)
    assert weighed.refuted == (slack == 0.0)


def test_canaries_are_held_against_their_own_run_alone(tmp_path):
    """They were in no earlier one, whose epsilon would only make the claim easier to keep."""
    trained(tmp_path / "before", MORE[0], "run.randomness=seeded")
    trained(tmp_path / "run", *SEEDED, f'privacy.prior=["{tmp_path / "before"}"]')
    audited = audit(tmp_path / "run")
    assert audited.canaries.epsilon_claimed == audited.alone.epsilon
    assert audited.alone.epsilon < audited.guarantee.epsilon


def test_a_run_without_its_noise_is_refuted_loudly(tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "gaussian_on_grid", lambda keys, std, n: np.zeros(n))
    everybody = ("cohort.sampler=full", "cohort.size=0")
    short = ("privacy.noise_multiplier=60.0", "run.rounds=2", "run.randomness=seeded")
    trained(tmp_path / "run", *WIDE, *everybody, *short)
    audited = audit(tmp_path / "run")
    assert audited.refuted
    assert audited.canaries.epsilon_claimed < 1.5
    assert audited.canaries.epsilon_lower_bound > audited.canaries.epsilon_claimed
    told = CliRunner().invoke(main, ["audit", str(tmp_path / "run")])
    assert told.exit_code == 4
    assert "does not satisfy the ledger's claim" in " ".join(told.output.split())
    as_json = CliRunner().invoke(main, ["audit", str(tmp_path / "run"), "--json"])
    assert as_json.exit_code == 4
    facts = json.loads(as_json.output)
    assert facts["confidence"] == 0.95
    assert facts["exit"] == 4
    assert "error" not in facts
    assert facts["epsilon_lower_bound"] == audited.canaries.epsilon_lower_bound
    assert {"epsilon_estimate_all_iterates", "epsilon_estimate_final"} <= facts.keys()


SPACED = ("cohort.size=0",)


@pytest.mark.parametrize(
    ("drawn", "coefficients"),
    [
        (RandomAllocation(5, 1, Gaussian(0.5)), [1.0]),
        (RandomAllocation(6, 2, Gaussian(0.5)), [1.0, 0.5]),
    ],
    ids=["slots", "bands in groups"],
)
def test_canaries_in_secret_slots_are_told_from_others(drawn, coefficients):
    """Products of 400 canaries over 5 epochs, of which a half took part in a slot of each."""
    rng, c = np.random.default_rng(2), np.array(coefficients)
    count, rounds = 400, 5 * drawn.slots
    norm = np.linalg.norm(c)
    x = 0.5 * norm * rng.normal(size=(rounds, count))
    x = lfilter([1.0], c, x, axis=0)
    choices = drawn.slots // drawn.groups
    groups = rng.integers(drawn.groups, size=count)
    for epoch in range(5):
        slot = groups + drawn.groups * rng.integers(choices, size=count)
        x[epoch * drawn.slots + slot[:200], np.arange(200)] += 1
    entered = np.arange(count) < 200
    numbers = np.arange(1, rounds + 1)
    record = CanaryRecord(entered, 1000, numbers, np.ones(rounds), x, None, ended=True)
    slots = Witness("allocation", 1 / drawn.slots, ZERO_OUT, lambda of: replace(drawn, of=of))
    ratios = likelihood_ratios(record, ZERO_OUT, Scale(1.0, 1, c, 0.5 * norm, slots))
    assert stats.mannwhitneyu(ratios[:200], ratios[200:], alternative="greater").pvalue < 1e-12
    full = Witness("full", 1.0, ZERO_OUT, lambda of: of)
    flat = likelihood_ratios(record, ZERO_OUT, Scale(1.0, 1, c, 0.5 * norm, full))
    auc, of_everywhere = ((each[:200, None] > each[None, 200:]).mean() for each in (ratios, flat))
    assert auc > of_everywhere + 0.02


CYCLIC = (*SPACED, "cohort.sampler=cyclic", "cohort.separation=3")
BANDED = ("privacy.mechanism=banded", "privacy.bands=2")
WITH = {
    "scaffold": ("client.objective=scaffold", "data.setting=cross_silo"),
    "worker momentum": ("client.objective=worker_momentum", "data.setting=cross_silo"),
    "two exchanges": ("client.objective=feddane",),
    "passes": ("aggregation.rule=geometric_median", "aggregation.passes=2"),
    "banded": (*CYCLIC, *BANDED),
    "buffers": (*CYCLIC, "privacy.mechanism=blt"),
    "slots": ("cohort.sampler=allocation", "cohort.slots=3", *SPACED),
    "banded, slots": ("cohort.sampler=allocation", "cohort.slots=4", *SPACED, *BANDED),
}


@pytest.mark.parametrize(
    "name", mostly_slow(WITH, "scaffold", "passes", "buffers", "banded, slots")
)
def test_canaries_go_with(name, tmp_path):
    trained(tmp_path / "run", *SEEDED, *WITH[name])
    audited = audit(tmp_path / "run")
    assert not audited.problems
    assert np.isfinite(audited.canaries.epsilon_estimate_all_iterates)
    assert audited.canaries.p_value == 1.0


@every_case(
    ("overrides", "why"),
    [
        (("privacy.mechanism=none",), "there is no claim"),
        (("audit.canaries=19",), "so few canaries cannot refute a claim"),
        (("attack.name=sign_flip", "attack.fraction=0.2"), "runs with attackers"),
        (("cohort.sampler=custom_parts:Crowded",), "places of real clients"),
        (
            ("secure.protocol=masks", "secure.capacity=43", "cohort.sampler=full", "cohort.size=0"),
            "set it to 44 or more",
        ),
        (("evaluation.by=clients", "run.rounds=8"), "only inserted into training rounds"),
        (("data.sites=3", "data.site_partition=elsewhere"), "accept rows from no other client"),
        (
            ("data.sites=3", "data.site_partition=elsewhere", "secure.protocol=masks"),
            "accept rows from no other client",
        ),
    ],
)
def test_canaries_are_refused_with_a_reason(overrides, why, tmp_path):
    with pytest.raises(Refused, match=why):
        trained(tmp_path / "run", *MORE, *overrides)


def test_what_they_would_notice_is_told_before_the_run():
    """Less noise is noticed more often, and other canaries in a cohort hide each one."""
    everybody = ("cohort.sampler=full", "cohort.size=0", "data.clients=400", "audit.canaries=400")
    planned = plan(small(*everybody, "privacy.epsilon=0.5"))
    power, crowded = power_of(planned, 10_000), power_of(planned, 1)
    rates = [(fault.doubted, fault.refuted) for fault in power.noticed]
    assert rates == sorted(rates)
    assert rates[0][0] < 0.5
    assert rates[-1] == (1.0, 1.0)
    assert power.epsilon == pytest.approx(0.5, rel=1e-3)
    assert power.fewest < power.canaries
    assert all(fault.epsilon > power.epsilon for fault in power.noticed)
    assert crowded.noticed[-1].doubted < 0.5
    assert power_of(plan(small()), 10_000) is None


def test_slack_as_large_as_the_gate_is_told_as_what_hides_everything(monkeypatch):
    monkeypatch.setattr(canary_power, "_SHARES", ())  # whatever faults would be noticed
    planned = plan(small("data.clients=60", "audit.canaries=40", *MASKS))
    power = power_of(planned, 10_000)
    assert power.slack > 1e-6
    assert power.fewest is None
    assert "permits any outcome with probability" in fewest_text(power)
    assert "is charged" not in fewest_text(replace(power, slack=0.0))


def test_a_published_run_without_private_says_so(tmp_path):
    trained(tmp_path / "run", *SEEDED)
    (tmp_path / "run/private/canaries.f64").unlink()
    assert audit(tmp_path / "run").canaries is None
    result = CliRunner().invoke(main, ["audit", str(tmp_path / "run")])
    assert "their records (under private/) are not available" in " ".join(result.output.split())


def test_a_damaged_log_is_no_silence(tmp_path):
    trained(tmp_path / "run", *SEEDED)
    log = tmp_path / "run/private/canaries.f64"
    assert log.stat().st_mode & 0o077 == 0
    log.write_bytes(log.read_bytes()[:100])
    assert CliRunner().invoke(main, ["audit", str(tmp_path / "run")]).exit_code == 5


def test_nothing_is_said_before_the_end(tmp_path):
    trained(tmp_path / "run", *SEEDED)
    log = tmp_path / "run/private/canaries.f64"
    log.write_bytes(log.read_bytes()[: -8 * 22])  # the last record: the final model
    assert audit(tmp_path / "run").canaries is None


def test_a_release_that_a_crash_left_unheard_is_heard_when_it_is_replayed(tmp_path, monkeypatch):
    append = CanaryLog.append

    def crashes(log, round, products):
        if round == 5:
            raise KeyboardInterrupt  # its release is durable already
        append(log, round, products)

    monkeypatch.setattr(CanaryLog, "append", crashes)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", *MORE, "run.checkpoint_every=100")
    monkeypatch.undo()
    resume(tmp_path / "run", lambda _: small(*MORE, "run.checkpoint_every=100"))
    seen = CanaryLog(RunDirectory.open(tmp_path / "run").canaries, 20).read()
    assert seen.rounds.tolist() == [*range(1, 8)]
