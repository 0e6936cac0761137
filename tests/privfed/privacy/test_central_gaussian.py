"""The central Gaussian: what it insists on, and the event it emits."""

import ast
from pathlib import Path

import pytest
import torch
from helpers import assert_normal
from lanes import every_case

import privfed
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.setting import ClientShares, CohortSize, Setting
from privfed.sampling.samplers import BySize, Poisson
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Session

WITNESS = Poisson(size=10).witness(0, 100)
KEYS = Streams(0).at("noise", 1)


def test_its_event_names_rate_and_noise_of_what_runs():
    event = CentralGaussian(clip=0.5, noise_multiplier=1.5).event(WITNESS, exchanges=1)
    assert event.release == PoissonSampled(0.1, Gaussian(1.5))
    assert (event.unit, event.relation, event.sampler) == ("client", "add/remove", "poisson")


def test_four_exchanges_over_one_cohort_are_one_event_at_half_the_noise():
    event = CentralGaussian(noise_multiplier=1.5).event(WITNESS, exchanges=4)
    assert event.release == PoissonSampled(0.1, Gaussian(0.75))


def test_another_sampler_is_refused_with_what_would_work():
    with pytest.raises(Refused, match="poisson"):
        CentralGaussian(noise_multiplier=1.0).event(BySize(size=1).witness(0, 10), 1)


@every_case(
    "total",
    [
        torch.zeros(3),
        BoundedSum(torch.zeros(3), float("inf"), 2),
        BoundedSum(torch.zeros(3), 0.4, 2),
        BoundedSum(torch.zeros(3), float("nan"), 2),
    ],
)
def test_what_is_not_bounded_by_the_clip_is_never_noised(total):
    mechanism = CentralGaussian(clip=0.5, noise_multiplier=1.0)
    with pytest.raises(TypeError, match="BoundedSum"):
        mechanism.release(total, 1.0, KEYS, {})
    with pytest.raises(TypeError, match="BoundedSum"):
        mechanism.noised(total, KEYS, {}, slice(0, 3))


def test_noise_follows_the_bound_of_what_was_really_summed():
    """Encoded rows may be longer than the clip."""
    mechanism = CentralGaussian(clip=0.5, noise_multiplier=2.0)
    total = BoundedSum(torch.zeros(20_000, dtype=torch.float64), 0.8, 3)
    released, _ = mechanism.release(total, 4.0, KEYS, {})
    assert_normal(released.numpy() * 4.0, 1.6)
    with pytest.raises(AssertionError):
        assert_normal(released.numpy() * 4.0, 1.0)


def test_uncalibrated_noise_never_runs():
    mechanism = CentralGaussian()
    with pytest.raises(ValueError, match="calibrate"):
        mechanism.event(WITNESS, 1)
    with pytest.raises(ValueError, match="calibrate"):
        mechanism.release(BoundedSum(torch.zeros(3), 0.4, 0), 1.0, KEYS, {})


def test_a_sum_takes_each_client_once_and_one_bound():
    def summed(*adds):
        accumulator = PlainSum().open(Session(1, 0, b""), 2, Encoding(3.0))
        for ids, rows in adds:
            accumulator.add(torch.tensor(ids).numpy(), rows)
        return accumulator.close()

    rows = BoundedRows(torch.ones(2, 2), 3.0)
    total = summed(([1, 2], rows), ([3, 4], rows))
    assert total.total.tolist() == [4.0, 4.0]
    assert (total.bound, total.survivors) == (3.0, 4)
    for again in ([2, 5], [6, 6], [7]):
        with pytest.raises(ValueError, match="registered twice"):
            summed(([1, 2], rows), (again, rows))
    with pytest.raises(ValueError, match="opened for 3"):
        summed(([1, 2], rows), ([3, 4], BoundedRows(torch.ones(2, 2), 3.5)))


def test_only_clipping_makes_bounded_rows_and_only_sums_make_bounded_sums():
    """By reading the source: no other file calls the constructors."""
    allowed = {
        "BoundedRows": {
            "privacy/clipping.py",
            "privacy/mechanisms/none.py",
            "privacy/mechanisms/local_gaussian.py",
            "privacy/mechanisms/pairwise_gaussian.py",
            "privacy/rotation.py",
        },
        "BoundedSum": {
            "secure/plain_sum.py",
            "secure/encoded_accumulator.py",
            "round/by_sums.py",
            "deploy/coordinator/sum_session.py",
        },
        "SumWithNoise": {"privacy/mechanisms/central_gaussian.py"},
    }
    root = Path(privfed.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text("utf-8")
        if not any(name in text for name in allowed):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                where = path.relative_to(root).as_posix()
                assert name not in allowed or where in allowed[name], f"{where} makes a {name}"


def test_layouts_name_their_parts():
    layout = Layout((("delta", 3), ("control", 2))).plus("weight", 1)
    flat = torch.arange(6.0)
    assert layout.length == 6
    assert layout.view(flat, "control").tolist() == [3.0, 4.0]
    assert layout.view(flat.repeat(2, 1), "weight").shape == (2, 1)
    with pytest.raises(KeyError, match="fisher"):
        layout.view(flat, "fisher")


@pytest.mark.parametrize("adaptive", [False, True])
def test_noise_of_parts_is_bit_for_bit_that_of_one_process(adaptive):
    keys, length = Streams(3, simulated=True).at("noise/0", 1), 200_003
    mechanism = CentralGaussian(clip=0.5, noise_multiplier=1.5, adaptive_clip=adaptive)
    mechanism = mechanism.resolved(Setting(cohort=CohortSize(20, 40), noise=ClientShares(1)))
    state = mechanism.init()
    bound = mechanism.encoding(state).bound
    silent = BoundedSum(torch.zeros(length, dtype=torch.float64), bound, 5)
    whole = mechanism.noised(silent, keys, state, slice(0, length))
    parts = (slice(0, 70_001), slice(70_001, 70_001), slice(70_001, length))
    each = [mechanism.noised(silent, keys, state, part).total for part in parts]
    assert torch.equal(sum(each), whole.total)
    assert bool((whole.total[:-1] != 0.0).all())
    released, _ = mechanism.release(whole, 4.0, Keys(None), state)  # its noise is there
    assert torch.equal(released, mechanism.release(silent, 4.0, keys, state)[0])
