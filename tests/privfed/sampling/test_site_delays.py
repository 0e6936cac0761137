"""Sites with delays: their rounds, the models that they train, and the charge."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lanes import every_case
from small import small

from privfed.core.errors import Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.plan.plan import plan
from privfed.round.round import run_round
from privfed.run.prepare import prepare
from privfed.run.world import shared_world
from privfed.sampling.cohort import Cohort
from privfed.sampling.site_delays import SiteDelays, arrival

SITES = (
    "data.sites=3",
    "data.clients=24",
    "cohort.size=12",
    "secure.protocol=masks",
    "secure.simulate=arithmetic",
    "privacy.mechanism=skellam",
    "secure.deadline=5",
    "run.randomness=seeded",
)
LATE = (*SITES, "data.site_delays=[0,0,2]")


@given(st.integers(1, 60), st.integers(0, 7))
def test_rows_begin_once_for_each_round_to_which_a_site_contributes(rounds, delay):
    delays = SiteDelays((delay,))
    begun = {round: arrival(round, delay) for round in range(1, rounds + delay + 1)}
    due = [round for round in range(1, rounds + 1) if delays.contributing(round)[0]]
    starts = [round for round, later in begun.items() if later is not None and later <= rounds]
    assert [begun[start] for start in starts] == due
    assert [later - start for start, later in zip(starts, due, strict=True)] == [delay] * len(due)
    assert all(later < start for later, start in zip(due, starts[1:], strict=False))


class Books:
    def charge(self, round, event):
        return (round, event)

    def write(self, charge, released, state):
        pass


def cohorts(*keys, rounds=6):
    setup = prepare(small(*keys))
    population = setup.federation.population()
    return setup, [
        setup.algorithm.draw(round, population, setup.streams) for round in range(1, rounds + 1)
    ]


def test_a_late_site_has_the_clients_of_its_own_sample_in_every_third_round():
    setup, late = cohorts(*LATE)
    _, prompt = cohorts(*SITES)
    sites = setup.federation.sites
    for round, (cohort, before) in enumerate(zip(late, prompt, strict=True), start=1):
        expected = before.clients if round % 3 == 0 else before.clients[sites[before.clients] < 2]
        assert np.array_equal(cohort.clients, expected)
        assert np.array_equal(cohort.staleness, np.where(sites == 2, 2, 0))
        assert cohort.divisor == before.divisor


def test_late_rows_are_of_the_model_that_the_site_received():
    """Without fast sites, three rounds later the model is that of training at the first one."""
    setup = prepare(
        small(*LATE, "data.site_delays=[2,2,2]", "cohort.sampler=full", "cohort.size=0")
    )
    world = shared_world(setup, Books(), Books(), SINGLE_PROCESS)
    state = replace(setup.initial_state())
    seen = []
    chunks = type(setup.executor).chunks

    def watched(executor, exchange, cohort):
        seen.append((cohort.round, exchange.broadcast["params"].clone(), len(cohort.clients)))
        return chunks(executor, exchange, cohort)

    models = [state.params]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(setup.executor), "chunks", watched)
        for round in range(1, 7):
            state = run_round(round, setup.algorithm, state, world)
            models.append(state.params)
    trained = [(round, params) for round, params, count in seen if count]
    assert [round for round, _ in trained] == [3, 6]
    for round, params in trained:
        assert torch.equal(params, models[round - 3])
        assert not torch.equal(params, models[round - 1]), "noise alone moves the model meanwhile"


def test_rounds_are_charged_as_without_delays():
    late, prompt = prepare(small(*LATE)).plan, prepare(small(*SITES)).plan
    assert late.event == prompt.event
    assert late.spent == prompt.spent


def of_three_sites(round, delays):
    cohort = Cohort(round, np.arange(6), 6.0, None)
    return delays.contributors(cohort, np.array([0, 0, 1, 1, 2, 2])).clients.tolist()


def test_no_site_is_late_without_delays():
    assert of_three_sites(1, SiteDelays()) == [0, 1, 2, 3, 4, 5]
    assert of_three_sites(1, SiteDelays((0, 1, 2))) == [0, 1]
    assert of_three_sites(6, SiteDelays((0, 1, 2))) == [0, 1, 2, 3, 4, 5]


REFUSED = {
    "a delay for another number of sites": (
        ("data.site_delays=[0,1]",),
        "has 2 entries, but data.sites is 3",
    ),
    "clients as parties": (("secure.parties=clients",), "sites are not the parties"),
    "an objective of two exchanges": (("client.objective=feddane",), "the model of one round"),
    "two uploads": (("aggregation.rule=geometric_median",), "several uploads"),
    "an adaptive clip": (("privacy.adaptive_clip=true",), "privacy.adaptive_clip"),
    "compression": (("compression.name=low_rank",), "encodes updates by values of one round"),
    "a site that never has rows": (
        ("run.rounds=2", "run.evaluate_every=1"),
        "no rows in any round",
    ),
    "clients that evaluate": (
        ("evaluation.by=clients", "evaluation.every=2", "run.rounds=8"),
        "sites evaluate while they train",
    ),
}


def test_rows_that_are_rotated_by_their_round_are_refused():
    """A late row would be rotated by the signs of another round than its sum."""
    rotated = (*SITES, "secure.bits=8", "privacy.noise_multiplier=0.5")
    assert prepare(small(*rotated)).algorithm.mechanism.rotates
    assert not prepare(small(*SITES)).algorithm.mechanism.rotates
    with pytest.raises(Refused, match="rotated by signs of each round"):
        prepare(small(*rotated, "data.site_delays=[0,0,2]"))


@every_case("case", REFUSED)
def test_what_has_no_proof_with_delays_is_refused(case):
    words, reason = REFUSED[case]
    with pytest.raises(Refused, match=reason):
        plan(small(*LATE, *words))
