"""Mixed precision: rougher gradients, within a tolerance, and nothing else."""

import numpy as np
import pytest
import torch
from small import model, small, trained
from torch import nn

from privfed.errors import Refused
from privfed.plan.plan import plan
from privfed.run.prepare import prepare

MIXED = "run.precision=mixed"


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_gradients_are_rougher_but_parameters_and_scores_are_not(way):
    full, rough = (
        prepare(small("model.name=mlp", f"run.trainer={way}", f"run.precision={precision}"))
        for precision in ("full", "mixed")
    )
    x, y = full.federation.examples.made_up(6)
    exact, found = (net.gradient(net.initial_params, x, y) for net in (full.network, rough.network))
    assert found.dtype == torch.float32
    assert 1e-5 < (found - exact).norm() / exact.norm() < 0.05
    assert torch.equal(full.network.initial_params, rough.network.initial_params)
    outputs = [net.outputs(net.initial_params, x) for net in (full.network, rough.network)]
    assert torch.equal(*outputs)
    ids = np.arange(full.federation.clients)
    keys = full.streams.at("shuffle", 1, ids)
    rows = [
        setup.executor.trainer.train(ids, {"params": setup.network.initial_params}, None, keys)[0]
        for setup in (full, rough)
    ]
    assert 1e-5 < (rows[1] - rows[0]).norm() / rows[0].norm() < 0.05


def test_a_run_in_mixed_precision_says_so_and_ends_near_another_model(tmp_path):
    for precision in ("full", "mixed"):
        trained(tmp_path / precision, f"run.precision={precision}", "run.randomness=seeded")
    assert 'precision = "mixed"' in (tmp_path / "mixed/config.toml").read_text()
    full, mixed = (
        torch.cat([one.flatten() for name, one in model(tmp_path / end).items() if "model" in name])
        for end in ("full", "mixed")
    )
    assert 0 < (full - mixed).norm() < 0.05 * full.norm()


class Cancelling(nn.Module):
    """Adds a large number and takes it away again: three digits are not enough for it."""

    def __init__(self, features, width):
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, width)

    def forward(self, x):
        first = self.first(x)
        return self.second(first + 3000.0) - self.second(torch.full_like(first, 3000.0))


def cancelling(features, width):
    (count,) = features
    return Cancelling(count, width)


def test_a_model_that_loses_too_much_is_refused():
    config = small(f"model.name={__name__}:cancelling", MIXED)
    with pytest.raises(Refused, match=r'of its norm.*use "full"'):
        prepare(config)


def test_gradients_of_single_examples_stay_in_full_precision():
    settings = ("client.privacy.mechanism=dp_sgd", "data.setting=cross_silo", MIXED)
    with pytest.raises(Refused, match="stay in full precision"):
        plan(small(*settings, "client.privacy.noise_multiplier=1.0", "privacy.mechanism=none"))
