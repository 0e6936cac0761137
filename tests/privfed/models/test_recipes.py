"""Models: where they start, and what they are scored on."""

import math

import pytest
import torch
from helpers import built
from lanes import every_case
from safetensors.torch import save_file
from small import model, trained

from privfed.core.errors import Refused
from privfed.data.federation import Examples
from privfed.models.recipes import Logistic, Mlp


def build(recipe, init="", **changes):
    return built(recipe, (4,), init=str(init), **changes)


def test_logistic_starts_at_zero_and_mlp_from_its_seed():
    assert (build(Logistic()).initial_params == 0).all()
    assert torch.equal(build(Mlp()).initial_params, build(Mlp()).initial_params)
    assert not torch.equal(build(Mlp()).initial_params, build(Mlp(), seed=1).initial_params)


def test_building_a_model_leaves_the_callers_randomness_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    build(Mlp())
    assert torch.equal(torch.rand(2), expected)


def test_accuracy_and_loss_by_hand():
    net = build(Logistic())
    flat = torch.zeros(net.shapes.length)
    net.shapes.views(flat)["1.bias"].copy_(torch.tensor([0.0, 0.0, math.log(2.0)]))
    x, y = torch.zeros(4, 4), torch.tensor([2, 2, 2, 0])
    measures = net.evaluate(flat, Examples(x, y, 3))
    assert measures["accuracy"] == 0.75
    assert measures["loss"] == pytest.approx(-(3 * math.log(0.5) + math.log(0.25)) / 4)


def test_a_model_starts_from_a_file(tmp_path):
    path = tmp_path / "start.safetensors"
    save_file({"1.weight": torch.ones(3, 4), "1.bias": torch.arange(3.0)}, path)
    start = build(Logistic(), path).initial_params
    assert start.tolist() == [1.0] * 12 + [0.0, 1.0, 2.0]


def test_a_model_starts_from_another_runs_checkpoint(tmp_path):
    trained(tmp_path / "first")
    init = f"model.init={tmp_path / 'first/checkpoint.safetensors'}"
    prior = f"privacy.prior=['{tmp_path / 'first'}']"
    trained(tmp_path / "second", init, prior, "server.lr=0.0")
    for name, tensor in model(tmp_path / "second").items():
        if name.startswith("model/"):
            assert torch.equal(tensor, model(tmp_path / "first")[name])


@every_case(
    "tensors, message",
    [
        ({"1.weight": torch.ones(3, 4)}, "'1.bias', which is missing there"),
        ({"1.weight": torch.ones(3, 5), "1.bias": torch.ones(3)}, r"1.weight', which is \(3, 5\)"),
        ({"weight": torch.ones(3, 4), "bias": torch.ones(3)}, "4 names or shapes differ"),
    ],
)
def test_a_file_of_another_model_is_refused(tmp_path, tensors, message):
    path = tmp_path / "start.safetensors"
    save_file(tensors, path)
    with pytest.raises(Refused, match=message):
        build(Logistic(), path)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    path = tmp_path / "pickle.pt"
    path.write_bytes(b"\x80\x04 something pickled")
    with pytest.raises(Refused, match="safetensors"):
        build(Logistic(), path)
