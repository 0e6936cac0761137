"""Random allocation: fresh, uniform, independent, secret slots, and groups that keep apart."""

from collections import Counter

import numpy as np
import pytest
from lanes import every_case
from scipy import stats
from small import same_run, small, stop_after, trained

from accounting.events import ADD_REMOVE, ZERO_OUT, Event
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.run.train import resume
from privfed.sampling.allocation import Allocation, uniform_below
from privfed.sampling.cohort import Population

SAVED_STREAMS = Streams(0, key=bytes(32))


def slots_of(sampler, clients, epochs, streams=SAVED_STREAMS, population=None):
    """The slot of each client in each epoch `[epochs, clients]`; each has one in every epoch."""
    population = population or Population.of(np.ones(clients, dtype=np.int64))
    slots = np.full((epochs, len(population)), -1)
    for epoch in range(epochs):
        for place in range(sampler.slots):
            drawn = sampler.sample(1 + epoch * sampler.slots + place, clients, population, streams)
            assert (slots[epoch, drawn.clients] == -1).all()
            slots[epoch, drawn.clients] = place
            assert drawn.divisor == clients / sampler.slots
    assert (slots >= 0).all()
    return slots


def test_each_client_takes_part_once_in_every_epoch_in_a_uniform_fresh_slot():
    slots = slots_of(Allocation(slots=6), 3000, 4)
    for epoch in slots:
        counts = np.bincount(epoch, minlength=6)
        assert stats.chisquare(counts).pvalue > 1e-6
    # Slots of two epochs, and of two clients, are independent: all 36 pairs are as likely.
    pairs = Counter((6 * slots[0] + slots[1]).tolist())
    assert stats.chisquare([pairs[pair] for pair in range(36)]).pvalue > 1e-6
    neighbours = Counter((6 * slots[2][:-1] + slots[2][1:])[::2].tolist())
    assert stats.chisquare([neighbours[pair] for pair in range(36)]).pvalue > 1e-6
    # And cohorts are as variable as coins: equal cohorts of a shuffle would not vary at all.
    sizes = np.array([np.bincount(epoch, minlength=6) for epoch in slots]).ravel()
    assert 0.4 < sizes.var() / (3000 * 5 / 36) < 2.2


def test_a_wrong_sampler_would_be_noticed():
    """What the test above rests on: the same slot in each epoch, and a shuffle cut into cohorts."""
    same = slots_of(Allocation(slots=6), 3000, 1)[0]
    pairs = Counter((7 * same).tolist())
    assert stats.chisquare([pairs[pair] for pair in range(36)]).pvalue < 1e-6
    shuffled = np.random.default_rng(0).permutation(3000) % 6
    assert np.bincount(shuffled).var() == 0


def test_a_slot_is_the_clients_own_whoever_else_there_is():
    everybody = Population.of(np.ones(40, dtype=np.int64))
    some = Population(np.ones(7, dtype=np.int64), everybody.identities[[3, 1, 4, 15, 9, 26, 5]])
    sampler = Allocation(slots=5)
    of_all, of_some = (
        slots_of(sampler, 40, 3, population=population) for population in (everybody, some)
    )
    np.testing.assert_array_equal(of_all[:, some.identities], of_some)


def test_another_key_draws_other_slots_and_a_resume_the_same():
    sampler = Allocation(slots=50)
    first, again = slots_of(sampler, 100, 2), slots_of(sampler, 100, 2)
    other = slots_of(sampler, 100, 2, Streams(0, key=bytes([1] * 32)))
    np.testing.assert_array_equal(first, again)
    assert (first == other).mean() < 0.1
    with pytest.raises(ValueError, match="secret key"):
        sampler.sample(1, 100, Population.of(np.ones(4, dtype=np.int64)), Streams(0))


def test_groups_keep_a_clients_possible_rounds_apart():
    sampler = Allocation(slots=12, groups=4)
    slots = slots_of(sampler, 1200, 8)
    groups = slots % 4
    assert (groups == groups[0]).all()  # for ever
    assert stats.chisquare(np.bincount(groups[0])).pvalue > 1e-6
    assert stats.chisquare(np.bincount(slots.ravel() // 4)).pvalue > 1e-6
    rounds = slots + 12 * np.arange(8)[:, None]
    assert (np.diff(rounds, axis=0) >= 4).all()
    assert (np.diff(rounds, axis=0) == 4).any()
    # Without groups nothing is kept apart: the last slot may come right before the first.
    alone = slots_of(Allocation(slots=12), 1200, 8) + 12 * np.arange(8)[:, None]
    assert (np.diff(alone, axis=0) == 1).any()


@every_case("bound", [1, 2, 3, 10, 1_000_000])
def test_numbers_below_a_bound_reject_what_is_beyond_its_multiples(bound):
    largest = (1 << 64) // bound * bound
    beyond = np.uint64(min(largest, 2**64 - 1))
    rows = np.array([[beyond, 5 * bound + bound // 2, 7, 8]], dtype=np.uint64)
    expected = bound // 2 if largest < 1 << 64 else (2**64 - 1) % bound
    assert uniform_below(bound, rows).tolist() == [expected]


def test_unforeseeable_words_are_those_of_a_cipher_and_name_each_client():
    keys = SAVED_STREAMS.at("slots/epoch", 3, np.arange(1000))
    words = keys.keyed_words(3)
    assert words.shape == (1000, 3)
    assert len(np.unique(words)) == 3000
    assert SAVED_STREAMS.at("slots/epoch", 3, np.arange(0)).keyed_words(3).shape == (0, 3)
    assert stats.kstest(words.ravel() / 2.0**64, "uniform").pvalue > 1e-6
    some = SAVED_STREAMS.at("slots/epoch", 3, np.array([17, 4])).keyed_words(3)
    np.testing.assert_array_equal(some, words[[17, 4]])
    other = SAVED_STREAMS.at("slots/epoch", 4, np.arange(1000)).keyed_words(3)
    assert not np.isin(other, words).any()
    with pytest.raises(ValueError, match="no seed"):
        Streams(0).at("cohort", 1, np.arange(3)).keyed_words(1)


def test_its_event_and_relation():
    alone = Allocation(slots=4).of(40)
    assert alone.size == 10
    witness = alone.witness(1, 40)
    assert (witness.relation, witness.separation, witness.period) == (ADD_REMOVE, 1, 4)
    assert witness.sampled(Gaussian(1.5)) == RandomAllocation(4, 1, Gaussian(1.5))
    alone.fits(37, 40)
    grouped = Allocation(slots=4, groups=2).of(40)
    witness = grouped.witness(1, 40)
    assert (witness.relation, witness.separation, witness.period) == (ZERO_OUT, 2, 4)
    assert witness.sampled(Gaussian(1.5)) == RandomAllocation(4, 2, Gaussian(1.5))
    with pytest.raises(Refused, match="treats their number as public"):
        grouped.fits(39, 40)


ALLOCATED = ("cohort.sampler=allocation", "cohort.slots=3", "cohort.size=0")


@every_case(
    "overrides, reason",
    [
        (("cohort.slots=5",), "cohort.slots that divides the clients"),
        (("cohort.slots=4", "cohort.groups=3"), "1, 2, 4|must divide"),
        (("privacy.mechanism=local_gaussian",), "against the server, which knows them"),
        (
            ("privacy.mechanism=skellam", "secure.protocol=masks"),
            "against the server, which knows them",
        ),
        (("run.simulation_metrics=true",), "publishes metrics of each cohort"),
        (("privacy.mechanism=banded", "privacy.bands=4"), "at most 3 groups"),
        (("privacy.mechanism=banded", "cohort.groups=1", "privacy.bands=2"), "at most 1 groups"),
        (("privacy.mechanism=banded", "cohort.groups=1", "privacy.bands=1"), "independent noise"),
        (("privacy.mechanism=blt",), "overlap"),
        (
            ("privacy.mechanism=banded", "privacy.bands=3", "secure.protocol=masks"),
            "only for equally distributed cohorts",
        ),
        (("data.sites=2",), None),
        (("data.sites=2", "secure.protocol=masks"), "sites sample their own"),
        (
            ("client.objective=scaffold", "data.setting=cross_silo"),
            "no privacy amplification is proved",
        ),
        (("privacy.mechanism=banded", "privacy.bands=0"), "number that needs the least"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_has_no_proof_is_refused_when_configured(overrides, reason):
    if reason is None:
        assert plan(small(*ALLOCATED, *overrides)).event.release.slots == 3
        return
    with pytest.raises(Refused, match=reason):
        plan(small(*ALLOCATED, *overrides), length=20)


def test_a_run_charges_epochs_and_a_resume_keeps_its_slots(tmp_path, monkeypatch):
    words = (*ALLOCATED, "run.randomness=seeded")
    trained(tmp_path / "run", *words)
    charges = Ledger.load(tmp_path / "run" / "ledger.jsonl").charges
    expected = Event(RandomAllocation(3, 1, Gaussian(2.0)), "allocation", ADD_REMOVE)
    assert [charge.event for charge in charges] == [expected] * 7
    stop_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", *words)
    monkeypatch.undo()
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "run", tmp_path / "cut")


def test_a_secret_run_keeps_its_key_and_cannot_go_on_without(tmp_path):
    trained(tmp_path / "run", *ALLOCATED)
    key = tmp_path / "run" / "private" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    with pytest.raises(Exception, match="the participation schedule"):
        resume(tmp_path / "run", lambda stored: stored.with_run(rounds=9))


def test_bands_in_groups_run_and_are_charged_as_allocated(tmp_path):
    words = (
        "cohort.sampler=allocation",
        "cohort.slots=6",
        "cohort.size=0",
        "privacy.mechanism=banded",
        "privacy.bands=2",
    )
    trained(tmp_path / "run", *words)
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    expected = Event(RandomAllocation(6, 2, Gaussian(2.0)), "allocation", ZERO_OUT)
    assert {charge.event for charge in ledger.charges} == {expected}
    assert len(ledger.terms["correlation"]["toeplitz"]) == 2
    stored = (tmp_path / "run" / "config.toml").read_text()
    assert "groups = 2" in stored
    assert "toeplitz = [" in stored
