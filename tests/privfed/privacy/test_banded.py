"""Banded noise: the factorisation, its sensitivity, streaming, resume, and planted faults."""

import json
import math
import shutil
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from helpers import Rounds, assert_normal
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from small import model, same_run, small, stop_after, trained

from accounting.accountants import epsilon
from accounting.events import ZERO_OUT, Event
from accounting.noises import Gaussian
from privfed.auditing.run_audit import audit
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Keys, Streams
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms import banded as module
from privfed.privacy.mechanisms.banded import Banded
from privfed.privacy.noise.correlated import CorrelatedOnGrid, CorrelatedReals
from privfed.privacy.noise.factorization import optimal_bands
from privfed.privacy.noise.gaussian_on_grid import grid_of
from privfed.run.train import resume
from privfed.sampling.samplers import Cyclic, Poisson

KEPT = Streams(0, key=bytes(32))
CYCLIC = (
    "cohort.sampler=cyclic",
    "cohort.separation=3",
    "cohort.size=0",
    "privacy.mechanism=banded",
    "privacy.bands=3",
)


def matrix(coefficients, rounds):
    """C `[rounds, rounds]`."""
    c = np.zeros((rounds, rounds))
    for lag, value in enumerate(coefficients):
        c += value * np.eye(rounds, k=-lag)
    return c


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 10**6))
@settings(max_examples=60)
def test_no_client_moves_c_x_by_more_than_is_charged(bands, more, seed):
    """Over random slots and updates; rounds closer than the bands would break it."""
    separation, rounds = bands + more, 17
    rng = np.random.default_rng(seed)
    slot = int(rng.integers(separation))
    x = np.zeros((rounds, 3))
    for round in range(slot, rounds, separation):
        x[round] = rng.normal(size=3)
        x[round] /= np.linalg.norm(x[round])
    coefficients = Banded(bands=bands).coefficients()
    moved = np.linalg.norm(matrix(coefficients, rounds) @ x)
    times = -(-rounds // separation)
    assert moved <= np.sqrt(times) * np.linalg.norm(coefficients) + 1e-9


def test_a_smaller_separation_than_bands_would_move_it_further():
    """Why the sampler has to keep the separation: the same update in rounds 1 and 2."""
    coefficients = Banded(bands=3).coefficients()
    x = np.array([[1.0], [1.0], [0.0], [0.0]])
    moved = np.linalg.norm(matrix(coefficients, 4) @ x)
    assert moved > 1.2 * np.sqrt(2) * np.linalg.norm(coefficients)


def test_rows_of_noise_on_the_grid_are_c_inverse_z():
    coefficients, std = np.array(optimal_bands(4, 20)), 2.5
    source = CorrelatedOnGrid(coefficients, 6, KEPT)
    rows = np.stack([source.noise(round, std) for round in range(1, 21)])
    z = np.stack([-std * KEPT.at("matrix", round).normal(6) for round in range(1, 21)])
    np.testing.assert_allclose(matrix(coefficients, 20) @ rows, z, atol=std * 2.0**-29)
    steps = rows / grid_of(std)
    np.testing.assert_array_equal(steps, np.rint(steps))
    again = CorrelatedOnGrid(coefficients, 6, KEPT)
    np.testing.assert_array_equal(again.noise(13, std), rows[12])  # after a resume
    with pytest.raises(ValueError, match="is correlated, had"):
        again.noise(14, 2 * std)
    with pytest.raises(ValueError, match="multiples"):
        CorrelatedOnGrid(np.array([1.0, 0.3]), 6, KEPT)


def test_rows_of_older_runs_are_c_inverse_z():
    coefficients = Banded(bands=4).coefficients()
    source = CorrelatedReals(coefficients, 6, KEPT)
    rows = np.stack([source.noise(round, 1.0) for round in range(1, 21)])
    z = np.stack([KEPT.at("matrix", round).normal(6) for round in range(1, 21)])
    np.testing.assert_allclose(matrix(coefficients, 20) @ rows, z, atol=1e-12)
    again = CorrelatedReals(coefficients, 6, KEPT)
    np.testing.assert_array_equal(again.noise(13, 1.0), rows[12])  # after a resume
    np.testing.assert_array_equal(again.noise(13, 1.0), rows[12])
    with pytest.raises(ValueError, match="no longer available"):
        again.noise(12, 1.0)


def test_z_is_standard_normal_fresh_every_round_and_the_runs_own():
    z = np.concatenate([KEPT.at("matrix", round).normal(4000) for round in range(1, 11)])
    assert_normal(z, 1.0)
    with pytest.raises(AssertionError):
        assert_normal(0.97 * z, 1.0)
    first, second = KEPT.at("matrix", 1).normal(5), KEPT.at("matrix", 2).normal(5)
    other = Streams(0, key=bytes([1] * 32)).at("matrix", 1).normal(5)
    assert len({*first, *second, *other}) == 15
    assert not np.array_equal(KEPT.at("slots").bits(5), KEPT.at("matrix").bits(5))


SOLVED, OLDER = optimal_bands(3, 40), None
"""Coefficients of today's runs, whose noise lies on a grid, and those of older ones, a root's."""


def rounds_of(path, noise=1.3, toeplitz=SOLVED, **more):
    """A run of twelve clients in three slots, whose noise is banded."""
    rounds = Rounds(
        path,
        (2,) * 12,
        size=4,
        sampler=Cyclic(separation=3).of(12),
        mechanism=Banded(clip=0.3, bands=3, toeplitz=toeplitz, noise_multiplier=noise),
        **more,
    )
    source = rounds.algorithm.mechanism.memory(rounds.world.streams, len(rounds.state.params))
    rounds.world = replace(rounds.world, correlated=source)
    return rounds


def noise_is_what_the_ledger_says(tmp_path, toeplitz):
    """C times the difference of the noised and the unnoised run is N(0, (z clip |c|)^2)."""
    rounds = rounds_of(tmp_path, toeplitz=toeplitz, lr=0.0)
    with_noise = rounds.released(40)
    coefficients = rounds.algorithm.mechanism.coefficients()
    z = matrix(coefficients, 40) @ (with_noise.astype(np.float64) * 4)
    charged = rounds.world.ledger.charges[0].event.release.of.noise_multiplier
    assert charged == 1.3
    assert_normal(z, charged * 0.3 * np.linalg.norm(coefficients))


def rows_are_clipped(tmp_path, toeplitz):
    part = Banded(clip=0.3, bands=3, toeplitz=toeplitz, noise_multiplier=1.0)
    bounded = part.bound(torch.full((3, 4), 7.0), None, Keys(None), {})
    assert (torch.linalg.vector_norm(bounded.rows, dim=1) <= bounded.bound).all()


BOTH = pytest.mark.parametrize("toeplitz", [SOLVED, OLDER], ids=["on-grid", "older"])


@BOTH
@every_case("check", [noise_is_what_the_ledger_says, rows_are_clipped])
def test_it_does_what_its_event_says(check, toeplitz, tmp_path):
    check(tmp_path, toeplitz)


def test_all_that_is_released_is_a_function_of_c_x_plus_z():
    """Sums on the grid, and the noise there: what is released is the rounding of w = C x + Z less
    what was released before, at 60 digits, and no number lies off the grid.
    """
    std, rng = 3.7, np.random.default_rng(5)
    grid, bands, rounds = grid_of(std), 4, 9
    multiples = (1, *(Fraction(c) for c in optimal_bands(bands, 50)[1:]))
    x = rng.integers(-(2**33), 2**33, size=(rounds, 40))
    words = {}

    class Recording(Streams):
        def at(self, stream, round=0, clients=None):
            keys = super().at(stream, round, clients)
            words[round] = (keys.bits(40), keys.further(80).reshape(-1, 2))
            return keys

    source = CorrelatedOnGrid(np.array(optimal_bands(bands, 50)), 40, Recording(0, key=bytes(32)))
    released = [x[t] + (source.noise(t + 1, std) / grid).astype(np.int64) for t in range(rounds)]
    scale = Fraction(float(np.nextafter(std / grid, np.inf)))
    for t in range(rounds):
        for i in range(0, 40, 7):
            w = exact_normal(int(words[t + 1][0][i])) * scale.numerator / scale.denominator
            w += sum(Fraction(c) * int(x[t - j][i]) for j, c in enumerate(multiples) if j <= t)
            past = sum(c * int(released[t - j][i]) for j, c in enumerate(multiples) if 0 < j <= t)
            assert int(released[t][i]) == round_half_up(w - past)


def exact_normal(word):
    """The quantile of 64 bits at 60 digits, as the sampler reads them, to within 2^-40 steps."""
    with mpmath.workdps(60):
        tail = (mpmath.mpf(word >> 1) + 0.5) / mpmath.mpf(2) ** 64
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        return Fraction(str(z if word & 1 else -z))


def round_half_up(value):
    return math.floor(value + Fraction(1, 2))


def halved(monkeypatch):
    real = Banded.std
    monkeypatch.setattr(Banded, "std", lambda self: 0.5 * real(self))


def column_norm_forgotten(monkeypatch):
    monkeypatch.setattr(Banded, "std", lambda self: self._noise())


def independent(monkeypatch):
    for kind in (CorrelatedReals, CorrelatedOnGrid):
        real = kind._next

        def forgetful(self, keys, std, real=real):
            self._past.clear()
            return real(self, keys, std)

        monkeypatch.setattr(kind, "_next", forgetful)


def unclipped(monkeypatch):
    monkeypatch.setattr(module, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


@BOTH
@every_case(
    "fault, check",
    [
        (halved, noise_is_what_the_ledger_says),
        (column_norm_forgotten, noise_is_what_the_ledger_says),
        (independent, noise_is_what_the_ledger_says),
        (unclipped, rows_are_clipped),
    ],
)
def test_a_planted_fault_is_caught(fault, check, toeplitz, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path, toeplitz)


def test_coefficients_whose_noise_grows_without_bound_are_refused():
    """Their noise would leave 64 bits in the middle of a run that was charged for."""
    falls, stays = Banded(toeplitz=(1.0, 0.5, 0.25)), Banded(toeplitz=(1.0, -1.0, 1.0))
    for part in (falls, stays):
        assert part.solved_for_run(2000, 3) is part
    grows = Banded(toeplitz=(1.0, -1.0, -1.0))
    assert grows.solved_for_run(8, 3) is grows
    with pytest.raises(Refused, match=r"no exact sums in 64 bits.*over 2000 rounds"):
        grows.solved_for_run(2000, 3)


def test_what_counts_is_how_many_coefficients_there_are():
    """Also of a part that says fewer bands, as none that was validated does."""
    part = Banded(bands=4, noise_multiplier=1.0).model_copy(update={"toeplitz": (1.0,) * 8})
    with pytest.raises(Refused, match=r"cohort.separation = 8"):
        part.event(Cyclic(separation=4).of(12).witness(1, 12), 1)


def test_it_needs_a_kept_separation_one_exchange_and_its_own_keys():
    part = Banded(bands=4, noise_multiplier=1.0)
    witness = Cyclic(separation=4).of(12).witness(1, 12)
    for wrong in (Cyclic(separation=3).of(12).witness(1, 12), Poisson(size=1).witness(1, 12)):
        with pytest.raises(Refused, match=r"cohort.separation = 4"):
            part.event(wrong, 1)
    with pytest.raises(Refused, match="exchanges"):
        part.event(witness, 2)
    total = BoundedSum(torch.zeros(3).double(), 0.4, 1)
    with pytest.raises(TypeError, match="correlated"):
        part.release(total, 1.0, Keys(None), {})
    for wrong_sum in (torch.zeros(3), BoundedSum(torch.zeros(3), float("inf"), 1)):
        with pytest.raises(TypeError, match="BoundedSum"):
            part.release(wrong_sum, 1.0, Keys(None), {})
    with pytest.raises(ValueError, match="calibrate"):
        Banded(bands=4).event(witness, 1)


def test_a_run_spends_one_gaussian_per_participation(tmp_path):
    trained(tmp_path / "run", *CYCLIC)
    audited = audit(tmp_path / "run")
    plain = Event(Gaussian(2.0), "cyclic", ZERO_OUT)
    assert audited.guarantee.epsilon == epsilon({plain: 3}, 1e-3, "pld")  # ceil(7 / 3)
    assert audited.noise_multiplier == 2.0
    assert not audited.problems


@every_case("cut", [2, 4, 5])
def test_a_seeded_resume_ends_bit_for_bit_as_if_uninterrupted(tmp_path, cut, monkeypatch):
    words = (*CYCLIC, "run.randomness=seeded")
    trained(tmp_path / "whole", *words)
    stop_after(cut, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", *words)
    monkeypatch.undo()
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_secret_run_keeps_a_key_and_goes_on_with_the_same_noise(tmp_path, monkeypatch):
    still = (*CYCLIC, "client.lr=0.0", "server.optimizer=fedavg", "server.lr=1.0")
    stop_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", *still)
    monkeypatch.undo()
    key = tmp_path / "run" / "private" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    secret = key.read_text()
    resume(tmp_path / "run", lambda stored: stored)
    assert key.read_text() == secret
    # Nothing was learned (lr = 0): the model is the noise of all seven rounds, from that key.
    trained(tmp_path / "start", *still, "privacy.noise_multiplier=0.0")
    streams = Streams(0, key=bytes.fromhex(secret.split()[1]))
    before, after = (
        torch.cat([value.flatten() for name, value in sorted(model(path).items())]).double()
        for path in (tmp_path / "start", tmp_path / "run")
    )
    coefficients = np.array(optimal_bands(3, 7))
    source = CorrelatedOnGrid(coefficients, len(after), streams)
    std = 2.0 * 0.4 * np.linalg.norm(coefficients)
    noise = sum(source.noise(round, std) for round in range(1, 8)) / 4
    moved = (after - before).numpy()
    assert np.sort(moved) == pytest.approx(np.sort(noise), abs=1e-5)
    ledger = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert [link["round"] for link in ledger if link["type"] == "charge"] == [*range(1, 8)]


def test_without_its_key_a_charged_run_never_goes_on(tmp_path, monkeypatch):
    stop_after(4, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", *CYCLIC)
    monkeypatch.undo()
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "run/private/key").unlink()
    with pytest.raises(Broken, match="private/key: the noise of past rounds"):
        resume(tmp_path / "run", lambda stored: stored)
    for damaged in (
        b"somebody " + b"0" * 64,
        (tmp_path / "other/private/key").read_bytes()[:-8],
        (tmp_path / "other/private/key").read_bytes()[:20] + b"z" * 70,
        b"\xff\xfe\x00",
    ):
        (tmp_path / "other/private/key").write_bytes(damaged)
        with pytest.raises(Broken, match="belongs to another run"):
            resume(tmp_path / "other", lambda stored: stored)


def test_the_config_default_goes_with_the_cyclic_default():
    assert Banded().bands == Cyclic().separation
    assert clip_rows(torch.ones(1, 2), 0.5).bound == 0.5
    assert small(*CYCLIC).sampler.size == 4
