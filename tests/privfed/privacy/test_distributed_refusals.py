"""What distributed noise has no proof for is refused, and calibration says what it needs."""

import json
import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from distributed_noise import DISTRIBUTED, SEEDED, SETTING, calibrated, events
from lanes import every_case
from small import SMALL, small, trained

from accounting.events import ADD_REMOVE, ZERO_OUT
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.plan.plan import plan
from privfed.plan.rule import message_length
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedSum, Encoding
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.noise.shares import JOINED, SkellamShare
from privfed.privacy.rotation import padded
from privfed.run.prepare import plan_with_length, prepare
from privfed.sampling.samplers import Full
from privfed.secure.homomorphic.protocol import Bfv
from privfed.secure.limits import Limits
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Session

LAYERS = "privacy.sizing=layers"


@every_case(
    "keys, said",
    [
        (("secure.protocol=none",), "adds its noise within a secure sum"),
        (("secure.protocol=bfv", LAYERS), "only masked sums can remove layers"),
        (("secure.protocol=ckks",), "recover the key"),
        (
            ("privacy.mechanism=skellam", "cohort.sampler=truncated_poisson", "cohort.size=4"),
            "no proof with Skellam",
        ),
        (
            ("privacy.mechanism=discrete_gaussian", "privacy.noise_sampler=exact", LAYERS),
            "layers are drawn from seeds",
        ),
        (("secure.bits=8", "data.clients=5000", "secure.threshold=0.5"), "but the noise of"),
        (("privacy.mechanism=gaussian", "privacy.against=readers"), "has two guarantees"),
        (("aggregation.rule=median",), "median"),
        (("privacy.accountant=pld",), "pld"),
        ((LAYERS, "privacy.tolerance=0.99999999999"), "privacy.tolerance, or raise"),
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
    assert most == 2
    for event in events(layers, Full(), exchanges=3).values():
        assert event.slack >= 3 * 16 * 24 * most * each > 0, "a base, and as many layers"
    exact = DiscreteGaussianNoise(noise_multiplier=1.0, noise_sampler="exact").resolved(SETTING)
    assert events(exact, Full())["server"].slack == 16 * 24 * JOINED, "of their sum alone"


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
        "--bits or --dimension is missing": (*FOR_SKELLAM, "--rounds", "9", "--epsilon", "6"),
        "raise secure.bits": (
            *(*FOR_SKELLAM, "--rounds", "100", "--epsilon", "1"),
            *("--bits", "10", "--dimension", "100000"),
        ),
        "only with --mechanism discrete_gaussian or skellam": (
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


@pytest.mark.slow
def test_layers_can_be_drawn_for_the_smallest_cohort_that_clients_accept():
    """Few survivors keep more each: a table for it has to exist before the round is charged."""
    keys = ("data.clients=200", "cohort.size=20", "secure.threshold=0.5", "privacy.epsilon=8.0")
    layered = ("privacy.mechanism=skellam", "secure.protocol=masks", "privacy.sizing=layers")
    planned = plan_with_length(small(*keys, *layered, "privacy.tolerance=0.5"))
    layers = planned.mechanism.share()
    for clients in range(10, 40):
        for layers_kept in (0, layers.count(clients)):
            assert len(layers.remaining(clients, layers_kept).draw(Keys(None), 2)) == 2
            assert len(layers.base(clients).draw(Keys(None), 2)) == 2
        assert len(layers.layer(clients, max(layers.count(clients), 1)).draw(Keys(None), 2)) == 2


@every_case("bits", [14, 20, 32])
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
    with pytest.raises(Refused, match=r"exceed .*, the largest number that bfv can hold"):
        Bfv(bits=32).refuse_codec(Codec(1.0, 1e-7, 10, 32), Limits(400))
    Bfv(bits=32).refuse_codec(Codec(1.0, 1e-6, 10, 32), Limits(400))


def test_shares_below_three_steps_have_no_proof_and_more_noise_helps():
    """Solving starts at noise whose shares are too small, and has to go on."""
    discrete = ("--mechanism", "discrete_gaussian", *FOR_SKELLAM[2:4], "--population", "1000")
    flags = (*discrete, "--rounds", "1", "--bits", "12", "--dimension", "1000")
    solved = json.loads(calibrated(*flags, "--epsilon", "0.5").stdout)
    assert 0.4 < solved["epsilon"] <= 0.5
    given = calibrated(*flags, "--noise-multiplier", "0.5")
    assert given.exit_code == 2, "as check refuses it"
    assert "below the 3 steps that the proof" in given.output
    keys = ("privacy.mechanism=discrete_gaussian", "privacy.noise_multiplier=0.02", "secure.bits=9")
    with pytest.raises(Refused, match=r"raise secure\.bits.*or use privacy.mechanism"):
        plan_with_length(small(*DISTRIBUTED, *keys))


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
    calibration = calibrated(*flags, "--epsilon", "4")
    assert calibration.exit_code == 0, calibration.output
    assert json.loads(calibration.stdout)["relation"] == ZERO_OUT


def test_noise_is_planned_for_the_very_message_that_is_sent():
    setup = prepare(small("privacy.mechanism=skellam", "secure.protocol=masks"))
    planned, sent = setup.plan, message_length(setup.plan.config, setup.network.shapes.length)
    assert planned.mechanism.grid().length == padded(sent)
    with pytest.raises(ValueError, match="depends on the length of a message"):
        plan(small("privacy.mechanism=skellam", "secure.protocol=masks"))
