"""The convolutional network: shapes, and training many of them at once."""

import numpy as np
import pytest
import torch
from helpers import built as build
from lanes import every_case
from torch import nn

from privfed.client.objective import Sgd
from privfed.client.trainer import LocalTrainer
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.models.networks import Cnn

STREAMS = Streams(2)


def built(**changes):
    return build(Cnn(**changes), (1, 9, 7))


@every_case("channels", [[4], [4, 8], [4, 4, 4, 4]])
def test_it_maps_images_to_logits_whatever_its_depth(channels):
    net = built(channels=channels)
    assert net.outputs(net.initial_params, torch.zeros(5, 1, 9, 7)).shape == (5, 3)


def test_it_normalises_by_groups_and_never_by_batches():
    kinds = {type(layer) for layer in built().module.modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    net = built()
    x = torch.randn(6, 1, 9, 7)
    alone = torch.cat([net.outputs(net.initial_params, x[k : k + 1]) for k in range(6)])
    torch.testing.assert_close(net.outputs(net.initial_params, x), alone, rtol=1e-4, atol=1e-5)


def test_stacked_training_equals_one_client_at_a_time():
    sizes = np.array([3, 5, 1, 4])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 1, 9, 7, generator=generator)
    examples = Examples(x, torch.randint(0, 3, (13,), generator=generator), 3)
    federation = Federation(examples, np.concatenate([[0], np.cumsum(sizes)]), examples)
    net, ids = built(channels=[4, 8]), np.arange(4)
    rows = [
        LocalTrainer(federation, net, Sgd(), 0.1, 2, 2, way).train(
            ids, {"params": net.initial_params}, None, STREAMS.at("shuffle", 1, ids)
        )[0]
        for way in ("stacked", "loop")
    ]
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-3, atol=1e-5)
    assert (rows[0].norm(dim=1) > 0).all()


def test_flat_features_and_odd_groups_are_refused():
    with pytest.raises(Refused, match=r"instead of .channels, height, width."):
        Cnn().build((64,), 10)
    with pytest.raises(Refused, match="does not divide"):
        Cnn(channels=[6]).build((1, 8, 8), 10)


class Viewing(nn.Module):
    """Flattens by `view`, which takes no tensor in another order."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        hidden = torch.relu(self.conv(x))
        return self.last(hidden.view(hidden.shape[0], -1))


class ViewingRecipe(Cnn):
    def build(self, features, width):
        return Viewing()


@pytest.mark.parametrize(("recipe", "fast"), [(ViewingRecipe(), False), (Cnn(channels=[4]), True)])
def test_images_are_reordered_only_for_modules_that_take_them_so(recipe, fast):
    net = build(recipe, (2, 6, 6))
    assert net.channels_last == fast
    x, y = torch.randn(5, 2, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    leaf = net.initial_params.clone().requires_grad_()
    (expected,) = torch.autograd.grad(net.losses(leaf, x, y).mean(), leaf)
    torch.testing.assert_close(
        net.gradient(net.initial_params, x, y), expected, rtol=1e-4, atol=1e-6
    )
