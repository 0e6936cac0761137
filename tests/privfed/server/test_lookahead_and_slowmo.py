"""Servers that look ahead, or count in the clients' rate, against their papers' algorithms."""

import pytest
import torch
from helpers import Rounds
from lanes import every_case
from small import small

from privfed.core.schedules import CONSTANT, Cosine, Staircase
from privfed.plan.plan import plan
from privfed.server.fedopt import FedAvg, FedAvgM
from privfed.server.lookahead import Lookahead, SlowMo

DELTAS = [0.5, -2.0, 0.3, 1.0, -0.7, 0.2, 0.9]


def path(server, deltas=DELTAS):
    """The models `[rounds]` of one coordinate that starts at 1."""
    params, models = torch.tensor([1.0], dtype=torch.float64), []
    state = server.init(params)
    for delta in deltas:
        params, state = server.step(params, torch.tensor([delta], dtype=torch.float64), state)
        models.append(float(params))
    return models


def test_lookahead_is_its_papers_algorithm():
    """Slow weights phi, and k inner steps with momentum from them, in plain Python."""
    lr, momentum, k, alpha = 0.4, 0.5, 3, 0.25
    phi, m, models = 1.0, 0.0, []
    for start in range(0, len(DELTAS), k):
        theta, deltas = phi, DELTAS[start : start + k]
        for delta in deltas:
            m = momentum * m + delta
            theta += lr * m
            models.append(theta)
        if len(deltas) == k:
            phi += alpha * (theta - phi)
            models[-1] = phi
    server = Lookahead(lr=lr, momentum=momentum, every=k, alpha=alpha)
    assert path(server) == pytest.approx(models)


@every_case(
    "server, same",
    [
        (Lookahead(lr=0.3, momentum=0.6, alpha=1.0), FedAvgM(lr=0.3, momentum=0.6)),
        (Lookahead(lr=0.3, momentum=0.0, alpha=0.5, every=1), FedAvg(lr=0.15)),
        (SlowMo(lr=0.3, momentum=0.6), FedAvgM(lr=0.3, momentum=0.6)),
        (SlowMo(lr=0.3, momentum=0.0), FedAvg(lr=0.3)),
    ],
    ids=["all the way", "half of every round", "no schedule", "no momentum"],
)
def test_in_these_limits_they_are_known_servers(server, same):
    assert path(server) == pytest.approx(path(same))


def test_lookahead_comes_back_from_where_it_looked():
    ahead = path(Lookahead(every=3, alpha=0.5), [1.0] * 6)
    assert ahead == [2.0, 3.0, 2.5, 3.5, 4.5, 4.0]


RATES = [Staircase(decay=0.5, every=2), Cosine(over=6)]


def moved(folder, server, client_schedule):
    """The models of `path`, as rounds make them under clients' rates that follow a schedule."""
    algorithm = Rounds(folder, server=server, client_schedule=client_schedule).algorithm
    params, models = torch.tensor([1.0], dtype=torch.float64), []
    state = server.init(params)
    for round, delta in enumerate(DELTAS, 1):
        change = torch.tensor([delta], dtype=torch.float64)
        params, state = algorithm.moved(round, params, change, state)
        models.append(float(params))
    return models


@pytest.mark.parametrize("rate", RATES, ids=["staircase", "to zero"])
def test_slowmo_is_its_papers_algorithm_whatever_the_clients_rate_is(tmp_path, rate):
    """With gamma_t = gamma * factor: gamma itself plays no part. At rate zero nobody moves."""
    alpha, beta = 0.8, 0.6
    for gamma in (0.1, 3.0):
        x, u, models = 1.0, 0.0, []
        for round, delta in enumerate(DELTAS, 1):
            gamma_t = gamma * rate.factor(round)
            u = beta * u + (-delta / gamma_t if gamma_t else 0.0)
            x -= alpha * gamma_t * u
            models.append(x)
        assert moved(tmp_path, SlowMo(lr=alpha, momentum=beta), rate) == pytest.approx(models)


def test_it_parts_from_fedavgm_where_rates_change_and_only_there(tmp_path):
    slow, fast = SlowMo(lr=0.8, momentum=0.6), FedAvgM(lr=0.8, momentum=0.6)
    assert moved(tmp_path, slow, CONSTANT) == pytest.approx(moved(tmp_path, fast, CONSTANT))
    ours, theirs = (moved(tmp_path, server, RATES[0]) for server in (slow, fast))
    assert ours[:2] == pytest.approx(theirs[:2])
    assert abs(ours[2] - theirs[2]) > 0.1, "the momentum of longer steps is shortened with them"


def test_a_plan_tells_the_server_the_clients_schedule():
    config = plan(small("server.optimizer=slowmo", "client.schedule=cosine", "client.over=9"))
    assert config.algorithm().client_schedule == Cosine(over=9)
