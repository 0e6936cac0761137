"""Ticks: clients arrive at most once in `separation` ticks, late ones with an earlier model."""

import numpy as np
import pytest
import torch
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as some
from lanes import every_case
from small import model, same_run, small, trained

from accounting.events import ZERO_OUT
from accounting.noises import Gaussian
from accounting.over_rounds import BufferedToeplitz, Separated
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.run.train import resume
from privfed.sampling.asynchronous import Asynchronous
from privfed.sampling.cohort import Population
from privfed.store.round_logs import Releases

CLIENTS = 30
EVERYBODY = Population.of(np.ones(CLIENTS, np.int64))


def arrivals(sampler, ticks, streams, population=EVERYBODY):
    """Whether each client arrives in each tick, `[ticks, n]`, and each client's staleness `[n]`."""
    cohorts = [sampler.sample(t, CLIENTS, population, streams) for t in range(1, ticks + 1)]
    present = [np.isin(np.arange(len(population)), cohort.clients) for cohort in cohorts]
    assert all(np.array_equal(each.staleness, cohorts[0].staleness) for each in cohorts)
    return np.array(present), cohorts[0].staleness


def least_gap(present):
    """The least number of ticks between two arrivals of one client."""
    gaps = [np.diff(np.flatnonzero(each)) for each in present.T]
    return min((int(gap.min()) for gap in gaps if len(gap)), default=len(present))


@settings(max_examples=60, deadline=None)
@given(
    some.integers(1, 8),
    some.lists(some.integers(0, 12), min_size=1, max_size=6),
    some.binary(min_size=32, max_size=32),
)
def test_whatever_the_key_and_delays_no_client_arrives_twice_within_the_separation(b, delays, key):
    sampler = Asynchronous(separation=max(b, min(delays) + 1), delays=tuple(delays))
    present, delay = arrivals(sampler, 60, Streams(0, key=key))
    assert least_gap(present) >= sampler.separation
    for mine, late in zip(present.T, delay, strict=True):
        ticks = np.flatnonzero(mine) + 1
        period = max(sampler.separation, late + 1)  # a client works on one model at a time
        assert (np.diff(ticks) == period).all()
        assert 1 <= ticks[0] <= period


def test_a_client_that_does_not_wait_breaks_the_separation(monkeypatch):
    """So the test above would see it."""
    monkeypatch.setattr(Asynchronous, "_periods", lambda self, delays: delays + 1)
    present, _ = arrivals(Asynchronous(separation=5), 60, Streams(0, key=bytes(32)))
    assert least_gap(present) == 1


def test_tiers_are_equally_large_on_average_and_arrive_as_often_as_the_divisor_states():
    sampler, many = Asynchronous(separation=2, delays=(0, 0, 3, 9)), 4000
    population = Population.of(np.ones(many, np.int64))
    sizes = [
        len(sampler.sample(t, many, population, Streams(1, simulated=True)).clients)
        for t in range(20, 40)
    ]
    expected = many / 4 * (1 / 2 + 1 / 2 + 1 / 4 + 1 / 10)
    assert sampler.of(many).size == expected == 1350
    assert np.mean(sizes) == pytest.approx(expected, rel=0.05)
    cohort = sampler.sample(1, many, population, Streams(1, simulated=True))
    assert np.bincount(cohort.staleness)[[0, 3, 9]] == pytest.approx([2000, 1000, 1000], rel=0.1)
    assert cohort.divisor == 1350.0


def test_weights_are_those_of_fedbuff_and_never_above_one():
    sampler = Asynchronous(damping=0.5)
    cohort = sampler.sample(1, CLIENTS, EVERYBODY, Streams(0, key=bytes(32)))
    assert np.allclose(cohort.weights, 1 / np.sqrt(1 + cohort.staleness))
    assert {*cohort.staleness} == {0, 9}
    equal = Asynchronous().sample(1, CLIENTS, EVERYBODY, Streams(0, key=bytes(32)))
    assert equal.weights is None


def test_arrivals_are_the_clients_own_whatever_the_order():
    streams, sampler = Streams(0, key=bytes(32)), Asynchronous(separation=3, delays=(0, 4))
    names = np.arange(1, CLIENTS + 1) ** 3
    order = np.random.default_rng(0).permutation(CLIENTS)
    order[0] = order[1]  # another client's row in place of one that left
    here, delay = arrivals(sampler, 20, streams, Population(np.ones(CLIENTS), names))
    there, late = arrivals(sampler, 20, streams, Population(np.ones(CLIENTS), names[order]))
    assert np.array_equal(here[:, order], there)
    assert np.array_equal(delay[order], late)


@every_case(
    "keys, reason",
    [
        ({"separation": 3, "delays": (5, 4)}, "set cohort.separation to 5 or more"),
        ({"size": 7}, "3 arrivals per tick are expected of 30 clients"),
    ],
)
def test_contradicting_keys_are_refused(keys, reason):
    with pytest.raises(Refused, match=reason):
        Asynchronous(**keys).of(CLIENTS)


TICKS = ("cohort.sampler=asynchronous", "cohort.size=0", "cohort.separation=3")
LATE = (*TICKS, "cohort.delays=[0, 0, 2]", "cohort.damping=0.5")


def test_the_event_is_that_of_the_separation_alone():
    event = plan(small(*LATE)).event
    assert (event.release, event.relation) == (Separated(3, Gaussian(2.0)), ZERO_OUT)
    assert plan(small(*TICKS, "cohort.delays=[0, 40]")).event == event
    assert plan(small(*TICKS, "cohort.damping=0.5")).event == event


def test_correlated_noise_accepts_what_its_proof_covers():
    """Both sensitivities are proved for every pattern that keeps the separation."""
    banded = ("privacy.mechanism=banded", "privacy.bands=3")
    assert plan(small(*LATE, *banded)).event.release == Separated(3, Gaussian(2.0))
    with pytest.raises(Refused, match=r"cohort\.separation = 4 or more"):
        plan(small(*LATE, banded[0], "privacy.bands=4"))
    buffered = plan(small(*LATE, "privacy.mechanism=blt")).event.release
    assert isinstance(buffered, BufferedToeplitz)
    assert buffered.separation == 3


@every_case(
    "words, reason",
    [
        (("client.objective=scaffold", "data.setting=cross_silo"), "scaffold' keeps values"),
        (("client.objective=ditto", "data.setting=cross_silo"), "ditto' keeps values"),
        (("client.objective=fedfor",), "fedfor' computes from the model of one round"),
        (("client.objective=qfedavg", "privacy.mechanism=none"), "qfedavg' computes from"),
        (("client.objective=feddane",), "feddane' computes from the model of one round"),
        (("compression.name=random_mask",), "random_mask' encodes updates by values of one"),
        (("aggregation.rule=geometric_median",), "several uploads"),
        (("aggregation.rule=centered_clipping",), "an earlier aggregate"),
        (
            ("aggregation.rule=fltrust", "aggregation.root=20", "privacy.mechanism=none"),
            "relates rows to the current model",
        ),
        (("privacy.adaptive_clip=true",), "follows the norms of rows of one model"),
        (
            (
                "client.privacy.mechanism=dp_sgd",
                "client.privacy.noise_multiplier=1.0",
                "data.setting=cross_silo",
                "privacy.mechanism=none",
            ),
            "not proved for earlier models",
        ),
        (("data.sites=4", "data.site_partition=elsewhere"), "sites on other machines"),
    ],
)
def test_parts_without_a_proof_or_a_meaning_are_refused(words, reason):
    with pytest.raises(Refused, match=reason):
        plan(small(*LATE, *words))


def test_check_states_staleness_tiers_and_separation():
    shown = run("check", *(word for each in LATE for word in ("--set", each))).output
    shown = " ".join(shown.split())
    assert "staleness up to 2 rounds" in shown
    assert "tiers of delay 0, 0, 2" in shown
    assert "a client takes part at most once in 3 rounds" in shown
    assert "staleness" not in run("check", "--set", "cohort.sampler=full").output


def test_current_models_refuse_nothing_more():
    """A sampler without delays is cyclic sampling, for all parts."""
    assert plan(small(*TICKS, "cohort.delays=[0]", "client.objective=fedfor")).event.release


class Crash(BaseException):
    """The machine is gone: nothing after this point runs."""


def keep(config):
    return config


def crashed_at(monkeypatch, path, stop, *words):
    """Runs until the release of round `stop` is stored; returns the releases by round."""
    seen, real = {}, Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        seen[charge.round] = released[0].cpu().clone()
        if charge.round == stop:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", write)
        with pytest.raises(Crash):
            trained(path, *words)
    return seen


@pytest.mark.parametrize("mechanism", ["gaussian", "banded"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, mechanism):
    """Also between two checkpoints, and with rounds in between in which clients evaluate."""
    words = (*LATE, "run.randomness=seeded", "run.rounds=10", "run.checkpoint_every=4")
    words += (f"privacy.mechanism={mechanism}", "evaluation.by=clients", "evaluation.every=5")
    words += ("privacy.bands=3",) * (mechanism == "banded")
    trained(tmp_path / "whole", *words)
    for stop in (2, 7):
        crashed_at(monkeypatch, tmp_path / f"{stop}", stop, *words)
        resume(tmp_path / f"{stop}", keep)
        same_run(tmp_path / "whole", tmp_path / f"{stop}")


def test_a_resume_computes_the_earlier_models_again_from_releases(tmp_path, monkeypatch):
    words = (*LATE, "run.randomness=secret", "run.rounds=7", "run.checkpoint_every=4")
    words += ("server.optimizer=fedavg", "server.lr=1.0")
    seen = crashed_at(monkeypatch, tmp_path / "run", 6, *words)
    resume(tmp_path / "run", keep)
    earlier = model(tmp_path / "run")["earlier/models"]
    assert earlier.shape[0] == 2
    torch.testing.assert_close(earlier[0] - earlier[1], seen[6], rtol=0, atol=1e-6)
