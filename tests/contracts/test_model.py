"""What every model keeps: a new module of each example by itself, with as many outputs as asked."""

import contextlib

import torch
from contracts.registered import contract_tests
from torch import nn

from privfed.core.errors import Refused
from privfed.models.recipes import Logistic, Mlp

WIDTH, TOKENS = 5, 9
INPUTS = {
    (6,): torch.randn(7, 6),
    (1, 28, 28): torch.randn(7, 1, 28, 28),
    (12,): torch.randint(0, WIDTH, (7, 12)),
}
"""Numbers, images and tokens, of which a recipe takes some."""


def built(recipe):
    """A module for each kind of examples that the recipe takes, and those."""
    modules = []
    for features, x in INPUTS.items():
        with contextlib.suppress(Refused, ValueError, RuntimeError, IndexError):
            torch.manual_seed(0)
            module = recipe.build(features, WIDTH)
            module(x)
            modules.append((module, features, x))
    assert modules, "it takes none of these examples"
    return modules


def has_as_many_outputs_as_asked(recipe):
    for module, _, x in built(recipe):
        outputs = module(x)
        assert (len(outputs), outputs.shape[-1]) == (len(x), WIDTH)
        assert outputs.isfinite().all()
        parameters = list(module.parameters())
        assert all(parameter.requires_grad for parameter in parameters)
        outputs.square().sum().backward() if outputs.any() else (outputs - 1).sum().backward()
        assert any(parameter.grad is not None for parameter in parameters)


def is_made_afresh(recipe):
    """Two modules share no parameter, and begin alike by the same seed."""
    for module, features, _ in built(recipe):
        torch.manual_seed(0)
        other = recipe.build(features, WIDTH)
        for first, second in zip(module.parameters(), other.parameters(), strict=True):
            assert first is not second
            assert first.data_ptr() != second.data_ptr()
            assert torch.equal(first, second)


def looks_at_each_example_alone(recipe):
    """Also while it trains: what is sent of a client follows from its own examples."""
    for module, _, x in built(recipe):
        outputs = module.train()(x)
        alone = torch.cat([module(x[:2]), module(x[2:])])
        torch.testing.assert_close(outputs, alone, rtol=1e-4, atol=1e-5)


class Shared(Logistic):
    """One module for all."""

    def build(self, features, width):
        return _MODULES.setdefault((features, width), super().build(features, width))


class OneMore(Logistic):
    """Outputs of another width than is asked for."""

    def build(self, features, width):
        return super().build(features, width + 1)


class Normalised(Mlp):
    """Examples are normalised by those of the same batch."""

    def build(self, features, width):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(torch.Size(features).numel()),
                             super().build(features, width))  # fmt: skip


_MODULES = {}
test_every_model_keeps, test_a_wrong_model_is_rejected_by = contract_tests(
    "model",
    {
        has_as_many_outputs_as_asked: [OneMore()],
        is_made_afresh: [Shared()],
        looks_at_each_example_alone: [Normalised()],
    },
)
