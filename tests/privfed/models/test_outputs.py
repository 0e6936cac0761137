"""Models that return more than a tensor are asked for their logits, wherever they are called."""

import collections
from types import SimpleNamespace

import pytest
import torch
from helpers import CPU, built
from lanes import every_case
from small import model, small, trained
from torch import nn

from privfed.client.silos import PerExample
from privfed.core.errors import Refused
from privfed.models.recipes import UserNetwork
from privfed.report.plan import plan_table
from privfed.run.check import check
from privfed.run.prepare import prepare

Pair = collections.namedtuple("Pair", "hidden logits")


class Several(nn.Module):
    """Logits among other things, in a container of the kind `as_`."""

    def __init__(self, features=(6,), width=3, as_="dict"):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.as_ = nn.Linear(features[0], 5), nn.Linear(5, width), as_

    def forward(self, x):
        hidden = self.body(x).tanh()
        logits = self.head(hidden)
        return {
            "tensor": logits,
            "dict": {"hidden": hidden, "logits": logits, "loss": None},
            "tuple": (hidden, logits),
            "namedtuple": Pair(hidden, logits),
            "object": SimpleNamespace(hidden=hidden, logits=logits),
            "empty": {"loss": None},
        }[self.as_]


def network(as_, output, **start):
    def recipe(features, width):
        return Several(features, width, as_)

    return built(UserNetwork.of(recipe)(), (6,), output=output, **start)


HELD = [("dict", "logits"), ("tuple", 1), ("namedtuple", 1), ("object", "logits")]


@every_case("as_, output", [*HELD, ("namedtuple", "logits")])
def test_outputs_are_taken_from_wherever_a_model_holds_them(as_, output):
    plain, held = network("tensor", ""), network(as_, output)
    assert held.shapes == plain.shapes, "parameters keep their names"
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    assert torch.equal(held.outputs(held.initial_params, x), plain.outputs(plain.initial_params, x))
    assert torch.equal(
        held.gradient(held.initial_params, x, y), plain.gradient(plain.initial_params, x, y)
    )
    rows, many, labels = held.initial_params.repeat(2, 1), x.repeat(2, 1, 1), y.repeat(2, 1)
    shares = torch.full((2, 4), 0.25)
    stacked = held.stacked_gradient(rows, many, labels, shares)
    assert torch.allclose(stacked[1], plain.gradient(plain.initial_params, x, y), atol=1e-6)


@every_case("as_, output", HELD)
def test_without_a_key_the_refusal_names_them_and_says_what_to_set(as_, output):
    written = output if isinstance(output, int) else f'"{output}"'
    likely = 0 if isinstance(output, int) else written  # of places none is likelier
    with pytest.raises(Refused) as refused:
        network(as_, "")
    message = str(refused.value)
    assert "(3, 5)" in message
    assert "(3, 3)" in message
    assert f"model.output = {likely}" in message


@every_case(
    "as_, output, message",
    [
        ("dict", "logit", r"model.output is 'logit', but .* 'logits' \(3, 3\); .*\"logits\""),
        ("tuple", 2, r"model.output is 2, but the model returns a tuple that holds 0 \(3, 5\), 1"),
        ("tensor", "logits", r"returns a tensor of shape \(3, 3\); leave model.output out"),
        ("empty", "logits", "a dict without any tensor; leave model.output out"),
        ("empty", "", "output is dict, but must be"),
        ("dict", "hidden", r"output is \(3, 5\), but must be \(3, 3\)"),
        ("dict", "loss", r"model.output is 'loss', but the model returns a dict that holds 'hid"),
    ],
)
def test_other_keys_are_refused(as_, output, message):
    with pytest.raises(Refused, match=message):
        network(as_, output)


NAMED = (f"model.name={__name__}:Several", "run.rounds=1", "run.randomness=seeded")


def test_a_run_trains_it_stacked_as_in_a_loop_and_check_names_the_output(tmp_path):
    keys = (*NAMED, "model.output=logits")
    trained(tmp_path / "stacked", *keys)
    trained(tmp_path / "loop", *keys, "run.trainer=loop")
    one, other = (model(tmp_path / way)["model/head.weight"] for way in ("stacked", "loop"))
    assert torch.allclose(one, other, atol=1e-5)
    checked = check(small(*keys))
    shown = plan_table(checked.plan, checked.forecast, None).columns[1]._cells
    assert any("its output 'logits' (" in str(cell) for cell in shown)
    place = prepare(small(*NAMED, "model.arguments={as_='tuple'}", "model.output=1"))
    assert place.network.shapes == prepare(small(*keys)).network.shapes


def test_gradients_of_single_examples_see_the_same_outputs():
    held, plain = network("dict", "logits"), network("tensor", "")
    x, y = torch.randn(3, 6), torch.tensor([0, 1, 2])
    found, wanted = (
        PerExample(net).gradients(net.initial_params.to(CPU), x, y) for net in (held, plain)
    )
    assert torch.allclose(found, wanted, atol=1e-6)
