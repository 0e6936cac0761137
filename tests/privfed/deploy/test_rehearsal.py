"""How long the largest cohort takes: rehearsed with made-up people, whoever is there."""

import builtins

import pytest
from hospitals import POLICY, hospitals
from lanes import every_case
from scipy import stats
from waiting import LONG

from privfed.deploy.site.policy import Code, Declined
from privfed.deploy.site.site_setup import largest_cohort, rehearsed_seconds, too_slow
from privfed.deploy.site.site_work import (
    SiteWork,
    flushed_denormals,
    flushes_denormals,
    questions_of_each_kind,
)
from privfed.privacy.noise.table_sampler import discrete_gaussian_table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("rehearsal") / "sites")


def accepted(made, *keys):
    declaration, _ = made.declaration(*keys)
    return made.member(0).accepted(declaration.text, declaration.examples, None)


@every_case("clients", [1, 7, 20, 500, 100_000])
def test_a_larger_cohort_has_a_probability_below_1e_12(made, clients):
    _, setup = accepted(made)
    rate, largest = setup.plan.cost.witness.rate, largest_cohort(setup, clients)
    assert 0 < rate < 1
    assert largest <= clients
    assert stats.binom.sf(largest, clients, rate) <= 1e-12
    if largest < clients:  # and not much larger than it has to be
        assert stats.binom.sf(largest - 2, clients, rate) > 1e-12


def test_where_everybody_is_drawn_all_that_are_stated_are_rehearsed(made):
    _, setup = accepted(made, "cohort.sampler=full", "cohort.size=0")
    assert largest_cohort(setup, 20) == 20


class Clock:
    """Each look at it takes a second more than the last."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 0.0

    def __call__(self):
        self.now += self.seconds
        return self.now


def test_seconds_are_those_of_all_chunks(made):
    """Two chunks are trained, and the others take as long."""
    table, setup = accepted(made, "cohort.sampler=full", "cohort.size=0", "run.chunk=2")
    assert rehearsed_seconds(0, setup, table, Clock(1.0)) == 5.0  # of 20 people, 4 at a time
    table = table.model_copy(update={"clients": 21})
    assert rehearsed_seconds(0, setup, table, Clock(1.0)) == 6.0


def test_the_slowest_exchange_counts(made):
    table, setup = accepted(made, "client.objective=feddane", "run.chunk=20")
    times = iter([0.0, 1.0, 5.0, 12.0])
    assert rehearsed_seconds(0, setup, table, lambda: next(times)) == 7.0


def test_nothing_of_the_table_is_read_for_it(made, monkeypatch):
    """A rehearsal trains as many rows, whoever is there: it never opens the table."""
    table, setup = accepted(made)
    trained = []
    row = SiteWork.row

    def noted(work, question):
        federation = work.setup.federation
        trained.append((federation.clients, len(federation.examples), work.all_clients))
        return row(work, question)

    opened = builtins.open

    def spying(file, *rest, **keys):
        assert "h0.csv" not in str(file)
        return opened(file, *rest, **keys)

    monkeypatch.setattr(SiteWork, "row", noted)
    monkeypatch.setattr(builtins, "open", spying)
    monkeypatch.setattr(type(setup.plan.config.source), "load", lambda *_: pytest.fail("read"))
    rehearsed_seconds(0, setup, table)
    made.table("h0").rename(made.table("away"))
    try:
        rehearsed_seconds(0, setup, table)
    finally:
        made.table("away").rename(made.table("h0"))
    population = min(largest_cohort(setup, 20), 2 * 8)
    assert trained == [(0, 0, True), (population, population * 5, True)] * 2


@pytest.mark.parametrize("sizing", ["layers", "minimum"])
def test_tables_of_noise_are_built_before_the_time_is_measured(made, sizing):
    """A table takes a second or more, and the first sum of a run would be late for it."""
    keys = ("privacy.mechanism=discrete_gaussian", f"privacy.sizing={sizing}")
    table, setup = accepted(made, *keys, "secure.threat=malicious")
    discrete_gaussian_table.cache_clear()
    built = []

    def clock():
        built.append(discrete_gaussian_table.cache_info().misses)
        return 0.0

    rehearsed_seconds(0, setup, table, clock)
    work = SiteWork(0, setup.over(setup.federation), all_clients=True)
    (question,) = questions_of_each_kind(setup)
    work.row(question)
    if (noise := work.layers(question)) is not None:
        noise.draw(3, noise.seeds(3), 4)
    built.append(discrete_gaussian_table.cache_info().misses)
    assert (noise is None) == (sizing == "minimum")
    assert built == [built[0]] * 3
    assert built[0] > 0


def test_a_rehearsal_leaves_denormals_flushed_in_an_agent_that_flushes_them(made):
    """An agent rehearses its last runs as it starts, in the thread that starts all others."""
    table, setup = accepted(made)
    with flushed_denormals():
        rehearsed_seconds(0, setup, table)
        assert flushes_denormals()
    rehearsed_seconds(0, setup, table)
    assert not flushes_denormals()


@every_case(
    ("rehearsed", "deadline", "fits"),
    [(1.0, 2.0, True), (1.0, 1.99, False), (0.1, 0.0, False), (0.0, 0.0, False), (1e-9, 1, True)],
)
def test_twice_the_rehearsed_time_has_to_fit(rehearsed, deadline, fits):
    refusal = too_slow(rehearsed, deadline)
    assert (refusal is None) == fits
    if refusal:
        assert refusal.code == Code.DEADLINE


def test_a_site_that_is_too_slow_declines_unless_simulations_are_allowed(made):
    folder = made.folder(0)
    declaration, _ = made.declaration("secure.deadline=0.000001")
    folder.policy.write_text(POLICY.replace("simulation = true", "simulation = false"))
    try:
        with pytest.raises(Declined) as declined:
            made.member(0).join(declaration)
        assert declined.value.code == Code.DEADLINE
        assert "largest cohort" in declined.value.refusal.reason
        enough, _ = made.declaration(f"secure.deadline={LONG}")
        made.member(0).join(enough)
    finally:
        folder.policy.write_text(POLICY)
    made.member(0).join(declaration)
