"""Any torch.nn.Module: what of it is trained, what stays, and what is refused by name."""

import sys

import numpy as np
import pytest
import torch
from helpers import built
from safetensors.torch import save_file
from small import SMALL, model, trained
from torch import nn

from privfed.config import load
from privfed.errors import Broken, Refused
from privfed.federation import Examples, Federation
from privfed.local.measure import fastest
from privfed.local.sgd import Sgd
from privfed.local.trainer import LocalTrainer
from privfed.lstm import Lstm
from privfed.models import Foreign
from privfed.run import resume, train
from privfed.streams import Streams


def foreign(module):
    """A recipe for a given module, or for what a function returns."""
    function = (lambda: module) if isinstance(module, nn.Module) else module
    return Foreign.of(function)()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.last(torch.tanh(self.first(x))))


class Positions(nn.Module):
    """A constant buffer, and a head."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), 0.0, 0.0]))
        self.register_buffer("shift", torch.arange(4), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x.exp() * self.mask.exp() + self.shift)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.seen += x.sum(0)
        return self.head(x + self.seen)


class Parameter(nn.Module):
    """A head, and a parameter of some type."""

    def __init__(self, value, grad=True):
        super().__init__()
        self.value = nn.Parameter(value, requires_grad=grad)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x) + self.value.real.sum()


def shared():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[1].weight = nn.Parameter(module[0].weight.data)
    return module


def federation(count=9, features=4, classes=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=generator)
    examples = Examples(x, torch.randint(0, classes, (count,), generator=generator), classes)
    return Federation(examples, np.array([0, 3, 8, 9]), examples)


def rows(net, way, ids=(0, 1, 2), federation=None, epochs=2, round=1):
    ids = np.array(ids)
    local = LocalTrainer(federation or population, net, Sgd(), 0.1, epochs, 2, way)
    keys = Streams(1).at("shuffle", round, ids)
    return local.train(ids, {"params": net.start}, None, keys)[0]


population = federation()


@pytest.mark.parametrize("module", [Tied(), Positions(), Parameter(torch.zeros(2))])
def test_tied_parameters_and_constant_buffers_train_as_torch_trains_them(module):
    reference = list(module.parameters())
    net = built(foreign(module), (4,))
    assert net.shapes.length == sum(p.numel() for p in reference)
    stacked, loop = rows(net, "stacked"), rows(net, "loop")
    torch.testing.assert_close(stacked, loop, rtol=1e-3, atol=1e-6)
    nn.utils.vector_to_parameters(net.start.clone(), module.parameters())
    module.requires_grad_(True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = population.examples.x[8:9], population.examples.y[8:9]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    moved = nn.utils.parameters_to_vector(module.parameters()).detach() - net.start
    torch.testing.assert_close(loop[2], moved, rtol=1e-3, atol=1e-6)


REFUSED = {
    "batch normalisation": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "'1' is a batch"),
    "without statistics": (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        "'1' is a batch normalisation",
    ),
    "a buffer that changes": (Counting(), "'seen' is a buffer that training changes"),
    "complex": (Parameter(torch.zeros(2, dtype=torch.complex64)), "'value' is complex"),
    "double": (Parameter(torch.zeros(2, dtype=torch.float64)), r"'value' is torch.float64; call"),
    "half": (nn.Linear(4, 3).half(), r"'weight' is torch.float16"),
    "shared memory": (shared, "'1.weight' shares its memory with '0.weight'"),
    "too many outputs": (nn.Linear(4, 5), r"the model gives \(2, 5\); expected \(2, 3\)"),
    "no tensor": (nn.LSTM(4, 3), "the model gives tuple"),
    "other features": (nn.Linear(7, 3), r"does not take examples of shape \(4,\)"),
    "nothing to train": (nn.Linear(4, 3).requires_grad_(False), "no trainable parameter"),
    "no module": (lambda: 3, "returned int; expected a torch.nn.Module"),
    "an error of its own": (lambda: 1 / 0, "ZeroDivisionError"),
    "unknown arguments": (lambda depth: nn.Linear(4, 3), "missing 1 required positional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(case):
    module, message = REFUSED[case]
    with pytest.raises(Refused, match=message):
        built(foreign(module), (4,))


def test_integer_parameters_are_constants():
    net = built(foreign(Parameter(torch.ones(2, dtype=torch.int64), grad=False)), (4,))
    assert net.shapes.names == ("head.weight", "head.bias")
    assert set(net.constants) == {"value"}


def test_lazy_layers_learn_their_shape_from_made_up_examples():
    net = built(foreign(lambda width: nn.Sequential(nn.LazyLinear(5), nn.Linear(5, width))), (4,))
    assert net.shapes.length == 4 * 5 + 5 + 5 * 3 + 3


def test_a_function_gets_what_it_asks_for():
    def function(features, classes, hidden=2):
        return nn.Sequential(nn.Linear(*features, hidden), nn.Linear(hidden, classes))

    net = built(Foreign.of(function)(arguments={"hidden": 7}), (4,))
    assert net.shapes.shapes[0] == (7, 4)


def test_dropout_is_the_clients_own_whatever_the_chunk_and_off_when_scoring():
    recipe = foreign(nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    net = built(recipe, (4,))
    assert net.random
    together = rows(net, "loop")
    alone = torch.cat([rows(net, "loop", [client]) for client in (0, 1, 2)])
    torch.testing.assert_close(together, alone, rtol=0, atol=0)
    assert not torch.equal(together, rows(net, "loop", round=2))
    before = torch.random.get_rng_state()
    rows(net, "loop")
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's randomness was used"
    score = net.evaluate(net.start, population.examples)
    assert score == net.evaluate(net.start, population.examples)
    local = LocalTrainer(population, net, Sgd(), 0.1, 1, 2, "stacked")
    assert fastest(local, 4, "auto", 0).way == "loop"
    with pytest.raises(Refused, match="draws while it trains"):
        fastest(local, 4, "stacked", 0)


def characters(way="loop", **changes):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 7, (9, 5), generator=generator)
    y = torch.randint(-1, 7, (9, 5), generator=generator)
    examples = Examples(x, y, 7)
    people = Federation(examples, np.array([0, 3, 8, 9]), examples)
    return people, built(Lstm(embedding=3, hidden=6, **changes), None, 7, x=x, y=y)


def test_the_lstm_predicts_every_position_and_trains_one_client_after_the_other():
    people, net = characters()
    assert net.outputs(net.start, people.examples.x).shape == (9, 5, 7)
    assert [name for name in net.shapes.names if "weight_ih" in name] == [
        "lstm.weight_ih_l0",
        "lstm.weight_ih_l1",
    ]
    local = LocalTrainer(people, net, Sgd(), 0.1, 1, 9, "stacked")
    assert fastest(local, 4, "auto", 0).way == "loop"
    with pytest.raises(Refused, match="cannot be stacked"):
        fastest(local, 4, "stacked", 0)
    row = rows(net, "loop", [2], people, epochs=1)[0]
    leaf = net.start.clone().requires_grad_()
    outputs = net.outputs(leaf, people.examples.x[8:9])
    nn.functional.cross_entropy(
        outputs.flatten(0, 1), people.examples.y[8], ignore_index=-1
    ).backward()
    torch.testing.assert_close(row, -0.1 * leaf.grad, rtol=1e-4, atol=1e-6)


def test_the_lstm_wants_sequences():
    with pytest.raises(Refused, match="expected a sequence of tokens"):
        Lstm().build((3, 4), 5)


def pretrained():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_frozen_layers_leave_the_vector_and_keep_their_statistics():
    net = built(foreign(pretrained()), (4,), frozen=["0", "1.*"])
    assert net.shapes.names == ("3.weight", "3.bias")
    assert set(net.constants) == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    before = {name: tensor.clone() for name, tensor in net.constants.items()}
    moved = rows(net, "stacked")
    assert (moved.norm(dim=1) > 0).all()
    torch.testing.assert_close(moved, rows(net, "loop"), rtol=1e-3, atol=1e-6)
    net.evaluate(net.start, population.examples)
    assert all(torch.equal(before[name], net.constants[name]) for name in before)
    with pytest.raises(Refused, match=r"nothing is called 'head'; expected one of 0\.weight"):
        built(foreign(pretrained()), (4,), frozen=["head"])


def test_a_public_start_may_lack_a_fresh_head(tmp_path):
    path = tmp_path / "start.safetensors"
    module = pretrained()
    tensors = {name: t.contiguous() for name, t in module.state_dict().items()}
    tensors["1.running_mean"] = torch.full((6,), 0.25)
    other = {**tensors, "3.weight": torch.zeros(10, 6), "3.bias": torch.zeros(10)}
    save_file(other, path)
    with pytest.raises(Refused, match=r"3\.bias', which is \(10,\) there and \(3,\)"):
        built(foreign(pretrained()), (4,), init=str(path), frozen=["0", "1"])
    net = built(foreign(pretrained()), (4,), init=str(path), frozen=["0", "1"], fresh=["3"])
    assert torch.equal(net.constants["0.weight"], tensors["0.weight"])
    assert (net.constants["1.running_mean"] == 0.25).all()


MODULE = """
import torch
from torch import nn

def network(features, width, hidden=4):
    return nn.Sequential(nn.Linear(*features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                         nn.Linear(hidden, width))

def broken(:
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a user's own module in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_module.py").write_text(MODULE.partition("def broken")[0])
    (tmp_path / "my_broken_module.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("my_own_module", None)


OWN = ["model.name=my_own_module:network", "model.frozen=['0', '1']", "model.arguments={hidden=5}"]


def test_ones_own_module_trains_freezes_resumes_and_starts_another_run(here):
    trained(here / "run", *OWN, "run.randomness=seeded")
    names = {name for name in model(here / "run") if name.startswith("model/")}
    assert names == {"model/3.weight", "model/3.bias"}
    short = here / "short"
    trained(short, *OWN, "run.randomness=seeded", "run.rounds=3")
    resume(short, lambda stored: stored.with_run(rounds=7))
    for name, tensor in model(here / "run").items():
        assert torch.equal(tensor, model(short)[name]), name
    init = [*OWN, f"model.init={here / 'run'}", "server.lr=0.0"]
    trained(here / "next", *init)
    assert torch.equal(model(here / "next")["model/3.bias"], model(here / "run")["model/3.bias"])
    first, second = ((here / run / "constants.safetensors").read_bytes() for run in ("run", "next"))
    assert first == second


def test_an_edited_constant_is_noticed(here):
    trained(here / "run", *OWN, "run.rounds=3")
    path = here / "run/constants.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Broken, match="frozen part of the model"):
        resume(here / "run", lambda stored: stored.with_run(rounds=5))
    path.unlink()
    with pytest.raises(Broken):
        resume(here / "run", lambda stored: stored.with_run(rounds=5))


@pytest.mark.parametrize(
    "name, message",
    [
        ("my_broken_module:broken", "cannot be imported: SyntaxError"),
        ("my_missing_module:network", "cannot be imported: ModuleNotFoundError"),
        ("my_own_module:nothing", "cannot be imported: AttributeError"),
        ("my_own_module:torch", "which is no part"),
    ],
)
def test_a_module_that_does_not_import_is_refused(here, name, message):
    with pytest.raises(Refused, match=message):
        train(load(None, [*SMALL, f"model.name={name}"]), here / "run")
    assert not (here / "run").exists()
