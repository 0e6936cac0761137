"""Objectives that change the loss, against their papers; and objectives around another one."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, FEATURES, built, population, trainer
from lanes import every_case
from papers import full_batches
from torch.nn import functional as F
from toys import Smoothed

from privfed.client.around import HOOKS, Around
from privfed.client.compression.compressed import compressed
from privfed.client.compression.top_k import TopK
from privfed.client.descent import LocalStep
from privfed.client.objective import Objective, Sgd
from privfed.client.objectives.moon import Moon
from privfed.client.objectives.skewed_labels import FedLc, FedRs
from privfed.client.partial import Partial
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.models.recipes import Mlp
from privfed.plan.plan import refuse

WAYS = pytest.mark.parametrize("way", ["stacked", "loop"])
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


def by_definition(objective, outputs, y, counts):
    """The loss of each example `[B]`, written out."""
    if isinstance(objective, FedLc):
        exponents = outputs - objective.tau * counts.clamp(min=1e-8) ** -0.25
    elif isinstance(objective, FedRs):
        exponents = torch.where(counts > 0, outputs, objective.alpha * outputs)
    else:
        plain = -torch.log_softmax(outputs, 1)[torch.arange(len(y)), y]
        lacking = (counts == 0).float().mean()
        return plain + objective.strength * lacking * outputs.square().mean(1)
    return exponents.exp().sum(1).log() - exponents[torch.arange(len(y)), y]


@WAYS
@every_case("objective", [FedLc(tau=0.7), FedRs(alpha=0.3), Smoothed(strength=2.0)])
def test_a_round_descends_along_the_papers_loss(tmp_path, objective, way):
    rounds = full_batches(tmp_path, objective, way=way)
    federation, network = rounds.local.federation, rounds.local.network
    classes = federation.examples.classes
    lacking, start, ends = False, rounds.state.params.clone(), []
    for client in range(federation.clients):
        rows = slice(*federation.offsets[client : client + 2])
        x, y = federation.examples.x[rows], federation.examples.y[rows]
        counts = torch.bincount(y, minlength=classes).float()
        lacking |= bool((counts == 0).any())
        w = start.clone()
        for _ in range(2):
            leaf = w.clone().requires_grad_()
            by_definition(objective, network.outputs(leaf, x), y, counts).mean().backward()
            w = w - 0.5 * leaf.grad
        ends.append(w)
    assert lacking
    after = rounds.run(1).params
    torch.testing.assert_close(after, torch.stack(ends).mean(0), **CLOSE)
    plain = full_batches(tmp_path / "plain", Sgd(), way=way).run(1).params
    assert (after - plain).norm() > 0.05 * (after - start).norm()


@WAYS
@every_case("objective", [FedLc(tau=0.0), FedRs(alpha=1.0), Moon(mu=0.0)])
def test_without_their_term_they_are_fedavg(tmp_path, objective, way):
    ends = [
        full_batches(tmp_path / str(place), each, way=way).run(2).params
        for place, each in enumerate((objective, Sgd()))
    ]
    torch.testing.assert_close(*ends, **CLOSE)


@WAYS
def test_moon_is_its_papers_loss(tmp_path, way):
    """Two rounds written out: in the first the term has no gradient."""
    objective = Moon(mu=2.0, temperature=0.4)
    network = built(Mlp(hidden=[5]), (FEATURES,), CLASSES)
    rounds = full_batches(tmp_path, objective, way=way, network=network)
    federation, x0 = rounds.local.federation, rounds.state.params.clone()
    hidden = network.shapes.views

    def represented(w, x):
        views = hidden(w)
        names = list(views)
        return torch.relu(F.linear(x, views[names[0]], views[names[1]]))

    previous, model = [x0.clone() for _ in range(federation.clients)], x0
    for _ in range(2):
        ends = []
        for client in range(federation.clients):
            rows = slice(*federation.offsets[client : client + 2])
            x, y = federation.examples.x[rows], federation.examples.y[rows]
            w = model.clone()
            for _ in range(2):
                leaf = w.clone().requires_grad_()
                z, t = represented(leaf, x), objective.temperature
                near = F.cosine_similarity(z, represented(model, x)) / t
                far = F.cosine_similarity(z, represented(previous[client], x)) / t
                term = -(near.exp() / (near.exp() + far.exp())).log()
                losses = F.cross_entropy(network.outputs(leaf, x), y, reduction="none")
                (losses + objective.mu * term).mean().backward()
                w = w - 0.5 * leaf.grad
            ends.append(w)
        previous, model = ends, torch.stack(ends).mean(0)
    torch.testing.assert_close(rounds.run(2).params, model, **CLOSE)


@WAYS
@every_case("objective", [FedLc(), FedRs(), Moon(), Smoothed()])
def test_a_clients_row_follows_from_its_own_examples(objective, way):
    """So it is bounded by the clip; also beside clients with more examples, or with none."""
    sizes = (3, 0, 7, 5)
    local = trainer(population(sizes), model=Mlp(hidden=[4]), way=way)
    local = replace(local, objective=objective)
    params, streams = local.network.initial_params, Streams(0, simulated=True)
    ids, broadcast = np.array([2, 3, 0, 1]), {"params": params}
    states = objective.initial_client_state(broadcast).expand(4, -1) if objective.keeps else None
    keys = streams.at("shuffle", 1, ids)
    rows, _ = local.train(ids, broadcast, states, keys)
    assert rows.isfinite().all()
    assert not rows[3].any()
    for place, client in enumerate(ids[:3]):
        alone = np.array([client])
        state = None if states is None else states[:1]
        row, _ = local.train(alone, broadcast, state, streams.at("shuffle", 1, alone))
        torch.testing.assert_close(row[0], rows[place], **CLOSE)


@every_case(
    "keys, says",
    [
        (("client.objective=fedlc", "model.loss=multi_label"), "changes the logits of classes"),
        (("client.objective=moon",), "clients have to return"),
        (
            ("client.objective=fedrs", "client.privacy.mechanism=dp_sgd", "data.setting=cross_silo",
             "privacy.mechanism=none"),
            "uses a silo's examples",
        ),
    ],
)  # fmt: skip
def test_where_an_objective_that_changes_the_loss_is_refused(keys, says):
    with pytest.raises(Refused, match=says):
        refuse(load(None, keys))


class Marked(Objective):
    """Every declaration and hook is another one than the default."""

    unproven = "no bound"
    anchored = "batch"
    measures = "fisher"
    server_step = "only_plain"
    reads_features = True
    needs_classes = True
    keeps = 2
    exchanges = 3
    least_steps = 4
    broadcasts = 5
    sums_states = True
    sends_updates_alone = False
    needs_only_the_model = False
    personalises = True
    plain = False
    changes_loss = True
    grouping = "everyone"


@every_case("name", sorted(HOOKS))
def test_an_objective_around_another_declares_and_does_what_that_does(name, monkeypatch):
    """Every one of them: also one that is added to the contract later."""
    inner = Marked()
    around = Around(inner=inner)
    if not callable(getattr(inner, name)):
        assert getattr(around, name) == getattr(inner, name) != getattr(Objective(), name)
        return
    parameters = [*inspect.signature(getattr(Objective, name)).parameters][1:]
    step = LocalStep(None, None, None, None, None, 0, None, None, 0.1)
    monkeypatch.setattr(Marked, name, lambda self, *arguments: (self, arguments))
    answer, told = getattr(around, name)(*(step if each == "step" else each for each in parameters))
    assert answer is inner
    assert told == tuple(step if each == "step" else each for each in parameters)


def test_a_compressed_and_a_partial_objective_hide_what_is_theirs_from_the_other():
    """MOON's last model is what lies behind or before what they keep of a client."""
    d, p, clients = 6, 2, 3
    params, start = torch.arange(1.0, d + 1), torch.full((p,), -1.0)
    last = torch.arange(0.0, clients * d).view(clients, d)
    left_off, stays = torch.full((clients, d), 9.0), torch.full((clients, p), 7.0)
    sent = compressed(Moon(), TopK(fraction=0.5), 0)
    others = sent.contrasts({"params": params}, torch.cat([last, left_off], dim=1))
    assert torch.equal(others, torch.stack([params.expand(clients, -1), last], dim=1))
    held = Partial(inner=Moon(), start=start)
    others = held.contrasts({"params": params}, torch.cat([stays, last], dim=1))
    assert torch.equal(others[:, 0], torch.cat([params.expand(clients, -1), stays], dim=1))
    assert torch.equal(others[:, 1], torch.cat([last, stays], dim=1))
