"""Partial models: what stays with a client is trained there and sent nowhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, FEATURES, Rounds, built, population, trainer
from lanes import every_case
from torch import nn

from privfed.client.batches import plan_batches
from privfed.client.client_states import ClientStates
from privfed.client.objective import Sgd, Work
from privfed.client.objectives.adaalter import AdaAlter
from privfed.client.objectives.fedprox import FedProx
from privfed.client.objectives.scaffold import Scaffold
from privfed.client.partial import Averaging, Partial
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.models.local_part import full_network, local_start
from privfed.models.recipes import Foreign, Mlp
from privfed.privacy.mechanisms.none import NoPrivacy

SIZES = (3, 9, 0, 4)
IDS = np.arange(4)
HEAD, BODY = ["3*"], ["1*"]
WAYS = pytest.mark.parametrize("way", ["stacked", "loop"])


def partial(local, *, recipe=None, objective=None, local_epochs=0, **changes):
    """A trainer of clients who keep what `local` names, and how many numbers are shared."""
    net = built(recipe or Mlp(hidden=[4]), (FEATURES,), CLASSES, local=local)
    made = trainer(population(SIZES), network=full_network(net), epochs=3, **changes)
    held = Partial(inner=objective or Sgd(), start=local_start(net), local_epochs=local_epochs)
    return replace(made, objective=held), net.shapes.length


def keys(ids=IDS):
    return Streams(3, simulated=True).at("shuffle", 1, ids)


def states_of(made, shift=0.1):
    """Clients' own numbers `[c, p]`, each other ones."""
    p = len(made.objective.start)
    return torch.randn(4, p, generator=torch.Generator().manual_seed(1)) * shift


def batches(made, client):
    plan = plan_batches(made.federation, IDS, keys(), np.full(4, 3), made.batch_size)
    for step in range(plan.steps[client]):
        rows = plan.rows[client, step][plan.mask[client, step]]
        yield plan.epochs[client, step], made.federation.gather(torch.from_numpy(rows))


@WAYS
@every_case("local", [HEAD, BODY], ids=["head stays", "body stays"])
@every_case("local_epochs", [0, 2], ids=["at once", "in turn"])
def test_what_is_shared_is_sent_and_what_stays_is_kept(way, local, local_epochs):
    """FedPer and LG-FedAvg (at once), and FedRep (in turn), with autograd on the whole network."""
    made, d = partial(local, way=way, local_epochs=local_epochs)
    states, lr = states_of(made), made.lr
    params = torch.full((d,), 0.2)
    rows, after = made.train(IDS, {"params": params}, states, keys())
    assert rows.shape == (4, d)
    for client in IDS:
        w = torch.cat([params, states[client]])
        for epoch, (x, y) in batches(made, client):
            step = lr * made.network.gradient(w, x, y)
            if local_epochs:
                step[slice(0, d) if epoch < local_epochs else slice(d, None)] = 0
            w = w - step
        torch.testing.assert_close(rows[client], w[:d] - params, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(after[client], w[d:], rtol=1e-3, atol=1e-5)


class Leaking(Partial):
    """A mutation: the numbers at the end of a client's vector are sent, which stay."""

    def _parts(self, vectors):
        shared = vectors[..., -(vectors.shape[-1] - len(self.start)) :]
        return shared, super()._parts(vectors)[1]


def test_a_row_with_what_stays_in_it_is_caught():
    """What is sent and what stays make up the whole model again; a leak has one part twice."""
    made, d = partial(HEAD)
    leaking = replace(made, objective=Leaking(inner=Sgd(), start=made.objective.start))
    states, params = states_of(made), torch.full((d,), 0.2)
    honest, leaked = (
        each.train(IDS, {"params": params}, states, keys())[0] for each in (made, leaking)
    )
    by_hand = torch.cat([params, states[1]])
    for _, (x, y) in batches(made, 1):
        by_hand = by_hand - made.lr * made.network.gradient(by_hand, x, y)
    sent = by_hand[:d] - params
    assert torch.allclose(honest[1], sent, atol=1e-5)
    assert not torch.allclose(leaked[1], sent, atol=1e-2)


@WAYS
def test_with_nothing_local_it_is_the_objective_of_all(way):
    made, _ = partial([], way=way)
    params = made.network.initial_params + 0.1
    rows, after = made.train(IDS, {"params": params}, torch.zeros(4, 0), keys())
    plain, _ = replace(made, objective=Sgd()).train(IDS, {"params": params}, None, keys())
    assert torch.equal(rows, plain)
    assert after.shape == (4, 0)


@WAYS
def test_of_an_objective_with_a_state_of_its_own_each_part_has_its_place(way):
    """SCAFFOLD on what is shared: by hand, with control variates of the shared part alone."""
    made, d = partial(HEAD, objective=Scaffold(), lr=0.1, way=way)
    p = len(made.objective.start)
    assert made.objective.state_length(d) == p + d
    states = torch.cat([states_of(made), torch.full((4, d), 0.3)], dim=1)
    params, control = torch.full((d,), 0.2), torch.full((d,), 0.7)
    broadcast = {"params": params, "control": control}
    rows, after = made.train(IDS, broadcast, states, keys(), returning=torch.ones(4) > 0)
    for client in (0, 1, 3):
        w, taken = torch.cat([params, states[client, :p]]), 0
        for _, (x, y) in batches(made, client):
            step = made.network.gradient(w, x, y)
            step[:d] += control - states[client, p:]
            w, taken = w - made.lr * step, taken + 1
        variate = states[client, p:] - control + (params - w[:d]) / (taken * made.lr)
        torch.testing.assert_close(rows[client, :d], w[:d] - params, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(after[client], torch.cat([w[d:], variate]), rtol=1e-3, atol=1e-4)


@WAYS
def test_what_an_objective_carries_is_of_what_is_shared(way):
    """Local AdaAlter, by hand: rates follow squares of the shared part alone."""
    objective = AdaAlter(epsilon=0.5, square_scale=0.2)
    made, d = partial(HEAD, objective=objective, way=way)
    states, params, known = states_of(made), torch.full((d,), 0.2), torch.full((d,), 0.3)
    broadcast = {"params": params, "squares": known}
    rows, after = made.train(IDS, broadcast, states, keys())
    for client in (0, 1, 3):
        w, squares = torch.cat([params, states[client]]), torch.zeros(d)
        for number, (_, (x, y)) in enumerate(batches(made, client), 1):
            step = made.network.gradient(w, x, y)
            squares += step[:d].square()
            step[:d] /= (known + number * 0.25).sqrt()
            w = w - made.lr * step
        sent = torch.cat([w[:d] - params, 0.2 * squares])
        torch.testing.assert_close(rows[client], sent, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(after[client], w[d:], rtol=1e-3, atol=1e-5)


def test_a_correction_is_of_what_is_shared():
    """FedProx pulls no head towards anything: at a huge mu, what is shared stands still."""
    made, d = partial(HEAD, objective=FedProx(mu=10.0), lr=0.05)
    params, states = torch.full((d,), 0.2), states_of(made)
    rows, after = made.train(IDS, {"params": params}, states, keys())
    plain, _ = partial(HEAD, lr=0.05)[0].train(IDS, {"params": params}, states, keys())
    assert rows.norm() < plain.norm()
    assert (after - states)[:2].abs().max() > 0.01


def test_a_message_counts_the_steps_of_what_is_shared():
    counted = []

    class Counting(Sgd):
        def message(self, w, broadcast, state, work: Work):
            counted.append(work.steps.tolist())
            return super().message(w, broadcast, state, work)

    made, d = partial(HEAD, objective=Counting(), local_epochs=2)
    made.train(IDS, {"params": torch.zeros(d)}, states_of(made), keys())
    assert counted == [[1.0, 3.0, 0.0, 1.0]]


def test_a_newcomer_begins_at_the_public_start_and_nobody_trains_it_together():
    made, d = partial(HEAD)
    objective, params = made.objective, torch.full((d,), 0.2)
    unseen = objective.unseen({"params": params})
    assert torch.equal(unseen, objective.start)
    first = objective.personal({"params": params}, unseen.expand(2, -1), None)
    assert torch.equal(first, torch.cat([params, objective.start]).expand(2, -1))
    assert torch.equal(objective.personal({"params": params}, None, None), first[0])


def norm_net(features, width):
    return nn.Sequential(
        nn.Linear(features[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, width)
    )


NORMS = Foreign.of(norm_net)()


def by_pytorch(made, client, start, mu=0.0):
    """The vector that a client's training by PyTorch's own layers ends with, from `start`."""
    module = norm_net((FEATURES,), CLASSES)
    parts = made.network.shapes.views(start)
    state = {name: part.reshape(module.state_dict()[name].shape) for name, part in parts.items()}
    module.load_state_dict(state)
    for _, (x, y) in batches(made, client):
        module.train(len(x) > 1)
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter -= made.lr * (parameter.grad + mu * (parameter - state[name]))
    ends = {name: t.float() for name, t in module.state_dict().items()}
    return torch.cat([ends[name].reshape(-1) for name in made.network.shapes.names])


@every_case("mu", [0.0, 0.5], ids=["sgd", "fedprox"])
def test_running_statistics_are_sent_as_pytorch_leaves_them(mu):
    """No step of any objective moves them: a proximal term holds the parameters alone back."""
    net = built(NORMS, (FEATURES,), CLASSES, averages=True)
    made = trainer(population(SIZES), network=full_network(net), epochs=3, batch_size=4, way="loop")
    inner = FedProx(mu=mu) if mu else Sgd()
    made = replace(made, objective=Averaging(inner=inner, count=net.averaged.length))
    assert net.averaged.names == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert made.objective.layout(net.shapes.length).parts == (("delta", 47), ("statistics", 9))
    params = net.initial_params.clone()
    params[:-1] += 0.1
    before = params.clone()
    rows, _ = made.train(IDS, {"params": params}, None, keys())
    for client in IDS:
        ended = by_pytorch(made, client, before, mu)
        torch.testing.assert_close(rows[client], ended - before, rtol=1e-3, atol=1e-5)
    assert rows[2].tolist() == [0.0] * 56, "no example, no change"
    made.gradients(IDS, params, keys())
    assert torch.equal(params, before), "what is broadcast stays"
    assert net.digest() == built(NORMS, (FEATURES,), CLASSES, averages=True).digest()


def test_batch_normalisations_stay_with_their_statistics():
    """FedBN, by PyTorch's own layer: a batch is normalised by itself, one example by what was."""
    made, d = partial(["1*"], recipe=NORMS, way="loop", batch_size=4)
    names = made.network.shapes.names
    assert names[-3:] == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert d == 4 * 6 + 3 * 5
    params = torch.full((d,), 0.2) + torch.arange(d) / d
    unseen = made.objective.unseen({"params": params})
    assert unseen.tolist() == [1.0] * 4 + [0.0] * 4 + [0.0] * 4 + [1.0] * 4 + [0.0]
    rows, after = made.train(IDS, {"params": params}, unseen.expand(4, -1), keys())
    for client in IDS:
        ended = by_pytorch(made, client, torch.cat([params, unseen]))
        torch.testing.assert_close(rows[client], ended[:d] - params, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(after[client], ended[d:], rtol=1e-3, atol=1e-5)
    assert after[1, -1] == 6, "nine examples are batches of 4, 4 and 1 in each of three epochs"
    assert after[2].tolist() == unseen.tolist()
    norm = made.network.module.get_submodule("1")
    assert not norm.training
    held = [*norm.running_mean.tolist(), *norm.running_var.tolist(), int(norm.num_batches_tracked)]
    assert held == [0.0] * 4 + [1.0] * 4 + [0], "nothing stays in the module, which all train with"


@pytest.mark.parametrize("recipe", [Mlp(hidden=[4]), NORMS], ids=["heads", "norms"])
def test_nobodys_own_part_depends_on_who_else_is_there(recipe):
    """Given what was broadcast: the ground on which it costs no privacy."""
    made, d = partial(["3*"] if isinstance(recipe, Mlp) else ["1*"], recipe=recipe, way="loop")
    states = made.objective.start + states_of(made).abs()
    params = torch.full((d,), 0.2)

    def trained(ids):
        rows, after = made.train(ids, {"params": params}, states[ids], keys(ids))
        return dict(zip(ids.tolist(), torch.cat([rows, after], dim=1), strict=True))

    everybody = trained(IDS)
    for client in IDS:
        for other, ends in trained(np.delete(IDS, client)).items():
            torch.testing.assert_close(ends, everybody[other])


def test_a_batch_normalisation_is_scored_by_what_stays():
    made, d = partial(["1*"], recipe=NORMS, way="loop")
    params = torch.full((d,), 0.2)
    x = torch.randn(5, FEATURES)
    unseen = made.objective.unseen({"params": params})
    made.train(IDS, {"params": params}, unseen.expand(4, -1), keys())
    other = unseen.clone()
    other[8:12] += 1.0  # running means
    models = made.objective.personal({"params": params}, torch.stack([unseen, other]), None)
    examples = Examples(x, torch.zeros(5, dtype=torch.int64), CLASSES)
    first, second = (next(made.network.scored(model, examples))[0] for model in models)
    assert not torch.allclose(first, second)
    assert torch.equal(models[0, d:], unseen), "scoring moves nothing"


def test_a_stack_of_batch_normalisations_is_refused_by_name():
    made, _ = partial(["1*"], recipe=NORMS)
    assert "normalises by batch" in made.network.unstackable
    assert not partial(HEAD)[0].network.unstackable


@every_case(
    "local, frozen, says",
    [
        (["*"], [], "no trainable parameter that clients send"),
        (["nothing"], [], "names 'nothing', but the model has no such parameter"),
        (HEAD, HEAD, "names only frozen parameters"),
    ],
    ids=["all", "none", "frozen"],
)
def test_what_cannot_stay_is_refused(local, frozen, says):
    with pytest.raises(Refused, match=says):
        built(Mlp(hidden=[4]), (FEATURES,), CLASSES, local=local, frozen=frozen)


def test_part_of_a_batch_normalisation_cannot_stay():
    with pytest.raises(Refused, match="keep it local to returning clients"):
        built(NORMS, (FEATURES,), CLASSES, local=["1.weight"])


def test_heads_of_their_own_serve_groups_with_opposite_labels(tmp_path):
    """Which one model cannot; and what each keeps survives on disk."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, FEATURES)).astype(np.float32)
    y, group = (x[:, 0] > 0).astype(np.int64), np.repeat(np.arange(8) % 2, 12)
    examples = Examples(torch.from_numpy(x), torch.from_numpy(np.where(group, 1 - y, y)), 2)
    federation = Federation(examples, np.arange(9) * 12, examples)
    net = built(Mlp(hidden=[8]), (FEATURES,), 2, local=HEAD)
    rounds = Rounds(tmp_path, (12,) * 8, federation=federation, size=8, network=net, chunk=8,
                    mechanism=NoPrivacy())  # fmt: skip
    held = Partial(inner=Sgd(), start=local_start(net), local_epochs=1)
    d, ids = net.shapes.length, np.arange(8)
    remembered = ClientStates(tmp_path / "own", "", 8, held.state_length(d), 0)
    local = replace(rounds.local, network=full_network(net), objective=held)
    executor = replace(rounds.world.executor, trainer=local, states=remembered)
    rounds.world = replace(rounds.world, executor=executor, states=remembered)
    state = rounds.run(15)
    states, returning = remembered.gather(ids, held.start)
    assert returning.all()
    assert remembered.gather(ids, held.start)[0].shape == (8, 2 * 8 + 2)
    models = held.personal({"params": state.params}, states, None)
    right = [
        float((local.network.outputs(model, examples.x[12 * k : 12 * k + 12]).argmax(1)
               == examples.y[12 * k : 12 * k + 12]).float().mean())
        for k, model in enumerate(models)
    ]  # fmt: skip
    assert np.mean(right) > 0.9
    shared = float((net.outputs(state.params, examples.x).argmax(1) == examples.y).float().mean())
    assert shared < 0.65
