"""Server optimizers and local objectives against their papers' formulas."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.runs import choosing, declaring
from helpers import Rounds, Seen, population, set_fields, trainer
from lanes import every_case
from small import model, same_run, small, trained

from privfed.client.batches import plan_batches
from privfed.client.objective import Cohorts, Sgd
from privfed.client.objectives.feddane import FedDane
from privfed.client.objectives.fedfor import FedFor
from privfed.client.objectives.fedlin import FedLin
from privfed.client.objectives.fednova import FedNova
from privfed.client.objectives.fedprox import AdaptiveFedProx, FedProx
from privfed.client.objectives.mime import Mime, MimeLite
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.core.schedules import Cosine, Staircase, WarmUp
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.plan.plan import plan
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.round import play, run_round
from privfed.run.check import check
from privfed.run.train import resume
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import Poisson
from privfed.server.fedopt import FedAdagrad, FedAdam, FedAvg, FedYogi

DELTAS = ([0.5, -2.0], [0.1, 0.0], [-0.3, 1.0])


def three_steps(server):
    params = torch.tensor([1.0, -1.0], dtype=torch.float64)
    state = server.init(params)
    for delta in DELTAS:
        params, state = server.step(params, torch.tensor(delta, dtype=torch.float64), state)
    return params, state


def by_hand(kind, lr, beta1, beta2, tau):
    """The paper's Algorithm 2, one coordinate after the other, in plain Python."""
    out = []
    for coordinate, x in enumerate((1.0, -1.0)):
        m, v = 0.0, tau**2
        for delta in DELTAS:
            d = delta[coordinate]
            m = beta1 * m + (1 - beta1) * d
            if kind == "adagrad":
                v = v + d**2
            elif kind == "adam":
                v = beta2 * v + (1 - beta2) * d**2
            else:
                v = v - (1 - beta2) * d**2 * math.copysign(1.0, v - d**2) * (v != d**2)
            x = x + lr * m / (math.sqrt(v) + tau)
        out.append(x)
    return out


@every_case(
    "server, kind, beta1, beta2",
    [
        (FedAdagrad(lr=0.3, tau=0.01), "adagrad", 0.0, 0.0),
        (FedAdagrad(lr=0.3, tau=0.01, beta1=0.5), "adagrad", 0.5, 0.0),
        (FedAdam(lr=0.3, tau=0.01, beta1=0.8, beta2=0.7), "adam", 0.8, 0.7),
        (FedYogi(lr=0.3, tau=0.01, beta1=0.8, beta2=0.7), "yogi", 0.8, 0.7),
    ],
)
def test_three_steps_by_hand(server, kind, beta1, beta2):
    params, state = three_steps(server)
    assert params.tolist() == pytest.approx(by_hand(kind, 0.3, beta1, beta2, 0.01), rel=1e-12)
    assert (state["variance"] > 0).all()


@every_case("server", [FedAdagrad(), FedAdam(beta2=1 - 1e-9), FedYogi()])
def test_with_a_large_tau_adaptive_servers_are_plain_averaging(server):
    """m / (sqrt(v) + tau) tends to m / (2 tau), sqrt(v) staying at tau: lr scaled by 2 tau."""
    tau = 1e6
    changes = {"lr": 0.3 * 2 * tau, "tau": tau, "beta1": 0.0}
    params, _ = three_steps(server.model_copy(update=changes))
    average, _ = three_steps(FedAvg(lr=0.3))
    torch.testing.assert_close(params, average, rtol=1e-5, atol=1e-5)


def test_schedules():
    steps = Staircase(decay=0.1, every=500)
    assert [steps.factor(t) for t in (1, 500, 501, 1000, 1001)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )
    assert [WarmUp(warmup=4).factor(t) for t in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    cosine = Cosine(over=10)
    assert [cosine.factor(t) for t in (1, 6, 11, 99)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_schedules_set_both_rates_round_by_round(tmp_path):
    settings = ["run.randomness=seeded", "privacy.mechanism=none", "server.optimizer=fedavg"]

    def moved(*overrides, rounds):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        trained(path, *settings, *overrides, f"run.rounds={rounds}")
        return model(path)["model/1.weight"]

    stopped = moved("server.schedule=staircase", "server.decay=1e-9", "server.every=2", rounds=6)
    torch.testing.assert_close(stopped, moved(rounds=2), atol=1e-6, rtol=1e-5)
    still = moved("client.schedule=staircase", "client.decay=1e-9", "client.every=2", rounds=6)
    torch.testing.assert_close(still, moved(rounds=2), atol=1e-6, rtol=1e-5)
    half = moved("server.schedule=warmup", "server.warmup=2", rounds=1)
    torch.testing.assert_close(half, 0.5 * moved(rounds=1), atol=1e-6, rtol=1e-5)


def rows(objective, broadcast=None, **changes):
    local = trainer(population((3, 9, 4)), **changes)
    set_fields(local, objective=objective)
    ids = np.arange(3)
    params = {"params": local.network.initial_params, **(broadcast or {})}
    return local.train(ids, params, None, Streams(1).at("shuffle", 1, ids))[0]


def test_fedprox_without_mu_is_fedavg_and_with_a_large_one_hardly_moves():
    assert torch.equal(rows(FedProx(mu=0.0)), rows(Sgd()))
    near = rows(FedProx(mu=20.0), lr=0.04)
    free = rows(Sgd(), lr=0.04)
    assert (near.norm(dim=1) < free.norm(dim=1)).all()


def numerical(term, w):
    grad = torch.zeros_like(w)
    for j in range(len(w)):
        step = torch.zeros_like(w)
        step[j] = 1e-6
        grad[j] = (term(w + step) - term(w - step)) / 2e-6
    return grad


def test_the_corrections_are_gradients_of_the_terms_in_the_papers():
    generator = torch.Generator().manual_seed(0)
    w, now, previous = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    alpha, eta, mu = 0.7, 0.4, 0.3
    g = (previous - now) / eta

    def fedfor(w):
        return alpha * torch.relu(g * (w - now)).sum()

    def fedprox(w):
        return mu / 2 * (w - now).square().sum()

    broadcast = {"params": now, "pseudo_gradient": g}
    zero = torch.zeros(1, 6, dtype=torch.float64)
    for objective, term in ((FedFor(alpha=alpha, eta=eta), fedfor), (FedProx(mu=mu), fedprox)):
        direction = objective.direction(zero, w[None], broadcast, None)[0]
        torch.testing.assert_close(direction, numerical(term, w), atol=1e-6, rtol=1e-5)


def next_of(objective, memory):
    silence = torch.zeros(4)
    return objective.conclude({"params": torch.zeros(2)}, silence, memory, Cohorts(10, 5.0))[1]


def test_mu_rises_with_the_loss_and_falls_after_five_falls_in_a_row():
    objective = AdaptiveFedProx(mu=0.1)
    cohorts, broadcast = Cohorts(10, 5.0), {"params": torch.zeros(2)}
    memory = objective.init(broadcast["params"])
    losses = [1.0, 1.5, 1.4, 1.3, 1.2, 1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.7, 0.6]
    wanted = [0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2, 0.2]
    mus = []
    for loss in losses:
        released = torch.tensor([0.5, -0.5, loss / 2, 0.5])  # half of the cohort holds examples
        update, memory = objective.conclude(broadcast, released, memory, cohorts)
        assert update.tolist() == [0.5, -0.5]
        mus.append(float(memory["mu"]))
    assert mus == pytest.approx(wanted)
    assert {k: float(v) for k, v in next_of(objective, memory).items()} == {
        k: float(v) for k, v in memory.items()
    }, "nobody answered: nothing changes"
    broadcast = objective.prelude(torch.zeros(2), {**memory, "mu": torch.tensor(0.7)})
    with pytest.raises(StopIteration) as sent:
        next(broadcast)
    assert float(sent.value.value["mu"]) == pytest.approx(0.7)
    low = {**objective.init(torch.zeros(2)), "mu": torch.tensor(0.05), "rounds": torch.tensor(1.0),
           "loss": torch.tensor(9.0), "falls": torch.tensor(4.0)}  # fmt: skip
    fallen = objective.conclude(
        {"params": torch.zeros(2)}, torch.tensor([0.0, 0.0, 8.0, 1.0]), low, cohorts
    )[1]
    assert float(fallen["mu"]) == 0.0, "never below 0"
    assert float(objective.model_copy(update={"mu": 0.0}).init(torch.zeros(2))["mu"]) == 0.0


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_adaptive_fedprox_hears_the_cohorts_loss_at_the_broadcast_model(tmp_path, way):
    objective = AdaptiveFedProx(mu=0.5)
    rounds = Rounds(tmp_path, (3, 9, 4), size=3, objective=objective, mechanism=NoPrivacy())
    set_fields(rounds.local, way=way)
    everybody, net = rounds.local.federation.examples, rounds.local.network
    start = rounds.state.params + 0.3
    set_fields(rounds.state, params=start)
    after = rounds.run(1)
    assert float(after.objective["loss"]) == pytest.approx(
        float(net.losses(start, everybody.x, everybody.y).mean()), rel=1e-5
    )
    plain = Rounds(tmp_path / "b", (3, 9, 4), size=3, objective=FedProx(mu=0.5),
                   mechanism=NoPrivacy())  # fmt: skip
    set_fields(plain.state, params=start)
    torch.testing.assert_close(after.params, plain.run(1).params)


def test_fedfors_pseudo_gradient_is_over_eta_and_fedanes_mu_pulls_back():
    objective, now = FedFor(eta=0.25), torch.zeros(2)
    with pytest.raises(StopIteration) as sent:
        next(objective.prelude(now, {"previous": torch.tensor([1.0, -2.0])}))
    assert sent.value.value["pseudo_gradient"].tolist() == [4.0, -8.0]
    broadcast = {"params": now, "gradient": torch.tensor([1.0, 1.0])}
    w, grad = torch.tensor([[2.0, -2.0]]), torch.tensor([[0.5, 0.5]])
    direction = FedDane(mu=0.3).direction(grad, w, broadcast, torch.tensor([[0.2, 0.2]]))
    assert direction[0].tolist() == pytest.approx([0.5 + 1.0 - 0.2 + 0.6, 0.5 + 1.0 - 0.2 - 0.6])


def test_a_schedule_that_ends_before_the_run_is_refused():
    with pytest.raises(
        Refused, match=r"client\.schedule has a learning rate of 0 in the last round, 7"
    ):
        plan(small("client.schedule=cosine", "client.over=3"))
    plan(small("client.schedule=cosine", "client.over=7"))


def test_fedfor_penalises_movement_against_the_last_update_only():
    """g = previous - now: moving back towards `previous` has g (w - now) > 0."""
    objective = FedFor(alpha=1.0)
    now, previous = torch.zeros(3), torch.tensor([1.0, -1.0, 0.0])
    broadcast = {"params": now, "pseudo_gradient": previous - now}
    grad = torch.zeros(1, 3)
    back = objective.direction(grad, previous[None], broadcast, None)
    assert back.tolist() == [[1.0, -1.0, 0.0]], "descending it leads away from the previous model"
    onward = objective.direction(grad, -previous[None], broadcast, None)
    assert onward.tolist() == [[0.0, 0.0, 0.0]]
    assert objective.direction(grad, now[None], broadcast, None).tolist() == [[0.0, 0.0, 0.0]]


def test_fedfor_has_no_term_in_its_first_round_and_the_last_update_afterwards(tmp_path):
    plain = Rounds(tmp_path / "a", objective=Sgd(), noise=0.0, lr=0.5)
    with_term = Rounds(tmp_path / "b", objective=FedFor(alpha=5.0), noise=0.0, lr=0.5)
    for rounds in (plain, with_term):
        set_fields(rounds.local, objective=rounds.algorithm.objective)
    first, same = plain.run(1), with_term.run(1)
    assert torch.equal(first.params, same.params)
    question = next(play(with_term.algorithm, 2, same))
    expected = with_term.state.params - same.params
    torch.testing.assert_close(question.broadcast["pseudo_gradient"], expected)
    assert same.objective["previous"].equal(with_term.state.params)


def test_a_homogeneous_federation_with_full_batches_does_gradient_descent(tmp_path):
    """Every client holds the same examples and takes one step: FedAvg is one step of all."""
    one = population((6,)).examples
    many = one.take(np.tile(np.arange(6), 4))
    same = Federation(many, np.arange(5) * 6, many)
    rounds = Rounds(tmp_path, (6,) * 4, federation=same, size=4, noise=0.0, clip=1e3)
    set_fields(rounds.local, epochs=1, batch_size=6)
    params = rounds.state.params.clone().requires_grad_()
    net = rounds.local.network
    for _ in range(3):
        (grad,) = torch.autograd.grad(net.losses(params, one.x, one.y).mean(), params)
        params = (params - 0.5 * grad).detach().requires_grad_()
    torch.testing.assert_close(rounds.run(3).params, params.detach(), rtol=1e-4, atol=1e-6)


def test_stragglers_do_fewer_epochs_and_still_count(tmp_path):
    rounds = Rounds(tmp_path, (4,) * 200, size=100)
    executor = rounds.world.executor
    set_fields(executor, stragglers=0.5)
    set_fields(executor.trainer, epochs=4)
    who = np.arange(200)
    epochs = executor._epochs(who, 1)
    assert epochs.min() == 1
    assert 60 < (epochs == 4).sum() < 140
    assert np.array_equal(epochs[[7, 3]], executor._epochs(np.array([7, 3]), 1))
    assert not np.array_equal(epochs, executor._epochs(who, 2))
    set_fields(executor, stragglers=0.0)
    assert (executor._epochs(who, 1) == 4).all()
    each = np.array([1, 3, 2])
    federation = population((3, 9, 4))
    ids = np.arange(3)
    batches = plan_batches(federation, ids, Streams(1).at("shuffle", 1, ids), each, 2)
    assert batches.steps.tolist() == [2, 15, 4]
    assert batches.mask.sum(axis=(1, 2)).tolist() == [3, 27, 8]
    with pytest.raises(Refused, match="no epoch to skip"):
        plan(small("client.stragglers=0.5", "client.epochs=1"))


def test_dropped_stragglers_do_not_answer(tmp_path):
    """The model moves as if the cohort had been only those who do every epoch."""
    rounds = Rounds(tmp_path, (4,) * 40, size=20)
    executor = rounds.world.executor
    set_fields(executor, stragglers=0.5)
    set_fields(executor.trainer, epochs=4)
    cohort = Poisson(size=20).sample(1, 40, Population.of(np.full(40, 4)), rounds.world.streams)
    assert executor.answering(cohort).clients.tolist() == cohort.clients.tolist()
    set_fields(executor, drop_stragglers=True)
    left = executor.answering(cohort)
    lost = np.setdiff1d(cohort.clients, left.clients)
    assert len(lost)
    assert (executor._epochs(left.clients, 1) == 4).all()
    assert (executor._epochs(lost, 1) < 4).all()
    assert left.divisor == cohort.divisor
    seen = Seen()
    run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, watch=seen))
    assert sorted(seen.by_client) == left.clients.tolist()
    for share in (0.0, 1.0):
        with pytest.raises(Refused, match="so no client, or every client, would be dropped"):
            plan(small("client.drop_stragglers=true", f"client.stragglers={share}"))


OBJECTIVES = list(BUILT_IN["objective"])


FALLING = ["server.schedule=cosine", "server.over=9"]
STEADY = ["privacy.noise_multiplier=0.05"]
"""The step of q-FedAvg is a quotient. Where noise leaves its divisor near 0, at 2e-4 with a noise
multiplier of 2, sums that differ by 1e-7 give models that are 2 % apart, and neither trainer is
wrong. With less noise the divisor stays above 0.2."""


PAIRS = [
    (objective, server)
    for objective, server in itertools.product(OBJECTIVES, BUILT_IN["optimizer"])
    if server == "fedavg" or find("objective", objective, "").server_step != "only_plain"
]


@pytest.mark.slow
@pytest.mark.parametrize("objective, server", PAIRS)
def test_every_objective_composes_with_every_server_and_resumes_exactly(
    tmp_path, objective, server
):
    settings = [
        f"server.optimizer={server}",
        "run.randomness=seeded",
        "client.stragglers=0.3",
        *(() if objective in declaring("objective", server_step="only_plain") else FALLING),
        *STEADY,
        *choosing(objective),
    ]
    trained(tmp_path / "whole", *settings)
    trained(tmp_path / "part", *settings, "run.rounds=4")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=7))
    same_run(tmp_path / "whole", tmp_path / "part")
    trained(tmp_path / "loop", *settings, "run.trainer=loop", "run.chunk=3")
    for name, tensor in model(tmp_path / "whole").items():
        torch.testing.assert_close(tensor, model(tmp_path / "loop")[name], rtol=1e-3, atol=1e-4)


@every_case("way", ["stacked", "loop"])
@every_case("batch_size", [2, 100])
def test_a_clients_gradient_is_that_of_its_mean_loss_over_all_its_examples(way, batch_size):
    dataset = population((3, 9, 0, 4))
    local = trainer(dataset, way=way, batch_size=batch_size)
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(local.network.shapes.length, generator=generator)
    ids = np.arange(4)
    gradients = local.gradients(ids, params, Streams(1).at("shuffle", 1, ids))
    for client in ids:
        start, end = dataset.offsets[client : client + 2]
        if start == end:
            assert (gradients[client] == 0).all()
            continue
        leaf = params.clone().requires_grad_()
        x, y = dataset.examples.x[start:end], dataset.examples.y[start:end]
        local.network.losses(leaf, x, y).mean().backward()
        torch.testing.assert_close(gradients[client], leaf.grad, rtol=1e-4, atol=1e-6)


def dane(folder, **changes):
    rounds = Rounds(folder, (6, 6, 6, 6), size=4, noise=0.0, clip=1e3, **changes)
    set_fields(rounds.local, objective=rounds.algorithm.objective, epochs=1, batch_size=6)
    return rounds


def test_feddane_steps_along_the_cohorts_gradient_first(tmp_path):
    """At the broadcast model grad - own is zero on a full batch: all clients step by -lr g."""
    rounds = dane(tmp_path, objective=FedDane(mu=0.5))
    after = rounds.run(1)
    gradient, update = rounds.store.releases[1]
    torch.testing.assert_close(update, -0.5 * gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after.params, rounds.state.params + update)


@every_case("kind", [FedDane, FedLin, Mime])
def test_a_gradients_scale_is_what_the_clip_sees_and_nothing_else(tmp_path, kind):
    by_scale = {}
    for scale in (1.0, 0.01):
        rounds = dane(tmp_path / f"{scale}", objective=kind(gradient_scale=scale))
        by_scale[scale] = rounds.run(2).params, rounds.store.releases[1][0]
    torch.testing.assert_close(by_scale[1.0][0], by_scale[0.01][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(0.01 * by_scale[1.0][1], by_scale[0.01][1], rtol=1e-4, atol=1e-7)


def test_feddane_of_equal_clients_is_fedavg(tmp_path):
    one = population((6,)).examples
    many = one.take(np.tile(np.arange(6), 4))
    same = Federation(many, np.arange(5) * 6, many)
    ends = [
        dane(tmp_path / name, objective=objective, federation=same).run(3).params
        for name, objective in (("dane", FedDane(mu=0.0)), ("sgd", Sgd()))
    ]
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_two_exchanges_are_one_event_at_less_noise_each(tmp_path):
    for name in ("feddane", "fedlin"):
        planned = plan(small(f"client.objective={name}"))
        assert planned.event.release.of.noise_multiplier == pytest.approx(2.0 / math.sqrt(2))
    outcome = trained(tmp_path, "client.objective=feddane", "run.rounds=3")
    assert outcome.charges == 3
    assert outcome.guarantee.epsilon > trained(tmp_path / "b", "run.rounds=3").guarantee.epsilon
    budget = ("privacy.epsilon=3", "privacy.accountant=rdp")
    solved = plan(small("client.objective=feddane", *budget))
    alone = plan(small(*budget))
    assert solved.noise_multiplier == pytest.approx(math.sqrt(2) * alone.noise_multiplier, rel=1e-3)


def by_the_papers(kind, rounds, beta, lr, count):
    """Mime and MimeLite written out for full batches, all clients, one epoch: plain loops."""
    dataset, net = rounds.local.federation, rounds.local.network

    def gradient(client, w):
        start, end = dataset.offsets[client : client + 2]
        leaf = w.detach().requires_grad_()
        net.losses(
            leaf, dataset.examples.x[start:end], dataset.examples.y[start:end]
        ).mean().backward()
        return leaf.grad

    x, m = net.initial_params.clone(), torch.zeros_like(net.initial_params)
    for _ in range(count):
        own = [gradient(client, x) for client in range(dataset.clients)]
        c = torch.stack(own).mean(0)
        ends = []
        for client in range(dataset.clients):
            w = x.clone()
            for _ in range(2):
                grad = gradient(client, w)
                if kind is Mime:
                    grad = grad - own[client] + c
                w = w - lr * ((1 - beta) * grad + beta * m)
            ends.append(w)
        x, m = torch.stack(ends).mean(0), beta * m + (1 - beta) * c
    return x, m


@every_case("way", ["stacked", "loop"])
@every_case("kind", [Mime, MimeLite])
def test_mime_and_mimelite_are_their_papers_algorithm(tmp_path, kind, way):
    rounds = dane(tmp_path, objective=kind(beta=0.7))
    set_fields(rounds.local, epochs=2, way=way)
    after = rounds.run(3)
    params, momentum = by_the_papers(kind, rounds, 0.7, 0.5, 3)
    torch.testing.assert_close(after.params, params, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(after.objective["momentum"], momentum, rtol=1e-3, atol=1e-5)


def test_mime_without_momentum_is_variance_reduced_and_mimelite_is_fedavg(tmp_path):
    plain = dane(tmp_path / "a", objective=Sgd()).run(2)
    lite = dane(tmp_path / "b", objective=MimeLite(beta=0.0)).run(2)
    torch.testing.assert_close(plain.params, lite.params, rtol=1e-4, atol=1e-6)
    full = dane(tmp_path / "c", objective=Mime(beta=0.0))
    full.run(1)
    gradient, update = full.store.releases[1]
    torch.testing.assert_close(update, -0.5 * gradient, rtol=1e-4, atol=1e-6)


def test_mimelite_is_one_event_and_its_traffic_is_said():
    planned = plan(small("client.objective=mimelite"))
    assert planned.event.release.of.noise_multiplier == 2.0
    lite, free = check(small("client.objective=mimelite")), check(small())
    assert lite.forecast.up == 2 * free.forecast.up
    assert lite.forecast.down == 2 * free.forecast.down
    mime = check(small("client.objective=mime")).forecast
    assert (mime.up, mime.down) == (2 * free.forecast.up, 4 * free.forecast.down)


def test_what_has_no_proof_under_privacy_is_refused_with_its_reason():
    for name in OBJECTIVES:
        objective = find("objective", name, "")()
        if objective.unproven:
            with pytest.raises(
                Refused, match=f"has no proof under privacy, because {objective.unproven}"
            ):
                plan(small(f"client.objective={name}", "data.setting=cross_silo"))
        else:
            assert plan(small(*choosing(name))).guarantee.epsilon < math.inf
        if objective.keeps:
            with pytest.raises(Refused, match="so the same clients have to return"):
                plan(small(f"client.objective={name}", "privacy.mechanism=none"))
    settings = ["client.objective=mimelite", "aggregation.rule=median", "privacy.mechanism=none"]
    with pytest.raises(Refused, match="sends more than an update"):
        plan(small(*settings))


def test_fednova_by_hand(tmp_path):
    """Clients of 3, 9 and 4 examples in batches of 2: 2, 5 and 2 steps an epoch, one epoch."""

    def released(objective):
        rounds = Rounds(tmp_path / type(objective).__name__, (3, 9, 4), size=3, lr=0.3,
                        objective=objective, mechanism=NoPrivacy())  # fmt: skip
        set_fields(rounds.local, objective=objective, epochs=1, batch_size=2)
        return rounds, rounds.run(1).params

    rounds, moved = released(FedNova())
    ids = np.arange(3)
    keys = rounds.world.streams.at("shuffle", 1, ids)
    set_fields(rounds.local, objective=Sgd())
    deltas, _ = rounds.local.train(ids, {"params": rounds.state.params}, None, keys)
    weights = torch.tensor([3.0, 9.0, 4.0]) / 16
    steps = torch.tensor([2.0, 5.0, 2.0])
    expected = (weights * steps).sum() * (weights / steps) @ deltas
    torch.testing.assert_close(moved - rounds.state.params, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by_examples", [True, False])
def test_fednova_of_equal_steps_is_fedavg_also_where_some_hold_nothing(tmp_path, by_examples):
    ends = []
    for objective in (FedNova(), Sgd()):
        rounds = Rounds(tmp_path / type(objective).__name__, (4, 0, 4, 0), size=4,
                        objective=objective, mechanism=NoPrivacy())  # fmt: skip
        set_fields(rounds.world.executor, by_examples=by_examples)
        ends.append(rounds.run(2).params)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)
