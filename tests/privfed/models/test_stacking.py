"""Stacked layers give what `vmap` gives, and whatever is not known exactly is left to it."""

import pytest
import torch
from helpers import built
from lanes import every_case
from torch import nn
from torch.nn.utils import parametrizations

from privfed.models.network import stackable_layers, stacked_forward
from privfed.models.recipes import Logistic, Mlp

CLIENTS, BATCH, WIDTH = 4, 5, 6


def known(module):
    return stackable_layers(module, frozenset(name for name, _ in module.named_parameters()))


def both(module, x):
    """Outputs and gradients of different models on different examples: stacked, and by `vmap`."""
    torch.manual_seed(0)
    values = {n: torch.randn(CLIENTS, *p.shape) for n, p in module.named_parameters()}
    weigh, found = None, []
    for call in (
        lambda leaves: stacked_forward(known(module), leaves, x),
        lambda leaves: torch.func.vmap(
            lambda one, of: torch.func.functional_call(module, one, (of,))
        )(leaves, x),
    ):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        out = call(leaves)
        weigh = torch.randn_like(out) if weigh is None else weigh
        found.append((out, *torch.autograd.grad((out * weigh).sum(), list(leaves.values()))))
    return found


RELU = nn.ReLU()
KNOWN = {
    "linear": nn.Linear(WIDTH, 3),
    "without bias": nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)),
    "one activation twice": nn.Sequential(
        nn.Linear(WIDTH, 4), RELU, nn.Linear(4, 4), RELU, nn.Linear(4, 2)
    ),
    "nested": nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(WIDTH, 4), nn.GELU()), nn.Linear(4, 3)
    ),
    "all of them": nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.SiLU(), nn.LeakyReLU(0.2)),
        *(nn.ELU(), nn.Softplus(beta=2.0), nn.Identity(), nn.Linear(WIDTH, 1)),
    ),
}


@every_case("module", KNOWN.values(), ids=KNOWN)
def test_outputs_and_gradients_are_those_of_vmap(module):
    for ours, theirs in zip(*both(module, torch.randn(CLIENTS, BATCH, WIDTH)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rows_of_several_axes():
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 3))
    for ours, theirs in zip(*both(module, torch.randn(CLIENTS, BATCH, 2, WIDTH)), strict=True):
        torch.testing.assert_close(ours, theirs)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Shared(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


def hooked(kind):
    module = nn.Sequential(nn.Linear(WIDTH, 3))
    getattr(module[0], kind)(lambda *_: None)
    return module


def replaced():
    module = nn.Sequential(nn.Linear(WIDTH, 3))
    module[0].forward = lambda x: x[:, :3]
    return module


def constant():
    module = nn.Sequential(nn.Linear(WIDTH, 3))
    weight = module[0].weight.detach()
    del module[0].weight
    module[0].register_buffer("weight", weight)
    return module


SQUARE = nn.Linear(WIDTH, WIDTH)
OTHERS = {
    "a subclass": nn.Sequential(Doubled(WIDTH, 3)),
    "a subclass of the sequence": Shared(nn.Linear(WIDTH, 3)),
    "a forward hook": hooked("register_forward_hook"),
    "a hook before": hooked("register_forward_pre_hook"),
    "a backward hook": hooked("register_full_backward_hook"),
    "a forward of its own": replaced(),
    "a parametrisation": nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 3))),
    "one layer twice": nn.Sequential(SQUARE, nn.ReLU(), SQUARE),
    "a weight that is a buffer": constant(),
    "in place": nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(inplace=True)),
    "another flattening": nn.Sequential(nn.Flatten(0), nn.Linear(WIDTH, 3)),
    "a convolution": nn.Sequential(nn.Conv2d(1, 2, 3)),
    "dropout": nn.Sequential(nn.Linear(WIDTH, 3), nn.Dropout()),
    "nothing": nn.Sequential(),
}


@every_case("module", OTHERS.values(), ids=OTHERS)
def test_what_is_not_known_exactly_is_left_to_vmap(module):
    assert known(module) is None


def test_a_frozen_parameter_is_left_to_vmap():
    module = nn.Sequential(nn.Linear(WIDTH, 3))
    assert stackable_layers(module, frozenset({"0.weight"})) is None
    assert stackable_layers(module, frozenset({"0.weight", "0.bias"})) is not None


@pytest.mark.parametrize("recipe", [Logistic(), Mlp(hidden=[7])])
def test_networks_take_the_short_way(recipe, monkeypatch):
    net = built(recipe, (WIDTH,))
    rows = torch.randn(CLIENTS, len(net.initial_params))
    x, y = torch.randn(CLIENTS, BATCH, WIDTH), torch.randint(0, 3, (CLIENTS, BATCH))
    shares = torch.full((CLIENTS, BATCH), 1 / BATCH)
    each = torch.stack([net.gradient(*one) for one in zip(rows, x, y, strict=True)])
    monkeypatch.setattr(torch.func, "vmap", None)
    torch.testing.assert_close(net.stacked_gradient(rows, x, y, shares), each)
