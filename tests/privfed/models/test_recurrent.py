"""Stacked LSTMs and GRUs give what PyTorch's layers give model by model."""

import copy
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, FEATURES, built, population, trainer
from lanes import every_case
from torch import nn

from privfed.core.streams import Streams
from privfed.models.recipes import UserNetwork
from privfed.models.recurrent import StackedRecurrence, unflattened

MODELS, BATCH, LENGTH, ENTRIES, WIDTH = 3, 4, 5, 6, 7
FORMS = [
    (kind, layers, *flags)
    for kind, layers, flags in itertools.product(
        (nn.LSTM, nn.GRU), (1, 2), itertools.product((False, True), repeat=3)
    )
]


def outputs_of(module, parameters, x, initial):
    states, last = torch.func.functional_call(module, parameters, (x, initial))
    return (states, *last) if isinstance(last, tuple) else (states, last)


def stacked(call, *tensors):
    with StackedRecurrence():
        return torch.func.vmap(call)(*tensors)


def compared(outputs, expected, leaves):
    """Compares outputs, and the gradients of a random weighting of all outputs."""
    weights = [torch.randn_like(each) for each in outputs]
    gradients = [
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(side, weights, strict=True)), leaves)
        for side in (outputs, expected)
    ]
    for ours, theirs in zip((*outputs, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@every_case("kind, layers, bidirectional, batch_first, bias", FORMS)
def test_outputs_and_gradients_are_those_of_pytorch(kind, layers, bidirectional, batch_first, bias):
    torch.manual_seed(0)
    module = kind(
        *(ENTRIES, WIDTH, layers),
        bias=bias,
        batch_first=batch_first,
        bidirectional=bidirectional,
    )
    parameters = {
        name: (torch.randn(MODELS, *each.shape) / 3).requires_grad_()
        for name, each in module.named_parameters()
    }
    shape = (BATCH, LENGTH) if batch_first else (LENGTH, BATCH)
    x = torch.randn(MODELS, *shape, ENTRIES, requires_grad=True)
    places = layers * (2 if bidirectional else 1)
    starts = [
        torch.randn(MODELS, places, BATCH, WIDTH, requires_grad=True)
        for _ in range(2 if kind is nn.LSTM else 1)
    ]

    def call(own, x, *starts):
        return outputs_of(module, own, x, starts if kind is nn.LSTM else starts[0])

    each = [
        call({name: value[k] for name, value in parameters.items()}, x[k], *(s[k] for s in starts))
        for k in range(MODELS)
    ]
    expected = [torch.stack(parts) for parts in zip(*each, strict=True)]
    compared(stacked(call, parameters, x, *starts), expected, [x, *starts, *parameters.values()])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_frozen_weights_are_shared_by_all_models(kind):
    torch.manual_seed(0)
    module = kind(ENTRIES, WIDTH, batch_first=True).requires_grad_(False)
    x = torch.randn(MODELS, BATCH, LENGTH, ENTRIES, requires_grad=True)
    outputs = stacked(lambda x: module(x)[0], x)
    expected = torch.stack([module(each)[0] for each in x])
    compared([outputs], [expected], [x])


@pytest.mark.parametrize(
    "module",
    [nn.RNN(2, 2), nn.LSTM(2, 4, proj_size=3), nn.LSTM(2, 2, 2, dropout=0.5)],
    ids=["plain", "projection", "dropout"],
)
def test_other_layers_are_left_to_pytorch_which_has_no_rule(module):
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        stacked(lambda x: module(x)[0], torch.randn(MODELS, LENGTH, BATCH, 2))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_loss_may_read_the_last_state_only(kind):
    torch.manual_seed(0)
    module = kind(ENTRIES, WIDTH)
    x = torch.randn(MODELS, LENGTH, BATCH, ENTRIES, requires_grad=True)

    def last(x):
        end = module(x)[1]
        return end[1] if kind is nn.LSTM else end

    compared([stacked(last, x)], [torch.stack([last(each) for each in x])], [x])


def test_weights_stay_where_they_are_on_a_gpu():
    """cuDNN would move them to memory of its own, and training would change copies."""
    network = built(UserNetwork.of(Gated)(), (FEATURES,))
    copied = pickle.loads(pickle.dumps(network.module.cell))
    for cell in (network.module.cell, copied, copy.deepcopy(copied)):
        assert cell.flatten_parameters is unflattened


def test_small_states_are_as_accurate_as_pytorchs():
    torch.manual_seed(0)
    module = nn.LSTM(ENTRIES, WIDTH)
    parameters = {
        name: 1e-4 * each.expand(1, *each.shape) for name, each in module.named_parameters()
    }
    x = 1e-3 * torch.randn(1, LENGTH, BATCH, ENTRIES)

    def states(parameters, x):
        return torch.func.functional_call(module, parameters, (x,))[0]

    alone = states({name: each[0] for name, each in parameters.items()}, x[0])
    torch.testing.assert_close(stacked(states, parameters, x)[0], alone, rtol=1e-5, atol=0.0)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.output = nn.GRU(1, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.output(self.cell(x[..., None])[1][0])


def test_training_stacked_equals_training_one_by_one():
    local = trainer(population((3, 9, 0, 4)), model=UserNetwork.of(Gated)(), batch_size=2)
    ids = np.arange(4)
    keys = Streams(3, simulated=True).at("shuffle", 1, ids)
    broadcast = {"params": local.network.initial_params}
    rows, alone = (
        replace(local, way=way).train(ids, broadcast, None, keys)[0] for way in ("stacked", "loop")
    )
    torch.testing.assert_close(rows, alone, rtol=1e-4, atol=1e-6)
    assert (rows[[0, 1, 3]].norm(dim=1) > 0).all()
