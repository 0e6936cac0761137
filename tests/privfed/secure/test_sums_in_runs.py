"""Secure sums in whole runs: equal to plain ones up to rounding, aborts charged, never silent."""

import json
import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds, assert_normal
from lanes import every_case, mostly_slow
from scipy import stats
from small import model, same_run, small, trained

from accounting.accountants import epsilon
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from defenses.on_rows.median import Median
from privfed.auditing.run_audit import audit, opacus_epsilon
from privfed.cli.main import main
from privfed.config.reading import load, overridden
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.budget_shares import unspent_budget
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.run.train import resume, train
from privfed.sampling.samplers import CappedPoisson, FixedSize, Full, Poisson
from privfed.secure.aborts import probability
from privfed.secure.limits import Leaves, Limits, leaving, sending
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Aborted, Session
from privfed.store.run_directory import RunDirectory

SEEDED = "run.randomness=seeded"
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
MASKS = ("secure.protocol=masks", "secure.threshold=0.5")
FREE = ("privacy.mechanism=none", SEEDED)


def sums(**keys):
    limits = {"capacity": 8} | {
        key: keys.pop(key) for key in ("capacity", "minimum", "arithmetic") if key in keys
    }
    return MaskedSums(**keys).over(Limits(**limits))


# --- the same run, however it is summed ---


@pytest.mark.parametrize(
    ("protocol", "weights"),
    mostly_slow(
        [
            (each, of)
            for each in ("masks", "committee", "bfv", "regions")
            for of in ("uniform", "examples")
        ],
        *(("masks", "examples"), ("committee", "uniform"), ("bfv", "uniform")),
    ),
)
def test_without_privacy_a_run_equals_the_plain_one_up_to_rounding(tmp_path, protocol, weights):
    """Weights travel inside the sum: what is divided by is summed, too."""
    keys = (*FREE, *EVERYBODY, f"aggregation.weights={weights}")
    trained(tmp_path / "plain", *keys)
    trained(tmp_path / "secure", *keys, f"secure.protocol={protocol}")
    plain, secure = (model(tmp_path / name) for name in ("plain", "secure"))
    for name in plain:
        torch.testing.assert_close(plain[name], secure[name], rtol=0, atol=2e-4)
    assert any(not torch.equal(plain[name], secure[name]) for name in plain)


@every_case("protocol", ["masks", "regions", "bfv", "ckks"])
def test_with_central_noise_a_run_equals_the_plain_one_up_to_rounding(tmp_path, protocol):
    keys = (SEEDED, *EVERYBODY)
    bits = "secure.bits=20" if protocol == "ckks" else "secure.bits=32"
    trained(tmp_path / "plain", *keys)
    trained(tmp_path / "secure", *keys, f"secure.protocol={protocol}", bits)
    plain, secure = (model(tmp_path / name) for name in ("plain", "secure"))
    near = 1e-5 if bits.endswith("32") else 2e-3
    for name in plain:
        torch.testing.assert_close(plain[name], secure[name], rtol=near, atol=near)
    terms = Ledger.load(tmp_path / "secure" / "ledger.jsonl").terms
    assert terms["secure"]["protocol"] == protocol
    assert terms["secure"]["cryptography"] is True
    assert terms["secure"]["encoded"] >= 1.0


@pytest.mark.parametrize("extra", [(), ("privacy.adaptive_clip=true", "privacy.count_noise=3.0")])
def test_arithmetic_alone_gives_the_same_run_and_the_ledger_says_so(tmp_path, extra):
    drop = () if extra else ("cohort.dropout=0.2",)
    keys = (SEEDED, *EVERYBODY, *MASKS, *drop, *extra)
    trained(tmp_path / "messages", *keys)
    trained(tmp_path / "arithmetic", *keys, "secure.simulate=arithmetic")
    one, other = (model(tmp_path / name) for name in ("messages", "arithmetic"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    terms = Ledger.load(tmp_path / "arithmetic" / "ledger.jsonl").terms
    assert terms["secure"]["cryptography"] is False
    summary = json.loads((tmp_path / "arithmetic/report/summary.json").read_text())
    assert summary["simulation"] is True


def test_the_ledger_of_an_unseeded_run_without_cryptography_is_a_simulation(tmp_path):
    outcome = trained(tmp_path, *EVERYBODY, *MASKS, "secure.simulate=arithmetic")
    assert "no cryptography" in outcome.plan.simulation
    assert "no cryptography" in Ledger.load(tmp_path / "ledger.jsonl").terms["note"]


def test_several_exchanges_and_several_vectors_travel_through_masks(tmp_path):
    keys = (SEEDED, *EVERYBODY, "client.objective=mime", "data.setting=cross_silo")
    trained(tmp_path / "plain", *keys)
    trained(tmp_path / "secure", *keys, *MASKS)
    plain, secure = (model(tmp_path / name) for name in ("plain", "secure"))
    for name in plain:
        torch.testing.assert_close(plain[name], secure[name], rtol=1e-5, atol=1e-5)


# --- the bound that noise covers ---


def test_noise_is_calibrated_to_the_encoded_bound_and_a_wrong_one_is_caught(tmp_path):
    """Few bits make encoded rows 6 % longer than the clip: noise has to follow."""
    clip, z = 0.4, 1.5
    summation = sums(bits=8, capacity=8, threshold=0.2, arithmetic=True)
    rounds = Rounds(
        tmp_path, [0] * 8, noise=z, clip=clip, sampler=Full().of(8), summation=summation
    )
    encoded = rounds.algorithm.encoding_factor(18)
    assert encoded > 1.05
    noise = rounds.released(1000) * 8
    assert_normal(noise, z * clip * encoded)
    with pytest.raises(AssertionError):
        assert_normal(noise, z * clip)


def test_an_encoded_row_is_within_the_bound_that_the_sum_states():
    mechanism = CentralGaussian(clip=0.7, noise_multiplier=1.0)
    summation = sums(bits=10, capacity=4, threshold=0.3, arithmetic=True)
    state = mechanism.init()
    encoding = mechanism.encoding(state)
    bound = summation.encoded(encoding, 30)
    for seed in range(50):
        rows = torch.randn(2, 30, generator=torch.Generator().manual_seed(seed))
        first, second = (0.6999 * rows / rows.norm(dim=1, keepdim=True)).double().numpy()
        codec = summation.codec(encoding, 30)
        keys = Streams(seed, True).at("noise/rounding/0", 1, np.arange(2)).each()
        for row, own in zip((first, second), keys, strict=True):
            whole = codec.encode(row, own)
            assert np.linalg.norm(whole * codec.step) <= bound


def test_sums_lie_on_the_grid_of_the_noise_that_is_added():
    """So that the released values are the exact mechanism's."""
    from privfed.privacy.noise.gaussian_on_grid import grid_of

    for z in (1e-2, 0.7, 30.0, 1e4):
        mechanism = CentralGaussian(clip=0.3, noise_multiplier=z)
        for bits in (12, 32, 60):
            summation = sums(bits=bits, capacity=5)
            codec = summation.codec(mechanism.encoding({}), 650)
            grid = grid_of(z * codec.bound * codec.step)
            assert codec.step % grid == 0.0


def test_a_row_beyond_the_bound_of_its_sum_is_refused():
    accumulator = sums(arithmetic=True).open(Session(1, 0, b""), 3, Encoding(1.0, 2.0**20))
    with pytest.raises(ValueError, match="opened for"):
        accumulator.add(np.array([1]), BoundedRows(torch.zeros(1, 3), 1.5))
    with pytest.raises(ValueError, match="registered twice"):
        accumulator.add(np.array([1, 1]), BoundedRows(torch.zeros(2, 3), 1.0))


def test_numbers_beyond_the_range_end_a_run_without_privacy_with_a_reason(tmp_path):
    with pytest.raises(Refused, match=r"secure\.range"):
        trained(tmp_path, *FREE, *EVERYBODY, *MASKS, "secure.range=0.001")


# --- who drops out ---


def test_who_drops_out_follows_public_coins_of_their_own():
    ids = np.arange(30_000)
    leaves = leaving(0.3, Streams(1).at("dropout/0", 4, ids), len(ids))
    counts = np.bincount(leaves, minlength=4)
    assert stats.chisquare(counts, len(ids) * np.array([0.7, 0.1, 0.1, 0.1])).pvalue > 1e-6
    some = leaving(0.3, Streams(1).at("dropout/0", 4, ids[500:600]), 100)
    assert np.array_equal(some, leaves[500:600])
    assert np.isclose(
        (leaves == Leaves.NEVER).mean() + (leaves == 3).mean(), sending(0.3), atol=0.02
    )
    assert not leaving(0.0, Streams(1).at("dropout/0", 4, ids), len(ids)).any()


@pytest.mark.parametrize("summation", [PlainSum(), sums(threshold=0.15)])
def test_the_same_clients_are_missing_from_every_protocols_sum(tmp_path, summation):
    rounds = Rounds(
        tmp_path,
        (3, 9, 4, 1, 6, 12, 5, 2),
        mechanism=NoPrivacy(),
        sampler=Full().of(8),
        summation=summation,
        dropout=0.5,
    )
    world = rounds.world
    leaves = leaving(0.5, world.streams.at("dropout/0", 1, np.arange(8)), 8)
    here = np.flatnonzero((leaves == 0) | (leaves == 3))
    assert 0 < len(here) < 8
    keys = world.streams.at("shuffle", 1, here)
    rows, _ = rounds.local.train(here, {"params": rounds.state.params}, None, keys)
    weights = torch.tensor([(3, 9, 4, 1, 6, 12, 5, 2)[k] for k in here], dtype=torch.float32)
    expected = (weights[:, None] * rows).sum(0) / weights.sum()
    torch.testing.assert_close(torch.from_numpy(rounds.released()[0]), expected, rtol=0, atol=1e-3)


# --- aborts ---


def brute(summation, sampler, clients, dropout):
    """P[abort] of a population of exactly `clients`, by all sizes of cohorts."""
    rate, cap = sampler.witness(0, clients).rate, sampler.capacity() or clients
    return sum(
        stats.binom.pmf(n, clients, rate) * summation.abort_probability(min(n, cap), dropout)
        for n in range(clients + 1)
    )


@every_case("dropout", [0.0, 0.1, 0.4])
@every_case("keys", [{}, {"minimum": 12}, {"capacity": 25}])
@every_case("cap", [None, 22])
def test_the_probability_of_an_abort_covers_every_permitted_population(dropout, keys, cap):
    sampler = CappedPoisson(size=20, cap=cap) if cap else Poisson(size=20)
    summation = sums(**({"capacity": 60} | keys))
    bound = probability(summation, sampler, 60, 1, dropout)
    rate = 20 / 60
    for population in range(54, 61):
        most = sampler.capacity() or 60
        weights = stats.binom.pmf(np.arange(population + 1), population, rate)
        exact = sum(
            weight * summation.abort_probability(min(n, most), dropout)
            for n, weight in enumerate(weights)
        )
        assert exact <= bound * (1 + 1e-9) + 1e-300
    assert bound <= 60 * max(brute(summation, sampler, 60, dropout), 1e-15)


def test_what_stops_a_masked_sum_is_what_happens():
    """The bound on aborts over 12 clients, against 400 sessions."""
    summation = sums(threshold=0.7, capacity=12, minimum=9, arithmetic=True)
    lost = 0
    for seed in range(400):
        streams = Streams(seed, simulated=True)
        ids = np.arange(12)
        leaves = leaving(0.2, streams.at("dropout/0", 1, ids), 12)
        of = Session(1, 0, b"", ids, leaves, streams)
        accumulator = summation.open(of, 2, Encoding(1.0, 2.0**20))
        for client in ids[(leaves == 0) | (leaves == 3)].tolist():
            accumulator.add(np.array([client]), BoundedRows(torch.zeros(1, 2), 1.0))
        try:
            accumulator.close()
        except Aborted:
            lost += 1
    bound = summation.abort_probability(12, 0.2)
    assert stats.binomtest(lost, 400, min(1.0, bound), alternative="greater").pvalue > 1e-6
    assert lost / 400 > bound / 2


def test_aborts_are_charged_where_the_draw_is_a_secret_and_free_where_it_is_not():
    poisson = plan(small(*MASKS, "data.clients=200", "cohort.size=60"))
    assert poisson.event.slack == poisson.cost.aborts > 0
    assert plan(small(*MASKS, *EVERYBODY, "cohort.dropout=0.1")).event.slack == 0.0
    fixed = plan(small(*MASKS, "cohort.sampler=fixed_size", "privacy.accountant=rdp"))
    assert fixed.event.slack == fixed.cost.aborts == 0.0
    lossy = ("cohort.sampler=fixed_size", "cohort.dropout=0.05", "cohort.size=100")
    fixed = plan(small(*MASKS, *lossy, "data.clients=400", "privacy.accountant=rdp"))
    assert fixed.event.slack == fixed.cost.aborts > 0


@every_case(
    "keys, said",
    [
        ((), "nothing remains"),
        (("privacy.epsilon=2.0",), "nothing remains"),
        ((*EVERYBODY, "cohort.dropout=0.6"), "would abort in"),
        (("cohort.availability=daily", *EVERYBODY), "makes dropouts of a secure sum unpredictable"),
        ((*EVERYBODY, "privacy.adaptive_clip=true", "cohort.dropout=0.1"), "without bound"),
        ((*EVERYBODY, "secure.bits=8", "secure.capacity=200"), "but sums of"),
        ((*EVERYBODY, "secure.minimum=9", "secure.capacity=5"), "but secure.capacity is"),
        ((*EVERYBODY, "secure.threshold=0.05"), "suffice to unmask"),
        ((*FREE, "aggregation.rule=median"), "needs rows, which a secure sum never reveals"),
        ((*FREE, *EVERYBODY, "secure.protocol=ckks"), "recover the key"),
        (("secure.protocol=none", "secure.minimum=3"), "only with a secure.protocol"),
    ],
)
def test_what_has_no_proof_is_refused_with_what_would_work(tmp_path, keys, said):
    masks = ("secure.protocol=masks",)
    with pytest.raises(Refused, match=said):
        trained(tmp_path / "run", *masks, *keys)
    assert not (tmp_path / "run").exists()


def test_a_population_outside_what_aborts_were_charged_for_is_refused(tmp_path):
    table = tmp_path / "people.csv"
    lines = [f"{k % 60},{k % 7},{k % 2}" for k in range(600)]
    table.write_text("\n".join(["who,x,y", *lines]) + "\n")
    text = f"""
format = 1
[data]
source = "table"
path = "{table}"
client = "who"
label = "y"
labels = ["0", "1"]
clients = CLIENTS
holdout = "examples"
[data.features]
x = [0, 6]
[cohort]
size = 40
[privacy]
noise_multiplier = 1.0
delta = 1e-3
accountant = "rdp"
[run]
rounds = 1
[secure]
protocol = "masks"
threshold = 0.3
"""
    for declared, code in ((60, 0), (66, 0), (59, 2), (70, 2)):
        (tmp_path / "run.toml").write_text(text.replace("CLIENTS", str(declared)))
        result = CliRunner().invoke(main, ["check", str(tmp_path / "run.toml")])
        assert result.exit_code == code, result.output
        assert (code == 2) == ("nine tenths" in result.output.replace("\n", " "))


ARITHMETIC = "secure.simulate=arithmetic"
LOSSY = (*EVERYBODY, "secure.protocol=masks", "secure.threshold=0.65", "cohort.dropout=0.25")


def test_aborted_rounds_are_charged_and_the_run_goes_on_and_says_so(tmp_path):
    outcome = trained(tmp_path / "run", SEEDED, *LOSSY, ARITHMETIC, "run.rounds=14")
    aborted = sorted(outcome.aborts)
    assert 0 < len(aborted) < 14
    assert outcome.updates == 14 - len(aborted)
    assert outcome.charges == 14
    assert audit(tmp_path / "run").guarantee.rounds == 14
    summary = json.loads((tmp_path / "run/report/summary.json").read_text())
    assert (summary["aborted"], summary["charges"]) == (len(aborted), 14)
    assert all("too few" in why for why in outcome.aborts.values())
    assert not any(digit in why for why in outcome.aborts.values() for digit in "0123456789")


def test_a_resumed_run_aborts_alike(tmp_path):
    keys = (SEEDED, *LOSSY, ARITHMETIC)
    trained(tmp_path / "whole", *keys, "run.rounds=12")
    trained(tmp_path / "parts", *keys, "run.rounds=6")
    resume(tmp_path / "parts", lambda stored: stored.with_run(rounds=12))
    same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_only_aborted_says_that_its_model_is_as_at_the_start(tmp_path):
    keys = (*SMALL_RUN, *LOSSY, ARITHMETIC, SEEDED, "run.rounds=1")
    options = [item for key in keys for item in ("--set", key)]
    for seed in range(40):
        out = tmp_path / str(seed)
        args = [
            "train",
            "--out",
            str(out),
            *options,
            "--set",
            f"run.seed={seed}",
            "--set",
            ARITHMETIC,
        ]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        output = " ".join(result.output.split())
        if "charged but aborted" in output:
            assert "round 1 aborted; it is charged and not repeated: too few clients" in output
            assert "the model is still the initial one" in output
            return
    pytest.fail("no run aborted")


SMALL_RUN = (
    "data.source=synthetic",
    "data.features=6",
    "data.classes=3",
    "data.clients=12",
    "privacy.noise_multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.4",
)


def test_a_plan_says_who_sees_what_and_what_encoding_costs():
    options = [*SMALL_RUN, *EVERYBODY, *MASKS, "secure.bits=10"]
    args = ["check", *(item for key in options for item in ("--set", key))]
    output = " ".join(CliRunner().invoke(main, args, env={"COLUMNS": "200"}).output.split())
    assert "masks: the server sees exact sums, never a row; the server is trusted to add" in output
    assert "at least 6 of 12 clients have to survive (complete graph)" in output
    codec = r"modulus 2\^10, step 0\.\d+, for sums of up to 12 clients; rounding may increase norms"
    assert re.search(codec, output)
    printed = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert printed["forecast"]["encoded"] > 1.02
    assert math.isclose(printed["sensitivity"], 0.4 * printed["forecast"]["encoded"])


def test_fixed_size_cohorts_of_one_would_show_a_row_and_are_refused():
    with pytest.raises(Refused, match="would abort in 100%"):
        plan(small(*MASKS, "cohort.sampler=fixed_size", "cohort.size=1", "privacy.accountant=rdp"))
    assert FixedSize(size=1).capacity() == 1


# --- what two reviews found ---

MANY = (*MASKS, "data.clients=200", "cohort.size=110", "cohort.dropout=0.02")


def test_plan_run_ledger_and_audit_charge_the_same_slack(tmp_path):
    outcome = trained(tmp_path, *MANY, "run.rounds=3", "secure.simulate=arithmetic")
    slack = outcome.plan.event.slack
    assert slack == outcome.plan.cost.aborts > 1e-12
    ledger = Ledger.load(tmp_path / "ledger.jsonl")
    assert {charge.event for charge in ledger.charges} == {outcome.plan.event}
    bare = Counter({replace(outcome.plan.event, slack=0.0): 3})
    assert audit(tmp_path).guarantee.epsilon > epsilon(bare, 1e-3, "pld")


def test_several_exchanges_may_each_abort():
    planned = plan(small(*MANY))
    two = plan(small(*MANY, "client.objective=mime", "data.setting=cross_silo"))
    assert two.cost.aborts == pytest.approx(2 * planned.cost.aborts)


@pytest.mark.slow
def test_calibration_pays_for_aborts():
    lossy = (*MANY, "cohort.dropout=0.2", "run.rounds=40", "privacy.epsilon=2.0")
    with_, without = (plan(small(*lossy, *more)) for more in ((), ("cohort.dropout=0.0",)))
    assert with_.noise_multiplier > without.noise_multiplier
    assert with_.guarantee.epsilon == pytest.approx(2.0, abs=1e-3)


def test_a_budget_that_is_never_spent_is_no_reason_to_refuse():
    """The cost of aborts is taken at what is spent, not at what might be."""
    rdp = "privacy.accountant=rdp"
    assert plan(small(*MANY, rdp, "privacy.epsilon=inf")).guarantee.epsilon == math.inf
    assert plan(small(*MANY, rdp, "privacy.epsilon=40")).guarantee.epsilon <= 40


def test_more_rounds_that_leave_nothing_of_delta_are_refused(tmp_path):
    lossy = (*MANY, "cohort.dropout=0.2", "privacy.noise_multiplier=1.0")
    few = plan(small(*lossy, "run.rounds=3"))
    assert few.guarantee.epsilon < math.inf
    with pytest.raises(Refused, match=r"or the inexact sampling of noise, use it up"):
        plan(small(*lossy, "run.rounds=4000"))


def test_the_abort_bound_takes_the_best_of_all_stretches_that_fit():
    """A few neighbours fit small cohorts, and again larger ones."""
    summation = MaskedSums(neighbours=40).over(Limits(500, size=50))
    assert probability(summation, Poisson(size=50), 500, 1, 0.0) < 1e-2


def test_dropping_out_of_one_exchange_says_nothing_of_the_next():
    ids = np.arange(3000)
    first, second = (
        leaving(0.4, Streams(1).at(f"dropout/{number}", 4, ids), 3000) > 0 for number in (0, 1)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_rows_of_those_who_dropped_out_do_not_reach_a_row_rule(tmp_path):
    rounds = Rounds(
        tmp_path,
        (3, 9, 4, 1, 6, 12, 5, 2),
        mechanism=NoPrivacy(),
        sampler=Full().of(8),
        rule=Median(),
        dropout=0.5,
    )
    world = rounds.world
    leaves = leaving(0.5, world.streams.at("dropout/0", 1, np.arange(8)), 8)
    here = np.flatnonzero((leaves == 0) | (leaves == 3))
    keys = world.streams.at("shuffle", 1, here)
    rows, _ = rounds.local.train(here, {"params": rounds.state.params}, None, keys)
    np.testing.assert_allclose(rounds.released()[0], np.median(rows, axis=0), rtol=1e-5, atol=1e-6)


def test_larger_cohorts_than_the_capacity_abort():
    with pytest.raises(Aborted, match=r"secure\.capacity"):
        sums(capacity=5, arithmetic=True).open(
            Session(1, 0, b"", np.arange(6)), 2, Encoding(1.0, 2.0**20)
        )


def test_too_coarse_steps_without_a_norm_are_refused():
    with pytest.raises(Refused, match="too coarse for updates"):
        sums(bits=10, capacity=100).codec(Encoding(), 5)
    assert sums(bits=32, capacity=500).codec(Encoding(), 5).step < 1e-3


def test_noise_of_the_clients_own_has_to_fit_the_range():
    local = ("privacy.mechanism=local_gaussian", *EVERYBODY, *MASKS)
    with pytest.raises(Refused, match=r"secure\.range is 1000"):
        plan(small(*local, "privacy.clip=100"))
    assert plan(small(*local)).event.relation == "replace-one"


def test_a_secret_run_that_aborted_goes_on_after_it(tmp_path):
    """Aborts are consumed: what was charged is neither repeated nor forgotten."""
    first = trained(tmp_path, *LOSSY, ARITHMETIC, "run.rounds=9")
    after = resume(tmp_path, lambda stored: stored.with_run(rounds=16))
    assert set(first.aborts) <= set(after.aborts)
    assert after.charges == 16
    assert after.updates == 16 - len(after.aborts)
    assert [charge.round for charge in Ledger.load(tmp_path / "ledger.jsonl").charges] == [
        *range(1, 17)
    ]


def test_what_clients_remembered_in_an_aborted_round_is_deleted(tmp_path):
    keys = ("client.objective=scaffold", "data.setting=cross_silo", *EVERYBODY, SEEDED)
    minimum = ("secure.protocol=masks", "secure.threshold=0.65")
    outcome = trained(tmp_path / "whole", *keys, *minimum)
    assert outcome.updates == 7
    assert not list((tmp_path / "whole" / "private").glob(".*tmp"))

    class Aborting:
        def open(self, *_):
            raise Aborted("for a test")

        def __getattr__(self, name):
            return getattr(PlainSum(), name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedSums, "over", lambda self, limits: Aborting())
        outcome = trained(tmp_path / "aborted", *keys, *minimum)
    assert outcome.updates == 0
    assert len(outcome.aborts) == 7
    assert not list((tmp_path / "aborted" / "private").glob(".*tmp"))


def test_a_torn_record_of_an_abort_does_not_swallow_the_next(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.aborts.note(3, "too few")
    with (tmp_path / "aborts.jsonl").open("a") as file:
        file.write('{"round": 4, "rea')
    directory.aborts.mend()
    directory.aborts.note(5, "too few")
    assert directory.aborts.reasons() == {3: "too few", 5: "too few"}


def test_an_independent_accountant_pays_for_aborts_too(tmp_path):
    pytest.importorskip("opacus")
    event = replace(plan(small(*MANY)).event, slack=1e-6)
    bare = replace(event, slack=0.0)
    epsilons = [opacus_epsilon({one: 20}, 1e-3, "opacus_rdp") for one in (event, bare)]
    assert epsilons[0] > epsilons[1]


DEFAULT = ("secure.protocol=masks", "run.rounds=40")


def test_sums_begin_with_cohorts_for_which_aborts_cost_next_to_nothing():
    """Of the default run under masks the budget is spent on noise, not on rare small cohorts."""
    planned = plan(load(None, DEFAULT))
    bare = plan(load(None, DEFAULT[1:]))
    assert planned.noise_multiplier == pytest.approx(bare.noise_multiplier, rel=1e-3)
    assert unspent_budget(planned) is None
    policy = planned.config.protocol.within(planned.cost.limits)
    assert 60 < policy.smallest < 90, "below the threshold of the expected cohort"
    for clients in range(policy.smallest, 201):
        graph, corrupt = policy.graph(clients), policy.corrupt(clients)
        assert graph.threshold > corrupt
        assert 2 * graph.threshold > clients + corrupt, "as it held before"
    with pytest.raises(Aborted):
        policy.graph(policy.smallest - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys, advice",
    [
        (("secure.admitted=90",), "lower secure.admitted"),
        (("cohort.dropout=0.2",), "cohort.dropout"),
    ],
)
def test_a_budget_that_aborts_leave_unspent_is_warned_about(keys, advice):
    planned = plan(load(None, [*DEFAULT, *keys]))
    left = unspent_budget(planned)
    assert left.epsilon == pytest.approx(4.0 - planned.guarantee.epsilon)
    assert left.epsilon > 0.2
    assert "aborts" in str(left)
    assert advice in str(left)


@pytest.mark.slow
def test_what_is_configured_stays_though_aborts_cost():
    planned = plan(load(None, [*DEFAULT, "secure.admitted=90"]))
    assert planned.config.protocol.within(planned.cost.limits).smallest == 90
    assert planned.guarantee.epsilon == pytest.approx(1.107, abs=1e-3)
    with pytest.raises(Refused, match=r"secure\.admitted is 16; expected from 17"):
        plan(load(None, [*DEFAULT, "secure.admitted=16"]))
    free = plan(load(None, [*DEFAULT, "cohort.sampler=full", "cohort.size=0"]))
    assert free.cost.limits.admitted == 0, "nothing is solved for where aborts are free"


def test_a_resume_with_more_budget_says_how_many_rounds_would_use_it(tmp_path):
    config = small("privacy.epsilon=3.0", "run.rounds=7", "privacy.accountant=rdp")
    more = replace(plan(config).config, privacy=raised(config, 6.0))
    left = unspent_budget(plan(more))
    assert left.epsilon == pytest.approx(3.0, abs=1e-2)
    rounds = int(re.search(r"from 7 to up to (\d+)", str(left))[1])
    assert unspent_budget(plan(more.with_run(rounds=rounds))) is None
    assert plan(more.with_run(rounds=rounds + 1)).guarantee.epsilon > 6.0


def raised(config, epsilon):
    return config.privacy.model_copy(update={"epsilon": epsilon, "noise_multiplier": None})


def test_a_resume_keeps_the_cohorts_that_sums_begin_with(tmp_path):
    """Or its later rounds would be other events than those that its ledger states."""
    keys = ("data.clients=200", "cohort.size=100", "secure.protocol=masks", "run.rounds=2")
    layers = ("privacy.mechanism=skellam", "privacy.sizing=layers", "privacy.against=readers")
    begun = small(*keys, *layers, "privacy.epsilon=4.0", "secure.simulate=arithmetic")
    first = train(begun, tmp_path)
    assert first.plan.cost.limits.admitted > 0
    more = ["run.rounds=4", "privacy.epsilon=30.0"]
    later = resume(tmp_path, lambda stored: overridden(stored, more))
    assert later.plan.cost.limits == first.plan.cost.limits
    assert (later.plan.event, later.plan.other) == (first.plan.event, first.plan.other)
    audited = audit(tmp_path)
    assert audited.problems == ()
    other = guarantee({first.plan.other: 4}, 1e-3).epsilon
    assert audited.other.epsilon == other == later.plan.other_party(4).epsilon


def test_a_lower_budget_stops_a_run_whose_sums_may_abort(tmp_path):
    """It is no reason to refuse: what all rounds would spend is not what it will."""
    keys = ("secure.protocol=masks", "secure.simulate=arithmetic", "data.clients=200")
    keys += ("cohort.size=100", "cohort.dropout=0.05", "run.rounds=6", "privacy.accountant=rdp")
    first = train(small(*keys, "privacy.epsilon=12.0"), tmp_path)
    spent = first.guarantee.epsilon
    lower = [f"privacy.epsilon={spent + 0.5}", "run.rounds=40"]
    stopped = resume(tmp_path, lambda stored: overridden(stored, lower))
    assert stopped.stopped_at_budget
    assert spent <= stopped.guarantee.epsilon <= spent + 0.5


def test_aborts_are_weighed_at_what_fixed_noise_spends():
    """Quiet noise spends much epsilon, at which aborts cost much: sums then begin with fewer."""
    loud, quiet = (
        plan(load(None, [*DEFAULT, f"privacy.noise_multiplier={z}"])) for z in (4.0, 1.0)
    )
    assert quiet.cost.limits.admitted < loud.cost.limits.admitted
    free = guarantee({replace(quiet.event, slack=0.0): 40}, 1e-4).epsilon
    assert quiet.guarantee.epsilon == pytest.approx(free, rel=1e-3)


@pytest.mark.parametrize(
    "keys",
    [
        ("secure.protocol=masks",),
        ("secure.protocol=masks", *EVERYBODY, "cohort.dropout=0.1"),
        pytest.param(
            ("secure.protocol=masks", "privacy.mechanism=skellam", "secure.bits=20"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_noise_that_was_kept_is_not_blamed_on_aborts(keys):
    config = load(None, ["run.rounds=40", "privacy.accountant=rdp", *keys])
    planned = plan(config, length=50)
    more = replace(planned.config, privacy=raised(config, 8.0))
    left = unspent_budget(plan(more, length=50))
    assert "raise run.rounds from 40" in str(left)
    assert "aborts" not in str(left)
