"""The random graph: its parameters, the bounds behind them, and what a circle would give away."""

import itertools
import math

import numpy as np
from lanes import every_case
from scipy import stats
from sets_of_clients import closed_parts, cut_off

from privfed.secure.masked import circle
from privfed.secure.masked.graph import RandomGraph
from privfed.secure.masked.policy import Policy
from privfed.secure.masked.random_graph import (
    _keeps,
    edge_key,
    log_at_least,
    log_isolated,
    log_split,
    log_surrounded,
    partners,
    sparsest_shape,
)

CASES = [
    (clients, round(part * clients), round((1 - stay) * clients))
    for clients in (300, 1000, 5000)
    for part, stay in ((0.05, 0.9), (0.1, 0.6), (0.2, 0.75))
]


@every_case("clients, corrupt, lost", CASES)
def test_a_shape_keeps_its_promises_by_exact_binomials(clients, corrupt, lost):
    """What Chernoff's inequality bounds, SciPy computes; and one neighbour less does not do."""
    shape = sparsest_shape(clients, corrupt, lost)
    p, t, v = shape.degree / (clients - 1), shape.threshold, shape.votes - corrupt
    assert 2 * shape.votes > clients + corrupt
    assert shape.votes - shape.isolated >= clients - lost
    assert not _keeps(clients, corrupt, lost, shape.degree - 1)
    assert clients * stats.binom.cdf(t - 1, clients - 1 - lost, p) <= 2.0**-20
    assert (clients - corrupt) * stats.binom.sf(t - 1, corrupt, p) <= 2.0**-120
    honest = clients - corrupt
    for w in range(shape.isolated + 1, 40):
        ways = math.log(math.comb(honest, w))
        apart = stats.binom.logsf(max(w, v - w) - 1, honest - w, (1 - p) ** w)
        assert ways + apart <= -120 * math.log(2)
    split = np.logaddexp.reduce(log_split(clients, corrupt, shape.votes, p, t))
    assert split <= -120 * math.log(2)


@every_case("clients, corrupt, lost", [(30, 3, 9), (400, 150, 160), (300, 0, 299)])
def test_there_is_no_shape_where_the_complete_graph_asks_for_less(clients, corrupt, lost):
    assert sparsest_shape(clients, corrupt, lost) is None


def test_chernoff_bounds_a_binomial_from_above():
    n, p = np.array([5.0, 40, 900])[:, None, None], np.array([0.02, 0.3, 0.9])[None, :, None]
    count = np.array([0.0, 1, 5, 30, 300, 900])
    exact = stats.binom.logsf(count - 1, n, p)
    bound = log_at_least(n, p, count)
    assert (bound >= exact - 1e-9).all()
    small = (exact > -600) & (exact < -20)
    assert (bound[small] <= 0.5 * exact[small]).all(), "and not by much"


def every_graph(clients, corrupt):
    """All graphs of so many clients `[graphs, clients, clients]`, and how many edges each has.

    Colluders are the last; edges between two of them say nothing.
    """
    honest = clients - corrupt
    pairs = [(u, v) for u, v in itertools.combinations(range(clients), 2) if u < honest]
    edges = (np.arange(1 << len(pairs))[:, None] >> np.arange(len(pairs))) & 1
    near = np.zeros((len(edges), clients, clients), dtype=bool)
    for at, (u, v) in enumerate(pairs):
        near[:, u, v] = near[:, v, u] = edges[:, at] == 1
    return near, edges.sum(1), len(pairs)


@every_case("clients, corrupt, votes", [(6, 1, 5), (6, 1, 6), (5, 0, 4), (6, 2, 6)])
def test_bounds_hold_of_all_graphs_of_a_few_clients(clients, corrupt, votes):
    """By the probability of each graph, and of each all sets of voters."""
    near, edges, pairs = every_graph(clients, corrupt)
    honest = clients - corrupt
    apart = cut_off(near, honest, votes - corrupt)
    informative = 0
    for t in (1, 2, 3):
        closed = closed_parts(near, honest, votes - corrupt, t)
        around = (near[:, :honest, honest:].sum(2) >= t).any(1)
        for p in (0.1, 0.3, 0.5, 0.7, 0.9):
            chance = p**edges * (1 - p) ** (pairs - edges)
            split = np.exp(log_split(clients, corrupt, votes, p, t))
            isolated = np.exp(log_isolated(clients, corrupt, votes, p))
            for size in range(1, honest // 2 + 1):
                assert chance[closed[:, size - 1]].sum() <= split[size - 1] + 1e-12
                assert chance[apart[:, size - 1]].sum() <= isolated[size - 1] + 1e-12
                informative += chance[closed[:, size - 1]].sum() > 0 and split[size - 1] < 0.9
            if corrupt:
                surrounded = math.exp(log_surrounded(clients, corrupt, p, t))
                assert chance[around].sum() <= surrounded + 1e-12
    assert informative > 0


def test_edges_are_of_both_ends_by_the_roster_and_as_many_as_they_should_be():
    clients = tuple(range(3, 3 + 7 * 400, 7))
    key, degree = edge_key(b"a" * 32), 60
    near = {who: partners(key, clients, degree, who) for who in clients}
    assert all(
        who not in others and who in near[other] for who, others in near.items() for other in others
    )
    found = sum(map(len, near.values())) / 2
    edges = stats.binom(400 * 399 // 2, degree / 399)
    assert edges.cdf(found) > 1e-6 < edges.sf(found)
    other = {who: partners(edge_key(b"b" * 32), clients, degree, who) for who in clients}
    alike = sum(len(set(near[who]) & set(other[who])) for who in clients) / 2
    assert stats.binom(int(found), degree / 399).sf(alike) > 1e-6


def test_everybody_keeps_enough_neighbours_when_as_many_drop_out_as_may():
    shape, rng = sparsest_shape(600, 60, 240), np.random.default_rng(5)
    for draw in range(8):
        key = edge_key(bytes([draw]) * 32)
        left = set(rng.permutation(600)[:360].tolist())
        near = (partners(key, tuple(range(600)), shape.degree, who) for who in range(600))
        assert min(len(left & set(others)) for others in near) >= shape.threshold


def test_a_policy_takes_it_above_200_clients_against_lies_and_without_layers():
    graph = Policy(0.75, 0.1, "malicious").graph(1000)
    shape = sparsest_shape(1000, 100, 250)
    assert graph == RandomGraph(1000, shape.degree, shape.threshold, shape.votes, shape.isolated)
    assert graph.resists_malicious_server(100)
    assert not graph.complete
    assert graph.votes(2) == graph.survivors == 750 + graph.isolated
    assert graph.votes(800) == 800 + graph.isolated
    assert Policy(0.75, 0.1, "malicious", layered=True).graph(1000).complete
    assert Policy(0.75, 0.1, "malicious").graph(200).complete
    assert not Policy(0.75, 0.1, "curious").graph(1000).independent


def test_on_a_circle_an_arc_is_a_sum_of_its_own_though_everybody_keeps_enough_neighbours():
    """With the same threshold and degree, and a hundred of a thousand gone: the ends of the arc."""
    shape = sparsest_shape(1000, 100, 400)
    clients, degree = tuple(range(1000)), shape.degree // 2 * 2
    near = {me: circle.neighbours(bytes(32), clients, degree, me) for me in clients}
    ordered, _ = circle._circle(bytes(32), clients)
    reach, size = degree // 2, shape.threshold + 1
    arc, gone = set(ordered[:size]), {*ordered[-reach:], *ordered[size : size + reach]}
    rest = set(clients) - arc - gone
    assert len(arc | rest) >= shape.votes, "more vote than are needed"
    assert all(len(arc & set(near[who])) >= shape.threshold for who in arc)
    assert not any(rest & set(near[who]) for who in arc)
    assert all(len((arc | rest) & set(near[who])) >= shape.threshold for who in arc | rest)
