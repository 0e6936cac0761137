"""Buffered Toeplitz noise: its sensitivity, its event, streaming, resume, and planted faults."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Rounds, assert_normal
from lanes import every_case
from small import SMALL, model, same_run, stop_after, trained

from accounting.accountants import epsilon
from accounting.bounds.toeplitz_sensitivity import buffered_sensitivity, column_norm
from accounting.events import ZERO_OUT, Event
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.over_rounds import BufferedToeplitz
from privfed.auditing.run_audit import audit
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms import buffered as module
from privfed.privacy.mechanisms.buffered import Buffered
from privfed.privacy.noise.correlated import BufferedNoise
from privfed.privacy.noise.factorization import optimal_buffers
from privfed.run.train import resume
from privfed.sampling.allocation import Allocation
from privfed.sampling.samplers import Cyclic, Full, Poisson

SAVED_STREAMS = Streams(0, key=bytes(32))
SOLVED = optimal_buffers(2, 40, 3)
CYCLIC = (
    "cohort.sampler=cyclic",
    "cohort.separation=3",
    "cohort.size=0",
    "privacy.mechanism=blt",
)


def buffered(noise=1.3, clip=0.3):
    return Buffered(clip=clip, decays=SOLVED.decays, outputs=SOLVED.outputs, noise_multiplier=noise)


def matrix(column):
    """C `[T, T]` with this first column."""
    return sum(c * np.eye(len(column), k=-lag) for lag, c in enumerate(column))


def rounds_of(path, noise=1.3, **more):
    """A run of twelve clients in three slots, whose noise is buffered."""
    sampler = Cyclic(separation=3).of(12)
    rounds = Rounds(path, (2,) * 12, size=4, sampler=sampler, mechanism=buffered(noise), **more)
    source = rounds.algorithm.mechanism.memory(rounds.world.streams, len(rounds.state.params))
    rounds.world = replace(rounds.world, correlated=source)
    return rounds


def noise_is_what_the_ledger_says(tmp_path):
    """C times what is released of nothing is N(0, (z clip |c|)^2), and z is what is charged."""
    rounds = rounds_of(tmp_path, lr=0.0)
    noise = rounds.released(40).astype(np.float64) * 4
    event = rounds.world.ledger.charges[0].event.release
    norm = column_norm(event.decays, event.outputs)
    z = matrix(SOLVED.column(40)) @ noise
    assert_normal(z, event.of.noise_multiplier * 0.3 * norm)
    # What 40 rounds are charged: this deviation over how far a client moves C x.
    moved = buffered_sensitivity(event.decays, event.outputs, 3, 40)
    assert event.over(40).noise_multiplier == pytest.approx(1.3 * norm / moved)


def noise_has_the_charged_scale(tmp_path):
    """Number for number: C times what is released of nothing is z clip |c| times known normals."""
    rounds = rounds_of(tmp_path, lr=0.0)
    noise = rounds.released(12).astype(np.float64) * 4
    event = rounds.world.ledger.charges[0].event.release
    normal = np.stack(
        [rounds.world.streams.at("matrix", t).normal(noise.shape[1]) for t in range(1, 13)]
    )
    norm = np.linalg.norm(SOLVED.column(4000))  # the tail is below rounding
    scale = event.of.noise_multiplier * 0.3 * norm
    np.testing.assert_allclose(
        matrix(SOLVED.column(12)) @ noise, scale * normal, rtol=1e-4, atol=1e-4 * scale
    )


def rows_are_clipped(tmp_path):
    rows = torch.full((3, 4), 7.0)
    bounded = buffered().bound(rows, None, Keys(None), {})
    assert (torch.linalg.vector_norm(bounded.rows, dim=1) <= bounded.bound).all()


@every_case("check", [noise_is_what_the_ledger_says, noise_has_the_charged_scale, rows_are_clipped])
def test_it_does_what_its_event_says(check, tmp_path):
    check(tmp_path)


def halved(monkeypatch):
    real = Buffered.std
    monkeypatch.setattr(Buffered, "std", lambda self: 0.5 * real(self))


def three_percent_low(monkeypatch):
    real = Buffered.std
    monkeypatch.setattr(Buffered, "std", lambda self: 0.97 * real(self))


def norm_forgotten(monkeypatch):
    monkeypatch.setattr(Buffered, "std", lambda self: self._noise())


def forgetful(monkeypatch):
    real = BufferedNoise._next

    def forgets(self, keys, std):
        self._past[:] = 0.0
        return real(self, keys, std)

    monkeypatch.setattr(BufferedNoise, "_next", forgets)


def unclipped(monkeypatch):
    monkeypatch.setattr(module, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


def counted_as_disjoint(monkeypatch):
    monkeypatch.setattr(BufferedToeplitz, "growth", lambda self, rounds: (-(-rounds // 3)) ** 0.5)


@every_case(
    "fault, check",
    [
        (halved, noise_is_what_the_ledger_says),
        (three_percent_low, noise_has_the_charged_scale),
        (norm_forgotten, noise_has_the_charged_scale),
        (norm_forgotten, noise_is_what_the_ledger_says),
        (forgetful, noise_is_what_the_ledger_says),
        (counted_as_disjoint, noise_is_what_the_ledger_says),
        (unclipped, rows_are_clipped),
    ],
)
def test_a_planted_fault_is_caught(fault, check, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_rows_of_noise_are_c_inverse_z_and_a_resume_has_the_same():
    source = BufferedNoise(SOLVED, 6, SAVED_STREAMS)
    rows = np.stack([source.noise(round, 2.0) for round in range(1, 21)])
    z = np.stack([2.0 * SAVED_STREAMS.at("matrix", round).normal(6) for round in range(1, 21)])
    np.testing.assert_allclose(matrix(SOLVED.column(20)) @ rows, z, atol=1e-12)
    again = BufferedNoise(SOLVED, 6, SAVED_STREAMS)
    np.testing.assert_array_equal(again.noise(13, 2.0), rows[12])
    assert source.remembers == 2


def test_it_needs_fixed_slots_one_exchange_and_its_own_keys():
    part = buffered()
    for wrong in (
        Poisson(size=1).witness(1, 12),
        Allocation(slots=4).of(12).witness(1, 12),
        Allocation(slots=4, groups=2).of(12).witness(1, 12),
    ):
        with pytest.raises(Refused, match="overlap"):
            part.event(wrong, 1)
    everybody = part.event(Full().of(12).witness(1, 12), 1)
    assert everybody.release.separation == 1
    with pytest.raises(Refused, match="exchanges"):
        part.event(Cyclic(separation=4).of(12).witness(1, 12), 2)
    with pytest.raises(TypeError, match="correlated"):
        part.release(BoundedSum(torch.zeros(3).double(), 0.4, 1), 1.0, Keys(None), {})
    with pytest.raises(TypeError, match="BoundedSum"):
        part.release(torch.zeros(3), 1.0, Keys(None), {})
    with pytest.raises(ValueError, match="plan"):
        Buffered(noise_multiplier=1.0).memory(SAVED_STREAMS, 3)


def test_a_run_is_charged_for_overlapping_columns_and_states_its_buffers(tmp_path):
    trained(tmp_path / "run", *CYCLIC)
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    stated = ledger.terms["correlation"]
    solved = optimal_buffers(2, 7, 3)
    assert stated == {
        "decays": list(solved.decays),
        "outputs": list(solved.outputs),
        "solved_for": 7,
    }
    audited = audit(tmp_path / "run")
    moved = buffered_sensitivity(solved.decays, solved.outputs, 3, 7)
    z = 2.0 * column_norm(solved.decays, solved.outputs) / moved
    plain = {Event(Gaussian(z), "cyclic", ZERO_OUT): 1}
    assert audited.guarantee.epsilon == pytest.approx(epsilon(plain, 1e-3, "pld"), rel=1e-7)
    assert not audited.problems
    # More rounds later: the same buffers, at more epsilon.
    event = ledger.charges[0].event
    assert epsilon({event: 9}, 1e-3, "pld") > epsilon({event: 7}, 1e-3, "pld")


@pytest.mark.parametrize("cut", [2, 5])
def test_a_seeded_resume_ends_bit_for_bit_as_if_uninterrupted(tmp_path, cut, monkeypatch):
    words = (*CYCLIC, "run.randomness=seeded")
    trained(tmp_path / "run", *words)
    stop_after(cut, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", *words)
    monkeypatch.undo()
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "run", tmp_path / "cut")


def test_more_rounds_later_keep_the_buffers(tmp_path):
    words = (*CYCLIC, "run.randomness=seeded")
    trained(tmp_path / "run", *words)
    before = (tmp_path / "run" / "config.toml").read_text()
    resume(tmp_path / "run", lambda stored: stored.with_run(rounds=9))
    after = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    assert len({charge.event for charge in after.charges}) == 1
    assert len(after.charges) == 9
    assert [line for line in before.splitlines() if "decays" in line]
    assert model(tmp_path / "run")


@every_case(
    ("words", "why"),
    [
        (("privacy.decays=[0.5]",), "each decay belongs to an output"),
        (("privacy.decays=[1.5]", "privacy.outputs=[0.1]"), "expected a number in"),
        (("privacy.decays=[0.5, 0.1]", "privacy.outputs=[0.9, 0.3]"), "sum to"),
        (("privacy.decays=[0.5]", "privacy.outputs=[0.9, 0.3]"), "equally many"),
        (
            ("privacy.decays=[0.5]", "privacy.outputs=[0.9]", "privacy.buffers=2"),
            "buffers is 2, but there are 1 decays",
        ),
        (("privacy.buffers=9",), "at most 8"),
    ],
    ids=["alone", "decay", "sum", "lengths", "buffers", "count"],
)
def test_buffers_that_are_given_are_refused_without_a_proof(words, why):
    with pytest.raises(Refused, match=why):
        load(None, [*SMALL, *CYCLIC, *words])


def test_buffers_that_are_given_stay():
    words = ("privacy.decays=[0.5, 0.1]", "privacy.outputs=[0.3, 0.3]")
    planned = plan(load(None, [*SMALL, *CYCLIC, *words]))
    assert planned.event.release.decays == (0.5, 0.1)
    assert planned.config.mechanism.solved_for == 0


def test_the_noise_is_solved_for_the_budget_of_all_rounds():
    free = [word for word in SMALL if "noise_multiplier" not in word]
    planned = plan(load(None, [*free, *CYCLIC, "privacy.epsilon=2.0"]))
    assert 1.98 < planned.guarantee.epsilon <= 2.0
    assert json.dumps(planned.event.to_json())
    assert Event.from_json(planned.event.to_json()) == planned.event
