"""Sequences of plain layers: the numbers of `functional_call`, sooner; all else is left to it."""

import copy
from dataclasses import replace

import torch
from helpers import built, set_fields
from lanes import every_case
from torch import nn

from privfed.models.recipes import Mlp
from privfed.models.sequence import FEWEST_ROWS, sequence_forward, sequence_of

BATCH, CLASSES = 6, 3


def sequence(module):
    return sequence_of(module, frozenset(name for name, _ in module.named_parameters()))


def images(*layers, width=4):
    """A network for images `[1, 8, 8]`: layers that leave `[width, 4, 4]` of them, and outputs."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 16, CLASSES))


KNOWN = {
    "pooled": images(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    "normalised": images(
        nn.Conv2d(1, 4, 3, padding="same", bias=False),
        *(nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
    ),
    "windows that overlap": images(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    ),
    "strides and groups": images(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 1, groups=2)
    ),
    "means": images(nn.Conv2d(1, 4, 1), nn.AvgPool2d(2), nn.GELU()),
    "means of everything": nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        *(nn.Flatten(), nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, CLASSES)),
    ),
    "a norm without parameters": images(
        nn.Conv2d(1, 4, 1), nn.GroupNorm(1, 4, affine=False), nn.MaxPool2d(2)
    ),
    "linear first": nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES, bias=False)),
    "rows of several axes": nn.Sequential(
        nn.Linear(8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES)
    ),
}


def examples(count=BATCH):
    """Images in which many numbers of a window are equal."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-1, 2, (count, 1, 8, 8), generator=generator).float()
    x[:, :, :4, :4] = 0.0
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


class Given:
    """A recipe that gives a copy of a module."""

    def __init__(self, module):
        self.module = module

    def build(self, features, width):
        return copy.deepcopy(self.module)


def network(module):
    return built(Given(module), (1, 8, 8), CLASSES)


def left_to_pytorch(net):
    other = replace(net)
    set_fields(other, sequence=None)
    return other


@every_case("module", KNOWN.values(), ids=KNOWN)
def test_gradients_are_those_of_functional_call_to_the_bit(module):
    net, (x, y) = network(module), examples()
    assert net.sequence
    params = net.initial_params.round(decimals=1)  # so that many numbers of a window are equal
    expected = left_to_pytorch(net).gradient(params, x, y)
    assert expected.any()
    assert torch.equal(net.gradient(params, x, y), expected)


@every_case("module", KNOWN.values(), ids=KNOWN)
def test_a_step_goes_along_the_gradient(module):
    net, (x, y) = network(module), examples()
    flat = net.initial_params.clone()
    net.descend(net.leaves(flat), x, y, 0.5)
    expected = net.initial_params - 0.5 * left_to_pytorch(net).gradient(net.initial_params, x, y)
    assert not torch.equal(flat, net.initial_params)
    torch.testing.assert_close(flat, expected)


def test_a_step_of_a_module_of_ones_own_goes_along_the_gradient_too():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = nn.Linear(64, 64), nn.Linear(64, CLASSES)

        def forward(self, x):
            return self.last(x.flatten(1) + self.inner(x.flatten(1)).relu())

    net, (x, y) = network(Residual()), examples()
    assert net.sequence is None
    flat = net.initial_params.clone()
    net.descend(net.leaves(flat), x, y, 0.5)
    expected = net.initial_params - 0.5 * net.gradient(net.initial_params, x, y)
    torch.testing.assert_close(flat, expected)


def test_a_relu_waits_for_the_max_pooling_that_follows_it():
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2))
    order = [type(layer) for _, layer in sequence(nn.Sequential(*layers))]
    assert order == [nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.ReLU, nn.AvgPool2d]
    smooth = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.MaxPool2d(2))
    assert [type(layer) for _, layer in sequence(smooth)] == [nn.Conv2d, nn.GELU, nn.MaxPool2d]


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    module = nn.Sequential(nn.Conv2d(1, 2, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


SHARED = nn.Conv2d(2, 2, 1)
LEFT = {
    "a subclass": nn.Sequential(Doubled(1, 2, 3)),
    "a hook": hooked(),
    "a layer that writes": nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)),
    "other padding": nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")),
    "a layer twice": nn.Sequential(nn.Conv2d(1, 2, 1), SHARED, SHARED),
    "statistics": nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)),
    "places of the largest": nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, return_indices=True)
    ),
    "recurrence": nn.LSTM(2, 2),
}


@every_case("module", LEFT.values(), ids=LEFT)
def test_what_is_not_known_exactly_is_left_to_pytorch(module):
    assert sequence(module) is None


def test_frozen_and_tied_parameters_are_left_to_pytorch():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
    assert sequence_of(module, frozenset({"0.weight", "0.bias", "1.weight"})) is None
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert sequence(tied) is None


def test_in_mixed_precision_convolutions_are_rounded_and_norms_and_thin_products_are_not():
    module = KNOWN["normalised"]
    parameters, layers = dict(module.named_parameters()), sequence(module)
    kinds = {
        type(layer): sequence_forward(layers[:place], parameters, examples()[0], mixed=10).dtype
        for place, (_, layer) in enumerate(layers, 1)
    }
    assert kinds[nn.Conv2d] == torch.bfloat16
    assert kinds[nn.Linear] == torch.float32
    assert all(p.dtype == torch.float32 for p in parameters.values())


@every_case("way", ["alone", "stacked"])
@every_case("rows", [1, FEWEST_ROWS])
@every_case("batch_size", [FEWEST_ROWS - 1, FEWEST_ROWS])
def test_linear_layers_are_rounded_where_a_full_batch_has_enough_rows(way, rows, batch_size):
    """Whatever the batch at hand: how wide that is depends on who else is trained."""
    full = built(Mlp(hidden=[7]), (5,), CLASSES)
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0))
    y, shares = torch.zeros(rows, dtype=torch.int64), torch.full((1, rows), 1 / rows)

    def gradient(net):
        params = net.initial_params
        if way == "alone":
            return net.gradient(params, x, y)
        return net.stacked_gradient(params[None], x[None], y[None], shares)[0]

    exact, rounded = gradient(full), gradient(replace(full, mixed=batch_size))
    assert rounded.dtype == torch.float32
    std = (rounded - exact).norm() / exact.norm()
    assert (1e-4 < std < 0.05) if batch_size >= FEWEST_ROWS else std == 0


def test_positions_are_rows_too():
    weight = torch.randn(3, 4)
    for positions in (FEWEST_ROWS - 1, FEWEST_ROWS):
        x = torch.randn(2, positions, 4)
        layers = sequence(nn.Linear(4, 3, bias=False))
        out = sequence_forward(layers, {"weight": weight}, x, mixed=1)
        assert out.dtype == (torch.bfloat16 if positions >= FEWEST_ROWS else torch.float32)
