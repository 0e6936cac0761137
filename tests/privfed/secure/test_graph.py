"""The graph of a masked sum: its conditions, its thresholds, and what is promised with it."""

from contextlib import suppress
from math import comb, floor, log2

import numpy as np
import pytest
from lanes import every_case
from scipy import stats

from privfed.core.errors import Refused
from privfed.secure.limits import Limits
from privfed.secure.masked.circle import neighbours
from privfed.secure.masked.graph import recoverable
from privfed.secure.masked.policy import Policy
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted


@every_case("clients", [2, 3, 4, 10, 57, 200])
@every_case("threshold, colluders", [(0.6, 0.1), (0.67, 0.0), (0.9, 0.3), (1.0, 0.5)])
def test_thresholds_of_the_complete_graph(clients, threshold, colluders):
    policy, corrupt = Policy(threshold, colluders, "malicious"), int(colluders * clients + 1e-9)
    if corrupt + 2 > clients:
        with pytest.raises(Aborted, match="the number that may collude"):
            policy.graph(clients)
        return
    graph = policy.graph(clients)
    assert graph.complete
    assert corrupt + 2 <= graph.threshold <= clients
    assert 2 * graph.threshold > clients + corrupt
    assert graph.threshold >= threshold * clients - 1e-9


@every_case("clients", [201, 333, 600])
@every_case("threshold, colluders", [(0.6, 0.1), (0.9, 0.05), (2 / 3, 1 / 3)])
def test_a_sparse_graph_is_the_smallest_that_keeps_the_four_conditions(
    clients, threshold, colluders
):
    """Bell et al. 2020, by SciPy's own distributions and exact factorials."""
    graph = Policy(threshold, colluders, "curious").graph(clients)
    a, d = floor(colluders * clients + 1e-9), floor((1 - threshold) * clients + 1e-9)

    def kept(k):
        cut = clients * (clients - k - 1) / 2 * comb(a + d, k) / comb(clients, k)
        if cut and log2(cut) >= -41:
            return None
        x = np.arange(k + 1)
        over = stats.hypergeom.sf(x, clients, a, k)
        under = stats.hypergeom.cdf(x - 1, clients, clients - d, k)
        t1 = x[over <= 2.0**-41 / clients][0]
        t2 = x[under <= 2.0**-20 / clients][-1]
        return max(int(t1) + 1, 2) if t1 < t2 else None

    smallest = next(k for k in range(2, clients, 2) if kept(k))
    assert (graph.degree, graph.threshold) == (smallest, kept(smallest))


@every_case("threat", ["curious", "malicious"])
@every_case("byzantine", [0, 15, 60])
def test_of_no_honest_clients_neighbours_do_more_lie(threat, byzantine):
    """Who colludes opens nothing, as thresholds see to; with hostile clients there may be more."""
    graph, corrupt = Policy(0.7, 0.1, threat, size=300).graph(300), 30
    most = graph.byzantine_holders(corrupt + byzantine)
    others, rate = graph.trials
    more = (
        stats.hypergeom.sf(most, 299, corrupt + byzantine, others)
        if rate == 1
        else stats.binom.sf(most, corrupt + byzantine, rate)
    )
    assert 300 * more <= 2.0**-40
    assert (most < graph.threshold) == (byzantine == 0)


def test_all_liars_hold_shares_on_the_complete_graph():
    assert Policy(0.6, 0.1, "curious").graph(10).byzantine_holders(7) == 7


def test_everybody_is_a_neighbour_of_its_neighbours_and_has_as_many():
    clients = tuple(range(5, 60))
    near = {who: neighbours(b"s" * 32, clients, 8, who) for who in clients}
    assert all(len(others) == 8 and me not in others for me, others in near.items())
    assert all(me in near[other] for me in clients for other in near[me])
    assert any(neighbours(b"t" * 32, clients, 8, who) != near[who] for who in clients)


@every_case(
    "keys, said",
    [
        ({"threshold": 0.1, "colluders": 0.2}, "would suffice to unmask"),
        ({"threshold": 0.5, "threat": "malicious"}, "expected more than"),
        ({"neighbours": 20, "threat": "malicious"}, "no proof against a malicious server"),
        ({"neighbours": 7}, "even number"),
    ],
)
def test_keys_without_a_proof_are_refused(keys, said):
    with pytest.raises(Refused, match=said):
        MaskedSums(**keys).over(Limits(100))


def test_too_few_neighbours_abort():
    with pytest.raises(Aborted, match="neighbours is 4"):
        MaskedSums(neighbours=4).policy(300).graph(300)


def test_a_made_up_small_cohort_is_refused_by_everybody():
    """Of a victim and a colluder, say: clients know how many are expected."""
    small, large = Policy(0.6, 0.1, "malicious"), Policy(0.6, 0.1, "malicious", size=20)
    assert small.graph(2).threshold == 2
    for clients in (2, 11):
        with pytest.raises(Aborted, match="for the expected cohort"):
            large.graph(clients)
    assert large.graph(12).threshold >= 2 + large.corrupt(12) == 4


def test_the_share_of_survivors_is_kept_on_sparse_graphs_too():
    """Else a neighbourhood of survivors that is cut off would be a sum of its own."""
    policy = Policy(0.9, 0.0, "curious", size=300)
    graph = policy.graph(300)
    assert not graph.complete
    assert graph.survivors == 270
    near = {me: neighbours(b"s" * 32, tuple(range(300)), graph.degree, me) for me in range(300)}
    everybody = set(range(300))
    assert recoverable(graph, near, everybody, set(range(270)) | set(range(270, 300)))
    assert not recoverable(graph, near, everybody, set(range(0, 300, 2)))
    abort_probability = (
        MaskedSums(threshold=0.9, colluders=0.0).over(Limits(300, size=300)).abort_probability
    )
    assert abort_probability(300, 0.5) == 1.0


@every_case("threat", ["curious", "malicious"])
@every_case(
    "clients, colluders", [(3, 0.34), (5, 0.2), (10, 0.1), (150, 0.1), (300, 0.1), (10, 0.4)]
)
def test_safety_from_lies_is_promised_where_it_is_proved(threat, clients, colluders):
    """In whole clients, for every cohort that clients would accept."""
    part = MaskedSums(threshold=0.6, colluders=colluders, threat=threat)
    policy = part.policy(clients)
    graphs = []
    for count in range(2, clients + 1):
        with suppress(Aborted):
            graphs.append(policy.graph(count))
    if not graphs or graphs[-1].clients != clients:
        with pytest.raises(Aborted, match="withstands a malicious server"):
            part.promise(clients)
        return
    corrupt = floor(colluders * clients + 1e-9)
    assert corrupt >= 1
    proved = all(
        g.independent or (g.complete and 2 * g.threshold > g.clients + corrupt) for g in graphs
    )
    said = part.promise(clients)
    assert ("even if it is malicious" in said) == proved
    assert ("if it follows the protocol" in said) != proved
    assert f"at most {corrupt} of them" in said


def test_five_of_whom_one_colludes_are_promised_nothing_against_lies():
    """Three give a secret back: 6 > 6 is false; and a lying server unmasks one of them."""
    part = MaskedSums(threshold=0.6, colluders=0.2)
    assert part.policy(5).graph(5).threshold == 3
    assert "if it follows the protocol" in part.promise(5)
    assert "even if it is malicious" in MaskedSums(threshold=0.8, colluders=0.2).promise(5)


def test_a_server_that_may_draw_more_than_the_complete_graph_has_no_promise_if_it_lies():
    part = MaskedSums()
    assert "even if it is malicious" in part.promise(150, Limits(200, size=150))
    assert "if it follows the protocol" in part.promise(150, Limits(600, size=150))
    assert "at least 600 of 1000 clients have to survive" in part.promise(1000)
    said = MaskedSums(threat="malicious").promise(500)
    assert "at least 303 of 500 clients have to survive (and 51 of each client's about" in said
    assert "even if it is malicious" in said
    assert MaskedSums(threat="malicious").policy(500, layered=True).graph(500).complete
