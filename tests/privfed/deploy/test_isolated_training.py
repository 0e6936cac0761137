"""A client whose training fails contributes zero, and the others what they would without it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from faulty_loopback import DescriptionRequest, Watched
from hospitals import hospitals
from lanes import every_case

from privfed.deploy.messages.envelope import Reply, read_answer
from privfed.deploy.site import site_work
from privfed.deploy.site.site_work import IsolatedTraining, SiteWork, questions_of_each_kind

EVERYBODY = ("cohort.sampler=full", "cohort.size=0")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("isolated") / "sites", patients=36)


@dataclass(frozen=True)
class Failing:
    """An executor whose training fails for the clients `bad`, wherever they stand in a chunk."""

    executor: Any
    bad: frozenset[int]

    def __getattr__(self, name):
        return getattr(self.executor, name)

    def chunks(self, exchange, cohort):
        for chunk in self.executor.chunks(exchange, cohort):
            if self.bad & {*chunk.ids.tolist()}:
                raise RuntimeError("patient p17 has 3 rows")
            yield chunk


def rows_of(executor, exchange, cohort):
    return {
        int(client): (row, weight)
        for chunk in executor.chunks(exchange, cohort)
        for client, row, weight in zip(chunk.ids, chunk.rows, chunk.weights, strict=True)
    }


@pytest.fixture(scope="module")
def training(made):
    """An executor over a site's people, a question, and all of them as a cohort."""
    declaration, _ = made.declaration(*EVERYBODY)
    party = made.member(0).join(declaration)
    setup = party.work.setup
    (question,) = questions_of_each_kind(setup)
    cohort = SiteWork(0, setup, all_clients=True)._all_clients(question)
    executor = replace(setup.executor, chunk=5)
    return executor, question.exchange, cohort


@every_case("bad", [{0}, {11}, {3, 4}, {0, 2, 5, 7, 11}, {*range(12)}])
def test_exactly_those_who_fail_count_zero(training, bad):
    executor, exchange, cohort = training
    assert len(cohort.clients) == 12
    healthy = rows_of(IsolatedTraining(executor), exchange, cohort)
    failed = rows_of(IsolatedTraining(Failing(executor, frozenset(bad))), exchange, cohort)
    assert {*failed} == {*healthy} == {*range(12)}
    for client in range(12):
        (row, weight), (before, before_weight) = failed[client], healthy[client]
        assert row.shape == before.shape
        assert row.dtype == before.dtype
        if client in bad:
            assert not row.any()
            assert not weight
        else:
            assert torch.equal(row, before)
            assert weight == before_weight
            assert before.any()


def test_isolation_changes_nothing_where_nobody_fails(training):
    executor, exchange, cohort = training
    bare, isolated = (rows_of(each, exchange, cohort) for each in (executor, isolating(executor)))
    assert all(torch.equal(bare[client][0], isolated[client][0]) for client in range(12))


def isolating(executor):
    return IsolatedTraining(executor)


def test_what_fails_is_in_the_sites_log_alone(training, caplog):
    executor, exchange, cohort = training
    rows_of(IsolatedTraining(Failing(executor, frozenset({3}))), exchange, cohort)
    assert "p17" in caplog.text
    assert {record.name for record in caplog.records} == {IsolatedTraining.__module__}


def answers_of_a_round(made, begun=lambda: None):
    """How site 0 answers each message of a round, and how long it is; sites have joined before."""
    seen = []

    def ask(site, number, data):
        begun()
        answer = agents[site].answer(data)
        if site == 0:
            seen.append((read_answer(answer)[0], len(answer)))
        return answer

    agents = [made.agent(site) for site in range(made.count)]
    asking = DescriptionRequest(made, Watched([agent.answer for agent in agents], ask), *EVERYBODY)
    try:
        asking.play()
    except Exception:
        assert seen[-1][0] != Reply.ANSWERED
    return seen


def test_a_site_answers_as_ever_where_a_clients_training_fails(made, monkeypatch):
    def failing(executor):
        return IsolatedTraining(Failing(executor, frozenset({3})))

    before = answers_of_a_round(made)

    def begun():
        monkeypatch.setattr(site_work, "IsolatedTraining", failing)

    assert answers_of_a_round(made, begun) == before


def test_without_isolation_its_answer_would_fail(made, monkeypatch):
    """So that the test before would see it."""

    def bare(executor):
        return Failing(executor, frozenset({3}))

    def begun():
        monkeypatch.setattr(site_work, "IsolatedTraining", bare)

    assert answers_of_a_round(made, begun)[2] == (Reply.FAILED, 1)


def test_rows_that_are_not_finite_change_no_answer(made, monkeypatch):
    """They are no failure of training: whoever bounds them makes them zero."""

    @dataclass(frozen=True)
    class Exploding(Failing):
        def chunks(self, exchange, cohort):
            for chunk in self.executor.chunks(exchange, cohort):
                rows = chunk.rows.clone()
                rows[np.isin(chunk.ids, [*self.bad])] = float("nan")
                yield replace(chunk, rows=rows)

    def exploding(executor):
        return IsolatedTraining(Exploding(executor, frozenset({3})))

    before = answers_of_a_round(made)

    def begun():
        monkeypatch.setattr(site_work, "IsolatedTraining", exploding)

    assert answers_of_a_round(made, begun) == before
