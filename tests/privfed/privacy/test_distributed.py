"""Distributed noise: its distribution, what it is charged, and the faults that must be caught."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small import SMALL, model, same_run, small, trained

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, ZERO_OUT, Event
from accounting.guarantee import guarantee, stated
from accounting.ledger import Ledger
from accounting.releases import DiscreteGaussians, PoissonSampled, Separated, Skellam
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.errors import Refused
from privfed.local.objectives.sgd import Sgd
from privfed.plan.plan import plan
from privfed.plan.prior_spending import Prior, Priors, other_guarantee
from privfed.plan.rule import message_length
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding, Setting
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.shares import DiscreteGaussianShare, Layers, SkellamShare
from privfed.privacy.noise.table_sampler import Table, discrete_gaussian_table, skellam_table
from privfed.privacy.rotation import hadamard, padded, rotate, signs, unrotate
from privfed.privacy.shared_noise import OTHER
from privfed.report.tables import two_sided
from privfed.run.prepare import planned, prepare
from privfed.run.resume import resume
from privfed.sampling.samplers import CappedPoisson, Cyclic, FixedSize, Full, Poisson
from privfed.secure.dropout import Leaves
from privfed.secure.homomorphic.protocol import Bfv
from privfed.secure.limits import Limits
from privfed.secure.masked import messages as wire
from privfed.secure.masked.protocol import MaskedChannel, MaskedSums, Wire, identity
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Aborted, Session
from privfed.streams import Keys, Streams
from privfed.words import ceiling

STREAMS = Streams(5, simulated=True)
SETTING = Setting(size=20, capacity=24, minimum=16, honest=0.75, bits=20, length=10)
SEEDED = "run.randomness=seeded"
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
DISTRIBUTED = ("privacy.mechanism=skellam", "secure.protocol=masks", *EVERYBODY)


def fits(sample, cdf, low, high):
    """P-value of chi-square of whole numbers against `cdf`, over 20 bins."""
    edges = np.unique(np.linspace(low, high, 20).round().astype(int))
    inside = np.array([cdf(edge) for edge in edges])
    expected = np.diff(np.concatenate([[0.0], inside, [1.0]]))
    counts = np.histogram(sample, np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))[0]
    keep = expected * len(sample) > 5
    counts = np.append(counts[keep], counts[~keep].sum())
    expected = np.append(expected[keep], expected[~keep].sum())
    used = expected > 0
    return stats.chisquare(counts[used], expected[used] * len(sample)).pvalue


def skellam_cdf(variance):
    return lambda k: float(stats.skellam.cdf(k, variance / 2, variance / 2))


def gaussian_cdf(deviation):
    k = np.arange(-40 * math.ceil(deviation), 40 * math.ceil(deviation) + 1)
    weights = np.exp(-(k**2) / (2 * deviation**2))
    below = np.cumsum(weights) / weights.sum()
    return lambda at: float(below[at - k[0]])


# --- samplers of noise ---


@pytest.mark.parametrize("variance", [0.3, 4.0, 1500.0])
def test_skellam_has_its_distribution_and_a_wrong_scale_is_rejected(variance):
    sample, spread = SkellamShare(variance).draw(Keys(None), 200_000), 3 * math.sqrt(variance) + 2
    assert fits(sample, skellam_cdf(variance), -spread, spread) > 1e-6
    assert fits(sample, skellam_cdf(variance * 1.05), -spread, spread) < 1e-6


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("deviation", [2.0, 7.0, 60.0])
def test_discrete_gaussians_have_their_distribution_and_a_wrong_scale_is_rejected(deviation, exact):
    sample = DiscreteGaussianShare(deviation, exact).draw(Keys(None), 150_000)
    assert fits(sample, gaussian_cdf(deviation), -3 * deviation, 3 * deviation) > 1e-6
    assert fits(sample, gaussian_cdf(deviation * 1.03), -3 * deviation, 3 * deviation) < 1e-6


def test_a_table_is_the_distribution_to_192_bits():
    import mpmath

    table = discrete_gaussian_table(3.5)
    with mpmath.workdps(80):
        weights = [
            mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(3.5) ** 2)) for k in range(900)
        ]
        total = weights[0] + 2 * sum(weights[1:])
        for k in (-9, -1, 0, 4):
            below = sum(weights[abs(j)] for j in range(-899, k + 1)) / total
            assert (
                abs(mpmath.mpf(table.exact[k - table.first]) / 2**192 - below)
                < mpmath.mpf(2) ** -150
            )
        bessel = [mpmath.besseli(k, 7) * mpmath.exp(-7) for k in range(200)]
        found = skellam_table(7.0)
        for k in (-5, 0, 3):
            below = sum(bessel[abs(j)] for j in range(-199, k + 1))
            assert (
                abs(mpmath.mpf(found.exact[k - found.first]) / 2**192 - below)
                < mpmath.mpf(2) ** -100
            )
    assert table.total_variation < 1e-45
    assert found.total_variation < 1e-40


def test_further_bits_decide_where_64_tie():
    """An entry that ends in the middle of a 64-bit word takes its half of the tied draws."""
    word = 3 << 62
    exact = [(word << 128) + (1 << 127), 1 << 192]
    words = np.array([word, 2**64 - 1], dtype=np.uint64)
    table = Table(0, words, exact, 0.0)

    class Tied(Keys):
        def bits(self, count):
            if count == 2:  # the further ones
                return super().bits(count)
            return np.full(count, word, dtype=np.uint64)

        def derived(self, what):
            return Keys(None)

    drawn = table.draw(Tied(None), 4000)
    assert stats.binomtest(int((drawn == 0).sum()), 4000).pvalue > 1e-6
    below = Table(0, words, exact, 0.0).draw(Keys(None), 40_000)
    assert stats.binomtest(int((below == 0).sum()), 40_000, 0.75).pvalue > 1e-6


def test_exact_draws_refuse_what_they_have_no_proof_for():
    for variance in (0, 2.5, 400**2 + 1):
        with pytest.raises(ValueError, match="whole number"):
            discrete_gaussian(Keys(None), variance, 3)
    with pytest.raises(ValueError, match="coarser grid"):
        skellam_table(5001.0**2)


# --- rotation and encoding ---


@given(st.integers(1, 70), st.integers(0, 10**6), st.sampled_from(["any", "one", "aligned"]))
@settings(max_examples=80, deadline=None)
def test_no_rotated_and_encoded_row_is_longer_than_the_bound(length, seed, shape):
    rng = np.random.default_rng(seed)
    flips = signs(Keys(seed.to_bytes(16, "little")), length)
    row = torch.from_numpy(rng.normal(size=(1, length)))
    if shape == "one":
        row = torch.zeros(1, length, dtype=torch.float64)
        row[0, seed % length] = 1.0
    elif shape == "aligned":  # the rotation gathers all of it in one coordinate
        row = (hadamard(torch.eye(padded(length), dtype=torch.float64)[:1]) * flips)[:, :length]
    row = row / row.norm()
    turned = rotate(BoundedRows(row, 1.0), flips)
    assert turned.rows.norm() <= 1.0
    for step in (0.01, 0.3):
        codec = Codec(1.0, step, padded(length), 32)
        whole = codec.encode(turned.rows[0].numpy(), Keys(None))
        assert np.linalg.norm(whole.astype(float)) <= codec.bound
    assert torch.allclose(unrotate(turned.rows[0], flips, length), row[0], atol=1e-9)


def test_the_rotation_is_walsh_and_hadamards():
    from scipy.linalg import hadamard as matrix

    for size in (1, 2, 16, 64, 512):
        rows = torch.randn(3, size, dtype=torch.float64)
        expected = rows.numpy() @ matrix(size) / math.sqrt(size)
        np.testing.assert_allclose(hadamard(rows).numpy(), expected, atol=1e-10)


def test_signs_are_public_and_fresh_after_every_release():
    mechanism = SkellamNoise(noise_multiplier=1.0).resolved(SETTING)
    rows, layout = torch.randn(2, 10), Sgd().layout(10)
    first, second = mechanism.init(), {"rotation": torch.tensor(1)}
    one, again = (mechanism.bound(rows, layout, Keys(None), first).rows for _ in range(2))
    other = mechanism.bound(rows, layout, Keys(None), second).rows
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    total = BoundedSum(one.sum(0), 1.0, 2)
    _, after = mechanism.release(total, 1.0, Keys(None), first)
    assert int(after["rotation"]) == 1


# --- the distribution of the sum ---


def summed(mechanism, leaves, rounds, *, protocol=None, arithmetic=False, tolerance=1.0, minimum=0):
    """`[rounds, d]` whole numbers of the sum of zero rows: noise alone."""
    clients, width = len(leaves), 16
    limits = Limits(clients, minimum, arithmetic, tolerance)
    summation = (protocol or MaskedSums(threshold=0.3, bits=20)).over(limits)
    encoding = mechanism.encoding(mechanism.init())
    found = []
    for round in range(rounds):
        session = Session(round, 0, b"h" * 32, np.arange(clients), np.array(leaves), STREAMS)
        accumulator = summation.open(session, width, encoding)
        for client in np.flatnonzero(np.isin(leaves, (Leaves.NEVER, Leaves.BEFORE_UNMASKING))):
            accumulator.add(np.array([client]), BoundedRows(torch.zeros(1, width), mechanism.clip))
        found.append((accumulator.close().total / encoding.step).numpy())
    return np.concatenate(found)


GONE = [Leaves.BEFORE_MASKING, Leaves.BEFORE_SHARING, Leaves.BEFORE_UNMASKING]


@pytest.mark.parametrize("arithmetic", [False, True])
@pytest.mark.parametrize("gone", [0, 2])
def test_with_layers_the_total_is_the_same_whoever_dropped(gone, arithmetic):
    setting = replace(SETTING, size=8, capacity=8, minimum=1, honest=1.0)
    mechanism = SkellamNoise(noise_multiplier=2.0, sizing="layers", tolerance=0.3).resolved(setting)
    leaves = [*GONE[:gone], *[Leaves.NEVER] * (8 - gone)]
    sample = summed(mechanism, leaves, 200, arithmetic=arithmetic, tolerance=0.3)
    variance = (2.0 * mechanism.clip / mechanism.grid().step) ** 2
    spread = 3 * math.sqrt(variance)
    assert mechanism._release(1.0, 1).variance == pytest.approx(variance)
    assert fits(sample, skellam_cdf(variance), -spread, spread) > 1e-6
    missing = skellam_cdf(variance * 7 / 8)
    assert fits(sample, missing, -spread, spread) < 1e-3


@pytest.mark.parametrize("kind", [SkellamNoise, DiscreteGaussianNoise])
def test_sized_by_a_minimum_survivors_make_up_what_is_charged_or_more(kind):
    setting = replace(SETTING, size=8, capacity=8, minimum=6, honest=1.0)
    mechanism = kind(noise_multiplier=2.0).resolved(setting)
    for gone in (0, 2):
        leaves = [*[Leaves.BEFORE_MASKING] * gone, *[Leaves.NEVER] * (8 - gone)]
        sample = summed(mechanism, leaves, 120, minimum=6)
        share = mechanism.grid().share
        spread = math.sqrt(8 - gone) * share
        statistic = (sample.astype(float) ** 2).sum() / spread**2
        tail = min(stats.chi2.cdf(statistic, len(sample)), stats.chi2.sf(statistic, len(sample)))
        assert tail > 1e-6
        charged = mechanism._release(1.0, 1).noise_multiplier * mechanism.grid().l2
        assert spread >= charged * (1 - 1e-9)
        if gone == 2:
            assert spread == pytest.approx(charged)
    with pytest.raises(Aborted):
        summed(mechanism, [*[Leaves.BEFORE_MASKING] * 3, *[Leaves.NEVER] * 5], 1, minimum=6)


def test_too_many_missing_for_the_layers_abort():
    setting = replace(SETTING, size=8, capacity=8, minimum=1)
    mechanism = SkellamNoise(noise_multiplier=1.0, sizing="layers", tolerance=0.3).resolved(setting)
    leaves = [*[Leaves.BEFORE_MASKING] * 3, *[Leaves.NEVER] * 5]
    with pytest.raises(Aborted, match="too few clients sent"):
        summed(mechanism, leaves, 1, tolerance=0.3)


def test_a_client_unmasks_no_sum_of_fewer_survivors_than_its_noise_needs():
    """Whatever the server says: it knows how many there were, and what was promised."""
    codec = Codec.finest(1.0, 1.0, 4, 32, 9, 2.0**20)

    class Forging(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Survivors):
                return wire.encode(replace(message, clients=message.clients[:6]))
            return data

    session = Session(1, 0, b"h" * 32, np.arange(9), streams=STREAMS)
    channel = MaskedChannel(
        session, codec, MaskedSums(threshold=0.4).policy(0), Limits(9, 8), wire=Forging()
    )
    for client in range(9):
        channel.send(client, np.ones(4, dtype=np.int64))
    with pytest.raises(Aborted):
        channel.total()
    assert any("fewer survivors than the noise" in fault for fault in channel.faults)


def test_arithmetic_draws_no_noise_for_a_sum_that_is_lost():
    """Of so few that a share of theirs could not be drawn: it aborts, as real ones do."""
    setting = replace(SETTING, size=20, capacity=200, minimum=1, fewest=10, bits=32)
    mechanism = SkellamNoise(noise_multiplier=2.0, sizing="layers", tolerance=0.5).resolved(setting)
    limits = Limits(200, 0, True, 0.5, 20)
    for protocol in (MaskedSums(threshold=0.5), MaskedSums(threshold=0.9)):
        summation = protocol.over(limits)
        session = Session(1, 0, b"h" * 32, np.arange(3), streams=STREAMS)
        with pytest.raises(Aborted, match="cohort that was expected"):
            summation.open(session, 16, mechanism.encoding(mechanism.init()))


def test_a_wrong_layer_aborts_and_never_makes_a_wrong_sum():
    class Lying(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if client == 2 and isinstance(message, wire.Unmask):
                layers = tuple((who, value ^ 1) for who, value in message.layers)
                changed = replace(message, layers=layers)
                own = identity(2).sign(changed.text)
                return wire.encode(replace(changed, signature=own))
            return data

    codec = Codec.finest(1.0, 1.0, 4, 32, 8, 2.0**20)
    session = Session(1, 0, b"h" * 32, np.arange(8), streams=STREAMS)
    policy, limits = MaskedSums(threshold=0.6).policy(0), Limits(8, tolerance=0.3)
    channel = MaskedChannel(session, codec, policy, limits, Layers(50.0, 0.3), wire=Lying())
    for client in range(8):
        channel.send(client, np.ones(4, dtype=np.int64))
    with pytest.raises(Aborted, match=r"wrong layer|put together"):
        channel.total()


def test_layers_add_up_to_the_same_whatever_is_kept():
    layers = Layers(100.0, 0.4)
    for clients in (2, 7, 50):
        for gone in range(layers.count(clients) + 1):
            each = layers.base(clients).variance
            each += sum(layers.layer(clients, k).variance for k in range(1, gone + 1))
            assert (clients - gone) * each == pytest.approx(100.0)
            assert layers.kept(clients, gone).variance == pytest.approx(each)


# --- whole runs ---


def test_masks_ciphertexts_and_arithmetic_release_the_same(tmp_path):
    for name, keys in {
        "masks": (),
        "bfv": ("secure.protocol=bfv",),
        "arithmetic": ("secure.simulate=arithmetic",),
    }.items():
        trained(tmp_path / name, SEEDED, *DISTRIBUTED, *keys)
    models = [model(tmp_path / name) for name in ("masks", "bfv", "arithmetic")]
    for name in models[0]:
        if name.startswith("model"):
            assert torch.equal(models[0][name], models[2][name])
            torch.testing.assert_close(models[0][name], models[1][name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("noise", ["skellam", "discrete_gaussian"])
def test_without_noise_a_run_is_the_plain_one_up_to_rounding(tmp_path, noise):
    """decode(encode) is right on average, and its error small on a fine grid."""
    keys = (SEEDED, *EVERYBODY, "privacy.noise_multiplier=0.0")
    trained(tmp_path / "plain", *keys)
    trained(tmp_path / "sum", *keys, "secure.protocol=masks", f"privacy.mechanism={noise}")
    plain, found = model(tmp_path / "plain"), model(tmp_path / "sum")
    for name in plain:
        if name.startswith("model"):
            torch.testing.assert_close(plain[name], found[name], rtol=0, atol=1e-4)


def test_encoding_is_right_on_average_on_a_coarse_grid():
    setting = replace(SETTING, bits=9, size=10, capacity=10, minimum=8)
    mechanism = SkellamNoise(noise_multiplier=0.5).resolved(setting)
    summation = MaskedSums(bits=9, threshold=0.3).over(Limits(10, 0, True))
    rows = torch.nn.functional.normalize(torch.randn(10, 10), dim=1) * 0.3
    encoding, state, found = mechanism.encoding(mechanism.init()), mechanism.init(), []
    for round in range(300):
        streams = Streams(round, simulated=True)
        session = Session(round, 0, b"", np.arange(10), streams=streams)
        accumulator = summation.open(session, 16, encoding)
        accumulator.add(np.arange(10), mechanism.bound(rows, None, Keys(None), state))
        released, state = mechanism.release(accumulator.close(), 1.0, Keys(None), state)
        found.append(released.numpy())
    found = np.array(found)
    error = found.mean(0) - rows.sum(0).numpy()
    deviation = found.std(0) / math.sqrt(len(found))
    assert np.abs(error / deviation).max() < 5


def test_a_plan_says_what_each_client_adds_and_what_that_assumes():
    options = [*SMALL, *DISTRIBUTED, "secure.bits=16", "aggregation.byzantine=3"]
    args = ["check", *(item for key in options for item in ("--set", key))]
    said = " ".join(CliRunner().invoke(main, args, env={"COLUMNS": "250"}).output.split())
    assert "10 clients make it up, and fewer abort; while 53% of that is honest clients" in said
    assert "hostile taken to be 3 of a cohort at most; they add no noise, and are told who" in said
    assert "with its noise, and nobody sees a row" in said
    assert "wraps a number of the sum with a probability of" in said
    assert "the server, by the noise of honest survivors alone; it knows the cohort" in said


def test_both_guarantees_are_planned_charged_and_audited(tmp_path):
    outcome = trained(tmp_path, *DISTRIBUTED, "privacy.sizing=layers", "secure.minimum=0")
    plan_ = outcome.plan
    assert plan_.event.relation == ZERO_OUT
    assert isinstance(plan_.event.release, Skellam)
    honest = plan_.cost.summation.protocol.honest(plan_.cost.summation.limits)
    assert plan_.event.release.variance == pytest.approx(
        honest * plan_.other.release.variance, rel=1e-9
    )
    found = audit(tmp_path)
    assert found.guarantee.against == "server"
    assert found.other.against == "readers"
    assert found.guarantee.epsilon > found.other.epsilon
    assert found.guarantee.epsilon == epsilon({plan_.event: 7}, 1e-3, "rdp")
    said = CliRunner().invoke(main, ["audit", str(tmp_path)], env={"COLUMNS": "250"}).output
    assert "the server, by the noise of honest survivors alone" in said
    assert "who reads the released aggregates" in said
    stated = json.loads(CliRunner().invoke(main, ["audit", str(tmp_path), "--json"]).stdout)
    assert [one["against"] for one in stated["guarantees"]] == ["server", "readers"]


PEOPLE = (SEEDED, *EVERYBODY, "data.population=people", "run.rounds=3")
ARITHMETIC = (*PEOPLE, "secure.protocol=masks", "secure.simulate=arithmetic")
SKELLAM = (*ARITHMETIC, "privacy.mechanism=skellam", "aggregation.byzantine=2")
READERS = (*SKELLAM, "privacy.against=readers", "privacy.noise_multiplier=2.5")


def events_of(path):
    """By party: the event of each round, as the ledger states it."""
    found = Ledger.load(path / "ledger.jsonl")
    other = found.terms["other"]
    (event,) = found.own
    return {found.terms["against"]: event, other["against"]: Event.from_json(other["event"])}


def shown(*words):
    found = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "250"})
    assert found.exit_code == 0, found.output
    return found.stdout


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
    besides = OTHER[outcome.guarantee.against]
    for said in (
        shown("check", *options),
        shown("train", *options, "--out", tmp_path / "third"),
        shown("audit", path),
        shown("audit", path, skellam),
    ):
        row = next(line for line in said.splitlines() if "besides" in line)
        assert ceiling(wanted[besides]) in row


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
    (known,) = Priors.stated({"against": "server", "prior": [older]}).runs
    assert known.spending == prior.spending
    assert known.toward("server") is known
    assert known.toward("readers") is None
    bound = other_guarantee({}, "readers", (known,), 1e-3)
    assert bound.epsilon == math.inf
    (said,) = stated(bound)
    assert said["against"] == "readers"
    assert "no ledger states what was charged against the readers by runs/a" in said["meaning"]
    assert "by runs/a" in two_sided("server", bound)["besides"]


def test_a_chain_that_an_older_version_wrote_is_completed_by_the_runs_themselves(
    skellam, tmp_path, monkeypatch
):
    known = ("run", "id", "head", "charges")
    whole = Prior.to_json
    with monkeypatch.context() as patch:
        patch.setattr(Prior, "to_json", lambda one: {key: whole(one)[key] for key in known})
        trained(tmp_path / "second", *SKELLAM, f'privacy.prior=["{skellam}"]')
    assert audit(tmp_path / "second").other.epsilon == math.inf
    row = next(line for line in shown("audit", tmp_path / "second").splitlines() if "besid" in line)
    assert "ε = ∞" in row
    names = [str(tmp_path / "second"), str(skellam)]
    for prior in (names, names[::-1]):
        found = priors(small(*SKELLAM, f"privacy.prior={json.dumps(prior)}"))
        assert sum(found.spending.values()) == 6
        assert all(run.other for run in found.runs)
        assert not found.uncovered


def test_epsilons_about_different_parties_are_never_summed(skellam, tmp_path):
    trained(tmp_path / "central", *ARITHMETIC)
    found = CliRunner().invoke(main, ["audit", str(tmp_path / "central"), str(skellam)])
    assert found.exit_code == 2
    assert "party that epsilon is about" in " ".join(found.output.split())
    with pytest.raises(Refused, match="no sum of the two"):
        trained(tmp_path / "more", *SKELLAM, f'privacy.prior=["{tmp_path / "central"}"]')


def test_a_run_in_layers_resumes_and_repeats_itself(tmp_path):
    keys = (SEEDED, *DISTRIBUTED, "privacy.sizing=layers", "cohort.dropout=0.1")
    trained(tmp_path / "whole", *keys, "run.rounds=8")
    trained(tmp_path / "parts", *keys, "run.rounds=4")
    resume(tmp_path / "parts", lambda stored: stored.with_run(rounds=8))
    same_run(tmp_path / "whole", tmp_path / "parts")


# --- what is charged, and planted faults ---


def events(mechanism, sampler, clients=240, exchanges=1):
    return mechanism.events(sampler.of(clients).witness(0, clients), exchanges)


def test_the_server_is_never_amplified_and_readers_only_where_the_total_is_fixed():
    z = 1.0
    layers = SkellamNoise(noise_multiplier=z, sizing="layers").resolved(SETTING)
    minimum = SkellamNoise(noise_multiplier=z).resolved(SETTING)
    discrete = DiscreteGaussianNoise(noise_multiplier=z).resolved(SETTING)
    for mechanism in (layers, minimum, discrete):
        for sampler in (Poisson(size=20), Full(), FixedSize(size=20)):
            server = events(mechanism, sampler)["server"]
            assert server.relation == ZERO_OUT
            assert isinstance(server.release, Skellam | DiscreteGaussians)
    assert isinstance(events(layers, Poisson(size=20))["readers"].release, PoissonSampled)
    assert events(layers, Poisson(size=20))["readers"].relation == ADD_REMOVE
    for mechanism in (minimum, discrete):
        readers = events(mechanism, Poisson(size=20))["readers"]
        assert isinstance(readers.release, Skellam | DiscreteGaussians)
        assert readers.relation == ZERO_OUT
    cyclic = events(minimum, Cyclic(separation=12))["server"]
    assert isinstance(cyclic.release, Separated)
    with pytest.raises(Refused, match="no proof with distributed"):
        events(minimum, CappedPoisson(size=20))


def guaranteed(mechanism):
    """The least variance, in steps, that survivors' shares add up to."""
    setting, share = mechanism._known(), mechanism.share()
    if isinstance(share, Layers):
        clients = range(setting.fewest, setting.capacity + 1)
        every = ((n, gone) for n in clients for gone in range(share.count(n) + 1))
        return min((n - gone) * share.kept(n, gone).variance for n, gone in every)
    one = share.variance if isinstance(share, SkellamShare) else share.deviation**2
    return setting.minimum * one


def honest_charge(mechanism):
    """The check that every charge has to pass: the noise that is really added, and unknown."""
    setting, grid = mechanism._known(), mechanism.grid()
    bound = Codec(mechanism.clip, grid.step, grid.length, setting.bits).bound
    found = events(mechanism, Full(), exchanges=3)
    for whom, part in (("server", setting.honest), ("readers", setting.added)):
        release = found[whom].release
        assert isinstance(release, Skellam | DiscreteGaussians), f"amplified against the {whom}"
        discrete = isinstance(release, DiscreteGaussians)
        charged = release.clients * release.deviation**2 if discrete else release.variance
        assert charged <= part * guaranteed(mechanism) * (1 + 1e-9), f"too much noise: {whom}"
        assert charged >= 0.9 * part * guaranteed(mechanism), "noise is given away"
        assert release.l2 >= bound, "the norm of real rows"
        assert release.l1 >= release.l2 * (1 - 1e-9)
        assert release.exchanges == 3, "passes over one cohort count once"


class AllSurvive:
    """Planted: the noise of more than the guaranteed survivors is counted."""

    def _release(self, counted, exchanges):
        found, more = super()._release(counted, exchanges), self._known().size / 16
        if isinstance(found, DiscreteGaussians):
            return replace(found, clients=math.ceil(found.clients * more))
        return replace(found, variance=found.variance * more)


class EverybodyIsHonest:
    """Planted: the noise of colluders and of hostile clients is counted."""

    def _release(self, counted, exchanges):
        return super()._release(1.0, exchanges)


class HostileAddNoise:
    """Planted: against readers, the noise of hostile clients is counted."""

    def events(self, witness, exchanges):
        found = super().events(witness, exchanges)
        whole = replace(found["readers"], release=self._release(1.0, exchanges))
        return {**found, "readers": whole}


class RealClip:
    """Planted: the sensitivity of real rows, not of encoded ones."""

    def _release(self, counted, exchanges):
        release = super()._release(counted, exchanges)
        return replace(release, l2=self.clip / self.grid().step)


class OnePass:
    """Planted: of a round's exchanges one is charged."""

    def _release(self, counted, exchanges):
        return super()._release(counted, 1)


class Amplified:
    """Planted: amplification is claimed against the server."""

    def events(self, witness, exchanges):
        found = super().events(witness, exchanges)
        sampled = PoissonSampled(witness.rate, found["server"].release)
        return {**found, "server": replace(found["server"], release=sampled, relation=ADD_REMOVE)}


KINDS = {
    "minimum": (SkellamNoise, {}),
    "layers": (SkellamNoise, {"sizing": "layers"}),
    "discrete": (DiscreteGaussianNoise, {}),
}


@pytest.mark.parametrize("kind, keys", KINDS.values(), ids=KINDS.keys())
def test_the_real_mechanism_passes_and_planted_faults_are_caught(kind, keys):
    setting = replace(SETTING, bits=12, honest=0.75, added=0.875, fewest=16)
    honest_charge(kind(noise_multiplier=1.5, **keys).resolved(setting))
    for fault, said in (
        (AllSurvive, "too much noise: server"),
        (EverybodyIsHonest, "too much noise: server"),
        (HostileAddNoise, "too much noise: readers"),
        (RealClip, "the norm of real rows"),
        (OnePass, "count once"),
        (Amplified, "amplified against the server"),
    ):
        broken = type(fault.__name__, (fault, kind), {})(noise_multiplier=1.5, **keys)
        with pytest.raises(AssertionError, match=said):
            honest_charge(broken.resolved(setting))


@pytest.mark.parametrize("kind, keys", KINDS.values(), ids=KINDS.keys())
def test_exchanges_over_one_cohort_cost_as_much_as_each_by_itself(kind, keys):
    mechanism = kind(noise_multiplier=2.0, **keys).resolved(SETTING)
    together = {events(mechanism, Full(), exchanges=3)["server"]: 1}
    apart = {events(mechanism, Full())["server"]: 3}
    assert epsilon(together, 1e-5, "rdp") == pytest.approx(epsilon(apart, 1e-5, "rdp"), rel=1e-9)
    readers = events(mechanism, Poisson(size=20), exchanges=3)["readers"].release
    sampled = readers.of if isinstance(readers, PoissonSampled) else readers
    assert sampled.exchanges == 3


def accepted(part, limits):
    """Of all sums that are not aborted: how many survive, and how many of these may collude."""
    if isinstance(part, Bfv):
        corrupt = max(1, math.floor(part.colluders * limits.size))
        return [(survivors, corrupt) for survivors in range(limits.minimum, limits.capacity + 1)]
    policy, found = part.policy(limits.size), []
    for clients in range(1, limits.capacity + 1):
        try:
            graph = policy.graph(clients)
        except Aborted:
            continue
        least = max(graph.survivors, limits.least(clients))
        corrupt = policy.corrupt(clients)
        found += [(survivors, corrupt) for survivors in range(least, clients + 1)]
    return found


@pytest.mark.parametrize("byzantine", [0, 4])
@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.9])
@pytest.mark.parametrize("tolerance", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("protocol", ["masks", "masks in layers", "bfv"])
def test_honest_noise_is_never_less_than_is_charged(threshold, tolerance, protocol, byzantine):
    """By all cohorts and survivors that a protocol accepts, with as many colluders as may be."""
    size, colluders, layered = 40, 0.08, protocol == "masks in layers"
    minimum = 0 if layered else math.ceil((1 - tolerance) * size)
    limits = Limits(
        80, minimum, tolerance=tolerance if layered else 1.0, size=size, hostile=byzantine
    )
    masks = MaskedSums(threshold=threshold, colluders=colluders)
    part = Bfv(colluders=colluders) if protocol == "bfv" else masks
    sums = accepted(part, limits)
    assert part.fewest(limits) == min(survivors for survivors, _ in sums)
    counted = [survivors if layered else minimum for survivors, _ in sums]
    pairs = list(zip(sums, counted, strict=True))
    honest = min(1.0, *((left - corrupt - byzantine) / of for (left, corrupt), of in pairs))
    added = min(1.0, *((left - byzantine) / of for (left, _), of in pairs))
    assert honest - 0.25 <= part.honest(limits) <= honest + 1e-9
    assert added - 0.25 <= part.added(limits) <= added + 1e-9
    assert part.honest(limits) < 1.0 - byzantine / 80
    assert (part.added(limits) == 1.0) == (byzantine == 0)


LAYERED = (
    *("data.clients=400", "cohort.size=160", "secure.protocol=masks", "secure.threshold=0.5"),
    *("privacy.mechanism=skellam", "privacy.sizing=layers", "secure.colluders=0.05"),
)


def test_hostile_clients_are_taken_off_the_fewest_survivors_of_layers():
    """Of 80 who share keys 64 stay: 16 hostile ones are a quarter of these, and 8 collude."""
    found = plan(small(*LAYERED, "aggregation.byzantine=16"), length=50)
    whole = plan(small(*LAYERED, "secure.colluders=0.0"), length=50)
    assert found.mechanism.honest == pytest.approx(1 - 16 / 64 - 8 / 64)
    full = whole.event.release.variance
    assert found.event.release.variance == pytest.approx(full * 0.625, rel=1e-9)


def test_readers_are_not_protected_by_noise_that_hostile_clients_leave_out():
    """Nor by a secret draw, of which those are told."""
    keys = (*DISTRIBUTED, "data.clients=40", "privacy.against=readers", "secure.colluders=0.1")
    whole, less = (
        plan(small(*keys, f"aggregation.byzantine={count}"), length=50).event.release.variance
        for count in (0, 8)
    )
    assert less == pytest.approx(whole * (1 - 8 / 32), rel=1e-9)
    readers = (*LAYERED, "privacy.against=readers")
    nobody, some = (
        plan(small(*readers, f"aggregation.byzantine={count}"), length=50).event for count in (0, 1)
    )
    assert isinstance(nobody.release, PoissonSampled)
    assert (nobody.relation, some.relation) == (ADD_REMOVE, ZERO_OUT)
    assert some.release.variance == pytest.approx(nobody.release.of.variance * 63 / 64, rel=1e-9)
    asked = (
        "--byzantine",
        "5",
        "--against",
        "readers",
        "--sizing",
        "layers",
        "--population",
        "200",
    )
    flags = ("--mechanism", "skellam", "--cohort", "20", "--rounds", "5", "--bits", "20")
    said = calibrated(*flags, *asked, "--dimension", "100", "--noise-multiplier", "2")
    assert json.loads(said.stdout)["relation"] == ZERO_OUT


def test_why_noise_that_tells_the_count_is_not_amplified():
    """Of one client more or less: as much noise on both sides is a post-processing, but if a part
    of it depends on the count, many coordinates tell that, whatever anybody contributes."""

    def order_two(variance, other, shift=0):
        """Renyi divergence, by brute force, of one coordinate."""
        at = np.arange(-120, 121)
        first, second = (
            stats.skellam.pmf(at - by, v / 2, v / 2) for v, by in ((variance, shift), (other, 0))
        )
        return math.log(float((first**2 / second).sum()))

    counted, more = 100 * (1 - 4 / 16), 100 * (1 - 4 / 20)
    assert order_two(more, more, shift=3) < order_two(counted, counted, shift=3)
    one_more = 100 * (1 - 4 / 21)
    assert 2**16 * order_two(one_more, more) > 10 * order_two(counted, counted, shift=3)


def test_a_key_holder_knows_its_own_share():
    keys = (*DISTRIBUTED, "secure.protocol=bfv", "secure.simulate=arithmetic", "data.clients=40")
    told = {
        share: plan(small(*keys, f"secure.colluders={share}"), length=50)
        for share in (0.0, 0.01, 0.2)
    }
    assert [round(32 * found.mechanism.honest) for found in told.values()] == [31, 31, 24]
    for share, found in told.items():
        lost = found.event.release.variance / found.other.release.variance
        assert lost == pytest.approx(1 - max(1, 40 * share // 1) / 32, rel=1e-9)
        assert found.guarantee.epsilon > found.besides(7).epsilon


def test_colluders_and_missing_clients_are_paid_for_in_noise():
    """The calibrated noise per client grows with either."""

    def share(**keys):
        found = planned(
            small(*DISTRIBUTED, "privacy.epsilon=2.0", *(f"{k}={v}" for k, v in keys.items()))
        )
        return found.mechanism.grid().share * found.mechanism.grid().step

    bare = share(**{"secure.colluders": 0.0, "privacy.tolerance": 0.0})
    missing = share(**{"secure.colluders": 0.0, "privacy.tolerance": 0.5})
    colluding = share(**{"secure.colluders": 0.3, "privacy.tolerance": 0.0})
    assert missing / bare == pytest.approx(math.sqrt(2), rel=1e-2)
    assert colluding / bare == pytest.approx(math.sqrt(2), rel=1e-2)


def test_the_budget_gates_whom_it_names():
    keys = ("data.clients=400", "cohort.size=160", "privacy.epsilon=2.0", "secure.threshold=0.5")
    layered = ("privacy.mechanism=skellam", "secure.protocol=masks", "privacy.sizing=layers")
    by = {
        whom: planned(small(*keys, *layered, f"privacy.against={whom}"))
        for whom in ("server", "readers")
    }
    for whom, found in by.items():
        assert found.guarantee.epsilon == pytest.approx(2.0, abs=0.01)
        assert found.guarantee.against == whom
    assert by["server"].noise_multiplier > 1.5 * by["readers"].noise_multiplier
    assert by["readers"].event.slack >= by["readers"].cost.aborts > 0
    other = by["server"].other
    assert isinstance(other.release, PoissonSampled)
    assert other.slack >= by["server"].cost.aborts > 0, (
        "what is not gated is charged for aborts, too"
    )


@pytest.mark.parametrize(
    "keys, said",
    [
        (("secure.protocol=none",), "makes up its noise in a secure sum"),
        (("secure.protocol=bfv", "privacy.sizing=layers"), "secrets that masked sums share"),
        (("secure.protocol=ckks",), "recovers the key"),
        (("cohort.sampler=truncated_poisson", "cohort.size=4"), "no proof with distributed"),
        (("secure.bits=8", "data.clients=5000", "secure.threshold=0.5"), "too few for the noise"),
        (("privacy.mechanism=gaussian", "privacy.against=readers"), "which has two guarantees"),
        (("aggregation.rule=median",), "median"),
        (("privacy.accountant=pld",), "pld"),
    ],
)
def test_what_has_no_proof_is_refused_with_what_would_work(tmp_path, keys, said):
    with pytest.raises(Refused, match=said):
        trained(tmp_path / "run", *DISTRIBUTED, *keys)
    assert not (tmp_path / "run").exists()


def test_the_samplers_total_variation_is_charged():
    mechanism = SkellamNoise(noise_multiplier=1.0).resolved(SETTING)
    slack = events(mechanism, Full())["server"].slack
    assert slack >= 16 * 24 * mechanism.share().total_variation > 0
    assert events(mechanism, Full(), exchanges=3)["server"].slack >= 3 * slack
    layers = SkellamNoise(noise_multiplier=1.0, sizing="layers").resolved(SETTING)
    each, most = layers.share().total_variation, 1 + layers.share().count(24)
    assert most == 5
    for event in events(layers, Full(), exchanges=3).values():
        assert event.slack >= 3 * 16 * 24 * most * each > 0, "a base, and as many layers"
    exact = DiscreteGaussianNoise(noise_multiplier=1.0, noise_sampler="exact").resolved(SETTING)
    assert events(exact, Full())["server"].slack == 0.0


def test_the_ledger_says_whose_guarantee_its_charges_are(tmp_path):
    trained(tmp_path, *DISTRIBUTED)
    terms = Ledger.load(tmp_path / "ledger.jsonl").terms
    assert terms["against"] == "server"
    assert terms["other"]["against"] == "readers"
    assert terms["trust"] == "sum"


def test_what_is_no_bounded_sum_is_never_released():
    mechanism = SkellamNoise(noise_multiplier=1.0).resolved(SETTING)
    for total in (torch.zeros(16), BoundedSum(torch.zeros(16), math.inf, 2)):
        with pytest.raises(TypeError, match="BoundedSum"):
            mechanism.release(total, 1.0, Keys(None), mechanism.init())
    encoding = mechanism.encoding(mechanism.init())
    with pytest.raises(TypeError, match="would add none"):
        PlainSum().open(Session(1, 0, b""), 16, encoding)
    with pytest.raises(ValueError, match="plan the run"):
        SkellamNoise(noise_multiplier=1.0).grid()
    assert Encoding().step is None


def calibrated(*flags):
    return CliRunner().invoke(main, ["calibrate", "--delta", "1e-5", *flags, "--json"])


FOR_SKELLAM = ("--mechanism", "skellam", "--sampler", "full", "--population", "100")


def test_calibrate_solves_for_noise_and_for_what_few_bits_leave():
    sized = (*FOR_SKELLAM, "--rounds", "20", "--dimension", "10000")
    found = {}
    for bits in ("14", "24"):
        result = calibrated(*sized, "--bits", bits, "--epsilon", "6")
        assert result.exit_code == 0, result.output
        found[bits] = json.loads(result.stdout)
        assert 5.9 < found[bits]["epsilon"] <= 6.0
        assert found[bits]["relation"] == ZERO_OUT
        assert found[bits]["bytes_per_client"] == 16384 * int(bits) / 8
    assert found["14"]["noise_multiplier"] > found["24"]["noise_multiplier"]
    assert found["14"]["encoded"] > found["24"]["encoded"] >= 1.0
    assert found["14"]["wraps"] < 1e-4
    noise = str(found["24"]["noise_multiplier"])
    left = calibrated(*sized, "--bits", "14", "--noise-multiplier", noise)
    assert json.loads(left.stdout)["epsilon"] > 6.0


def test_calibrate_says_what_distributed_noise_needs():
    cases = {
        "needs --bits and --dimension": (*FOR_SKELLAM, "--rounds", "9", "--epsilon", "6"),
        "raise secure.bits": (
            *(*FOR_SKELLAM, "--rounds", "100", "--epsilon", "1"),
            *("--bits", "10", "--dimension", "100000"),
        ),
        "for --mechanism skellam": (
            *("--sampling-rate", "0.1", "--rounds", "9"),
            *("--bits", "20", "--epsilon", "6"),
        ),
    }
    for said, flags in cases.items():
        result = calibrated(*flags)
        assert result.exit_code == 2
        assert said in result.output.replace("\n", " ")


def test_readers_of_layers_over_a_poisson_cohort_are_amplified_in_calibrate_too():
    flags = ("--mechanism", "skellam", "--population", "2000", "--cohort", "100", "--rounds", "50")
    flags = (*flags, "--bits", "20", "--dimension", "1000", "--sizing", "layers", "--epsilon", "2")
    server, readers = (
        json.loads(calibrated(*flags, "--against", whom).stdout) for whom in ("server", "readers")
    )
    assert readers["noise_multiplier"] < server["noise_multiplier"] / 3
    assert readers["relation"] == ADD_REMOVE


def test_layers_can_be_drawn_for_the_smallest_cohort_that_clients_accept():
    """Few survivors keep more each: a table for it has to exist before the round is charged."""
    keys = ("data.clients=200", "cohort.size=20", "secure.threshold=0.5", "privacy.epsilon=8.0")
    layered = ("privacy.mechanism=skellam", "secure.protocol=masks", "privacy.sizing=layers")
    found = planned(small(*keys, *layered, "privacy.tolerance=0.5"))
    layers = found.mechanism.share()
    for clients in range(10, 40):
        for gone in (0, layers.count(clients)):
            assert len(layers.kept(clients, gone).draw(Keys(None), 2)) == 2
            assert len(layers.base(clients).draw(Keys(None), 2)) == 2
        assert len(layers.layer(clients, max(layers.count(clients), 1)).draw(Keys(None), 2)) == 2


@pytest.mark.parametrize("bits", [14, 20, 32])
def test_ciphertexts_carry_sums_that_masks_would_wrap(tmp_path, bits):
    trained(tmp_path, SEEDED, *DISTRIBUTED, "secure.protocol=bfv", f"secure.bits={bits}")
    assert audit(tmp_path).guarantee.rounds == 7


class Quiet:
    """A share that parties cannot compare: no dataclass and no part."""

    layered = False
    total_variation = 0.0
    most = 0

    def draw(self, keys, count):
        return np.zeros(count, dtype=np.int64)


@dataclass(frozen=True)
class Comparable(Quiet):
    """The same with a form."""

    of: SkellamShare


class WithQuietShares(SkellamNoise):
    """A mechanism from outside."""

    def share(self):
        return Quiet()


class WithComparableShares(SkellamNoise):
    """Another one."""

    def share(self):
        return Comparable(super().share())


def test_shares_that_parties_cannot_compare_are_refused_before_anybody_trains():
    def checked(name):
        keys = (*SMALL, *DISTRIBUTED, f"privacy.mechanism={__name__}:{name}")
        return CliRunner().invoke(main, ["check", *(f"--set={key}" for key in keys)])

    refused = checked("WithQuietShares")
    assert refused.exit_code == 2
    expected = "the share of noise is a Quiet.*compare.* a frozen dataclass or a Part"
    assert re.search(expected, " ".join(refused.output.split()))
    assert checked("WithComparableShares").exit_code == 0


def test_sums_that_no_ciphertext_holds_are_refused_before_anybody_is_charged(tmp_path):
    with pytest.raises(Refused, match="do not fit"):
        Bfv(bits=32).refuse_codec(Codec(1.0, 1e-7, 10, 32), Limits(400))
    Bfv(bits=32).refuse_codec(Codec(1.0, 1e-6, 10, 32), Limits(400))


def test_shares_below_two_steps_have_no_proof_and_more_noise_helps():
    """Solving starts at noise whose shares are too small, and has to go on."""
    discrete = ("--mechanism", "discrete_gaussian", *FOR_SKELLAM[2:4], "--population", "1000")
    flags = (*discrete, "--rounds", "1", "--bits", "12", "--dimension", "1000")
    solved = json.loads(calibrated(*flags, "--epsilon", "0.5").stdout)
    assert 0.4 < solved["epsilon"] <= 0.5
    given = calibrated(*flags, "--noise-multiplier", "0.5")
    assert given.exit_code == 2, "as check refuses it"
    assert "too few for the noise" in given.output
    keys = ("privacy.mechanism=discrete_gaussian", "privacy.noise_multiplier=0.02", "secure.bits=9")
    with pytest.raises(Refused, match="too few for the noise"):
        planned(small(*DISTRIBUTED, *keys))


def test_calibrate_knows_cyclic_cohorts():
    flags = ("--mechanism", "skellam", "--sampler", "cyclic", "--separation", "10")
    flags = (
        *flags,
        "--population",
        "1000",
        "--rounds",
        "50",
        "--bits",
        "20",
        "--dimension",
        "1000",
    )
    found = calibrated(*flags, "--epsilon", "4")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["relation"] == ZERO_OUT


def test_noise_is_planned_for_the_very_message_that_is_sent():
    setup = prepare(small("privacy.mechanism=skellam", "secure.protocol=masks"))
    planned, sent = setup.plan, message_length(setup.plan.config, setup.network.shapes.length)
    assert planned.mechanism.grid().length == padded(sent)
    with pytest.raises(ValueError, match="depends on the length of a message"):
        plan(small("privacy.mechanism=skellam", "secure.protocol=masks"))
