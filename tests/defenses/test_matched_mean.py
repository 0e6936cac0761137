"""Networks that differ by the order of their hidden units average to what they agree on."""

import itertools

import pytest
import torch
from lanes import every_case
from torch import nn

from defenses.before.nnm import NearestNeighbourMixing
from defenses.on_rows.matched_mean import MatchedMean
from defenses.weighing import Composed

RULE, HIDDEN = MatchedMean(), (5, 4)


def network(seed):
    torch.manual_seed(seed)
    widths = (3, *HIDDEN, 2)
    pairs = [nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in itertools.pairwise(widths)]
    return nn.Sequential(*pairs)


def flat(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def sizes(module):
    return torch.tensor([parameter.numel() for parameter in module.parameters()])


def shuffled(module, seed):
    """The same function, its hidden units in another order."""
    generator = torch.Generator().manual_seed(seed)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    parts = [[layer.weight.detach(), layer.bias.detach()] for layer in layers]
    for here, after in itertools.pairwise(parts):
        order = torch.randperm(len(here[1]), generator=generator)
        here[0], here[1] = here[0][order], here[1][order]
        grouped = after[0].reshape(len(after[0]), len(order), -1)
        after[0] = grouped[:, order].reshape(after[0].shape)
    return torch.cat([part.reshape(-1) for pair in parts for part in pair])


def outputs(module, vector, x):
    nn.utils.vector_to_parameters(vector, module.parameters())
    return module(x).detach()


def convolutional():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip


@every_case("start", ["another network", "a network like it"])
@every_case(
    "make, shape",
    [(lambda: network(1), (6, 3)), (convolutional, (6, 1, 8, 8))],
    ids=["dense", "convolutions"],
)
def test_permutations_of_a_network_average_to_it_and_their_mean_does_not(make, shape, start):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    module = make()
    learned, layers = flat(module), sizes(module)
    wanted = outputs(make(), learned, x)
    noise = torch.randn(len(learned), generator=torch.Generator().manual_seed(4))
    model = noise if start == "another network" else learned + 0.01 * noise
    rows = torch.stack([shuffled(module, seed) for seed in range(4)]) - model
    average = model + RULE(rows, 0, model=model, layers=layers)
    torch.testing.assert_close(outputs(make(), average, x), wanted, rtol=1e-4, atol=1e-5)
    mean = model + rows.mean(0)
    assert (outputs(make(), mean, x) - wanted).abs().mean() > 0.05
    if start == "a network like it":
        torch.testing.assert_close(average, learned)


def test_the_assignment_is_the_one_of_least_distance():
    """Against every order of the units of one hidden layer."""
    torch.manual_seed(0)
    layers, model, row = torch.tensor([8, 4, 8, 2]), torch.randn(22), 3 * torch.randn(1, 22)
    after = model + RULE(row, 0, model=model, layers=layers)

    def units(vector):
        return torch.cat([vector[:8].view(4, 2), vector[8:12, None]], dim=1)

    def distance(order):
        return float((units(model + row[0])[list(order)] - units(model)).square().sum())

    best = min(itertools.permutations(range(4)), key=distance)
    torch.testing.assert_close(units(after), units(model + row[0])[list(best)])
    assert best != (0, 1, 2, 3)


def test_networks_in_the_models_order_are_averaged_as_they_are():
    module = network(3)
    model, layers = flat(module), sizes(module)
    rows = 0.01 * torch.randn(5, len(model), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(RULE(rows, 0, model=model, layers=layers), rows.mean(0))
    rows[2] = torch.nan
    left = RULE(rows, 5, model=model, layers=layers)
    torch.testing.assert_close(left, rows[[0, 1, 3, 4]].mean(0))
    nobody = RULE(rows[2:3], 0, model=model, layers=layers)
    assert not nobody.any()


@every_case(
    "layers, fits",
    [
        ((6, 2), True),
        ((6, 2, 4, 2), True),
        ((54, 6, 48, 2), True),
        ((6, 2, 5, 1), False),
        ((6, 2, 4), False),
        ((5, 2), False),
        ((), False),
        ((24, 24, 12, 12), False),
        ((144, 16, 16, 16, 320, 10), False),
    ],
    ids=str,
)
def test_it_suits_chains_of_weights_and_biases_alone(layers, fits):
    assert (RULE.unfit_reason(layers) == "") == fits
    composed = Composed(before=(NearestNeighbourMixing(),), rule=RULE)
    assert composed.unfit_reason(layers) == RULE.unfit_reason(layers)
    if not fits:
        with pytest.raises(ValueError, match="must be a chain"):
            RULE(torch.zeros(1, sum(layers)), 0, model=torch.zeros(0), layers=torch.tensor(layers))
