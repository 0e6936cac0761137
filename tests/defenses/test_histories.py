"""Rules that remember clients, by hand: over rounds, and against their papers in plain loops."""

import numpy as np
import pytest
import torch
from by_definition import foolsgold_weights
from lanes import every_case
from rules import NNM

from defenses.history import Histories
from defenses.on_rows.fldetector import FlDetector
from defenses.on_rows.foolsgold import FoolsGold
from defenses.quasi_newton import hessian_product
from defenses.two_groups import upper_group
from defenses.types import RowRule
from defenses.weighing import Composed, mixtures

RULES = {"foolsgold": FoolsGold(), "fldetector": FlDetector(window=2)}
named = pytest.mark.parametrize("name", RULES)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Server:
    """Rounds of a rule over n clients, all of whom return, and a model that adds up aggregates."""

    def __init__(self, rule, n, d, rate=1.0):
        self.rule, self.rate, self.model = rule, rate, torch.zeros(d, dtype=torch.float64)
        self.clients = torch.zeros(n, rule.keeps(d))
        self.run = rule.memory(self.model)
        self.round = 0

    def play(self, rows, byzantine=0, who=None):
        """The aggregate of `rows` `[m, d]` of clients `who` (default: of all of them)."""
        self.round += 1
        who = torch.arange(len(rows)) if who is None else torch.tensor(who).long()
        histories = Histories(self.clients[who], self.run, self.model)
        aggregate, remembered = self.rule.with_histories(
            rows, byzantine, histories, seeded(self.round)
        )
        self.clients[who] = remembered
        self.run = self.rule.memory_after(self.run, self.model, aggregate)
        self.model = self.model + self.rate * aggregate
        return aggregate


def sybils(seed, hidden, n=12, count=4, d=30):
    """Honest rows with directions of their own, and sybils: one direction, much noise of theirs."""
    generator = seeded(seed)
    directions = torch.randn(n - count, d, generator=seeded(99), dtype=torch.float64)
    aim = torch.randn(d, generator=seeded(98), dtype=torch.float64)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.cat([directions + 0.3 * noise[count:], aim + hidden * noise[:count]])


# FoolsGold


def test_foolsgold_weighs_by_sums_over_rounds():
    """By the letter, with each client's sum of updates in place of its update."""
    server, n, d = Server(FoolsGold(), 8, 5), 8, 5
    sums = np.zeros((n, d))
    for seed in range(4):
        rows = torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)
        sums += rows.numpy()
        aggregate = server.play(rows)
        np.testing.assert_allclose(aggregate, foolsgold_weights(sums) @ rows.numpy(), atol=1e-4)
    np.testing.assert_allclose(server.clients, sums, atol=1e-5)


def weight_of_sybils(rule, rounds, hidden):
    """How much of the sybils' part is in the aggregate of the last round: they add a mark."""
    server = Server(FoolsGold(), 12, 31)
    for seed in range(rounds):
        marks = torch.zeros(12, 1, dtype=torch.float64)
        marks[8:] = 1e-6
        rows = torch.cat([sybils(seed, hidden), marks], dim=1)
        aggregate = server.play(rows) if rule.history else rule(rows, 4)
    return float(aggregate[-1]) / 1e-6


def test_sybils_that_differ_in_every_round_are_caught_by_their_history_alone():
    """Each round's noise hides what they push for, and adds up to nothing."""
    alone = weight_of_sybils(FoolsGold(history=False), 40, hidden=3.0)
    remembered = weight_of_sybils(FoolsGold(), 40, hidden=3.0)
    assert alone > 0.25, "a third of the clients, weighed like others"
    assert remembered < 0.05


def test_foolsgold_without_a_history_keeps_nothing():
    rule, rows = FoolsGold(history=False), sybils(0, 1.0)
    assert rule.keeps(30) == 0
    assert rule.needs() == frozenset()
    assert torch.equal(rule(rows, 2), FoolsGold()(rows, 2)), "in round 1 they are one rule"


def test_a_history_that_was_pushed_to_the_end_of_numbers_keeps_its_direction():
    server = Server(FoolsGold(), 3, 2)
    rows = torch.tensor([[9e14, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    for _ in range(3):
        assert bool(server.play(rows).isfinite().all())
    assert server.clients[0].tolist() == pytest.approx([1e15, 0.0])


# FLDetector


def dense_bfgs(moves, changes):
    """BFGS updates of a full matrix, which start from sigma I."""
    sigma = changes[-1] @ moves[-1] / (moves[-1] @ moves[-1])
    b = sigma * np.eye(len(moves[0]))
    for s, y in zip(moves, changes, strict=True):
        b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(y, y) / (y @ s)
    return b


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_product_is_that_of_bfgs_updates_one_after_the_other(sign):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    moves = rng.normal(size=(4, 6))
    changes = sign * moves @ (root @ root.T + np.eye(6))
    vector = rng.normal(size=6)
    product = hessian_product(*map(torch.from_numpy, (moves, changes, vector))).numpy()
    np.testing.assert_allclose(product, dense_bfgs(moves, changes) @ vector, rtol=1e-8)
    secant = hessian_product(*map(torch.from_numpy, (moves, changes, moves[-1]))).numpy()
    np.testing.assert_allclose(secant, changes[-1], rtol=1e-8, err_msg="B s = y")


def test_moves_that_repeat_themselves_give_a_finite_product():
    moves = torch.ones(3, 4)
    assert bool(hessian_product(moves, 2 * moves, torch.ones(4)).isfinite().all())


def test_two_groups_are_found_exactly_and_one_is_left_alone():
    generator = seeded(1)
    far = torch.cat([torch.rand(20, generator=generator), 5 + torch.rand(6, generator=generator)])
    order = torch.randperm(26, generator=generator)
    assert upper_group(far[order], 20, generator).tolist() == (order >= 20).tolist()
    for seed in range(5):
        even = torch.rand(30, generator=seeded(seed), dtype=torch.float64)
        assert not upper_group(even, 20, generator).any(), "as uniform as the references"
    for few in (torch.tensor([1.0, 9.0]), torch.full((6,), 2.0)):
        assert not upper_group(few, 20, generator).any()


def test_two_means_are_the_best_of_all_cuts():
    for seed in range(20):
        values = torch.randn(9, generator=seeded(seed), dtype=torch.float64)
        values[:3] += 20
        ordered = np.sort(values.numpy())
        costs = [ordered[:c].var() * c + ordered[c:].var() * (9 - c) for c in range(1, 9)]
        wanted = values > float(ordered[int(np.argmin(costs))])
        assert torch.equal(upper_group(values, 20, seeded(seed)), wanted)


class Quadratics:
    """Clients with losses (w - c_i) A (w - c_i) / 2, and liars who send noise as long."""

    def __init__(self, n=12, byzantine=4, d=5):
        rng = np.random.default_rng(3)
        root = rng.normal(size=(d, d))
        self.a = torch.from_numpy(root @ root.T / d + np.eye(d))
        self.centers = torch.from_numpy(rng.normal(size=(n, d)))
        self.byzantine, self.rng = byzantine, rng

    def rows(self, model, lr=0.2):
        rows = -lr * (model - self.centers) @ self.a
        wild = torch.from_numpy(self.rng.normal(size=(self.byzantine, rows.shape[1])))
        scale = rows.norm(dim=1).median() / wild.norm(dim=1, keepdim=True)
        rows[: self.byzantine] = wild * scale
        return rows


def removed(server, d):
    return (server.clients[:, d + 1] > 0).tolist()


def test_fldetector_removes_who_contradict_themselves_for_good():
    problem, d, window = Quadratics(), 5, 3
    server = Server(FlDetector(window=window), 12, d)
    for round in range(1, 3 * window):
        rows = problem.rows(server.model)
        aggregate = server.play(rows, byzantine=4)
        if round < 2 * window + 1:
            assert not any(removed(server, d)), "nobody is judged before"
            left = rows
        else:
            assert removed(server, d) == [True] * 4 + [False] * 8
            left = rows[4:]
        np.testing.assert_allclose(aggregate, np.median(left.numpy(), axis=0), atol=1e-6)
    honest = problem.rows(server.model)
    with pytest.raises(ValueError, match="pass a generator"):
        FlDetector(window=window).with_histories(
            honest, 4, Histories(server.clients, server.run, server.model)
        )
    honest[:4] = honest[4:8]
    server.play(honest, byzantine=4)
    assert removed(server, d)[:4] == [True] * 4, "whatever they send later"


@every_case("byzantine", [0, 1, 8])
def test_with_nobody_attacking_no_more_than_byzantine_are_ever_out(byzantine):
    """Gap statistics find two groups again and again; the published test removes all but a few."""
    n, d = 40, 30
    problem, spread = (
        Quadratics(n, byzantine=0, d=d),
        torch.linspace(0.5, 1.5, n, dtype=torch.float64),
    )
    server = Server(FlDetector(window=3), n, d, rate=0.1)
    problem.centers[:] = 0.0
    for _ in range(60):
        noise = spread[:, None] * torch.from_numpy(problem.rng.normal(size=(n, d)))
        server.play(problem.rows(server.model) + noise, byzantine=byzantine)
    assert sum(removed(server, d)) == byzantine


def test_of_a_cohort_no_more_than_byzantine_are_left_out_whoever_was_removed_before():
    """Others were removed in other cohorts; those of the highest scores stay out."""
    d = 2
    server = Server(FlDetector(window=2), 5, d)
    server.clients[:, d + 1] = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    server.clients[:, d + 3] = torch.tensor([3.0, 1.0, 5.0, 9.0, 0.0])
    rows = torch.tensor([[90.0, 0], [1.0, 0], [70.0, 0], [2.0, 0], [3.0, 0]], dtype=torch.float64)
    assert server.play(rows, byzantine=2)[0] == 2.0
    server.clients[:3, d + 3] = 5.0
    assert server.play(rows, byzantine=2)[0] == 3.0, "of those who tie nobody's place decides"


def test_a_cohort_of_more_removed_ones_than_byzantine_is_judged_on():
    """None of it is removed any more, whether there are suspects or none."""
    n, d = 12, 5
    problem, server = Quadratics(n, d=d), Server(FlDetector(window=2), n, d)
    server.clients[8:, d + 1] = 1.0
    for _ in range(8):
        assert bool(server.play(problem.rows(server.model), byzantine=1).isfinite().all())
    assert removed(server, d) == [False] * 8 + [True] * 4


def test_fldetectors_scores_are_its_papers():
    """Each round's distance from the prediction, over the mean of these; written out in full."""
    problem, n, d, window = Quadratics(), 12, 5, 3
    server = Server(FlDetector(window=window), n, d)
    models, aggregates, sent, scores = [], [], [], []
    for round in range(2 * window + 1):
        models.append(server.model.numpy().copy())
        rows = problem.rows(server.model)
        if round > window:
            moves = np.diff(models, axis=0)[-window - 1 : -1]
            changes = np.diff(aggregates, axis=0)[-window:]
            predicted = sent[-1] + dense_bfgs(moves, changes) @ (models[-1] - models[-2])
            distances = np.linalg.norm(rows.numpy() - predicted, axis=1)
            scores.append(distances / distances.mean())
        sent.append(rows.numpy().copy())
        aggregates.append(server.play(rows).numpy())
    remembered = server.clients[:, d + 3 :].flip(1).T
    np.testing.assert_allclose(remembered, np.array(scores[-window:]), rtol=2e-3)


def test_who_was_away_is_not_predicted_and_a_broken_row_is_not_remembered():
    problem, d = Quadratics(byzantine=0), 5
    server = Server(FlDetector(window=2), 12, d)
    everybody = list(range(12))
    for _ in range(5):
        server.play(problem.rows(server.model))
    before = server.clients.clone()
    rows = problem.rows(server.model)
    rows[1] = torch.nan
    server.play(rows[1:], who=everybody[1:])
    assert torch.equal(server.clients[:2], before[:2]), "away, and broken"
    scored = server.clients[:, d + 3].clone()
    server.play(problem.rows(server.model))
    assert torch.equal(server.clients[:2, d + 3], scored[:2]), "nothing of the round before"
    assert not torch.equal(server.clients[2:, d + 3], scored[2:])


# what holds for each


@named
def test_a_rule_is_a_pure_function_of_what_it_is_given(name):
    rule, rows = RULES[name], sybils(0, 1.0)
    server = Server(rule, 12, 30)
    for seed in range(6):
        server.play(sybils(seed, 1.0))
    histories = Histories(server.clients, server.run, server.model)
    before = (server.clients.clone(), {key: value.clone() for key, value in server.run.items()})
    first = rule.with_histories(rows, 2, histories, seeded(0))
    again = rule.with_histories(rows, 2, histories, seeded(0))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(histories.clients, before[0])
    assert all(torch.equal(histories.run[key], before[1][key]) for key in before[1])
    tried = rule(rows, 2, histories=histories, generator=seeded(0))
    assert torch.equal(tried, first[0]), "as an attacker tries it"


@named
def test_the_order_of_clients_does_not_matter_and_their_histories_go_with_them(name):
    rule = RULES[name]
    server = Server(rule, 12, 30)
    for seed in range(6):
        server.play(sybils(seed, 1.0))
    rows, order = sybils(9, 1.0), torch.randperm(12, generator=seeded(4))
    histories = Histories(server.clients, server.run, server.model)
    turned = Histories(server.clients[order], server.run, server.model)
    aggregate, remembered = rule.with_histories(rows, 2, histories, seeded(0))
    other, others = rule.with_histories(rows[order], 2, turned, seeded(0))
    torch.testing.assert_close(other, aggregate)
    torch.testing.assert_close(others, remembered[order])


@named
def test_broken_rows_are_left_out_and_nobody_left_is_nothing(name):
    rule = RULES[name]
    server = Server(rule, 3, 2)
    rows = torch.tensor([[1.0, 2.0], [3.0, -4.0], [torch.inf, 0.0]], dtype=torch.float64)
    expected = Server(rule, 2, 2).play(rows[:2])
    torch.testing.assert_close(server.play(rows), expected)
    assert server.play(torch.full((3, 2), torch.nan, dtype=torch.float64)).tolist() == [0.0, 0.0]
    assert server.play(torch.zeros(0, 2, dtype=torch.float64), who=[]).tolist() == [0.0, 0.0]
    assert bool(server.clients.isfinite().all())


@named
def test_mixtures_are_nobodys_and_have_no_history(name):
    rule, rows = Composed(before=(NNM,), rule=RULES[name]), sybils(0, 1.0)
    assert "histories" not in rule.needs()
    expected = RULES[name](mixtures(rows, 2, (NNM,)), 2, generator=seeded())
    torch.testing.assert_close(rule(rows, 2, generator=seeded()), expected)


@named
def test_what_a_rule_keeps_is_as_wide_as_it_says(name):
    rule = RULES[name]
    assert isinstance(rule, RowRule)
    server = Server(rule, 12, 30)
    server.play(sybils(0, 1.0))
    assert server.clients.shape == (12, rule.keeps(30))
    assert "histories" in rule.needs()
    forms = {key: (value.shape, value.dtype) for key, value in rule.memory(server.model).items()}
    assert {key: (value.shape, value.dtype) for key, value in server.run.items()} == forms
