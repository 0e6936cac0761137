"""Any torch.nn.Module: what of it is trained, what stays, and what is refused by name."""

import importlib
import sys
import textwrap
import warnings

import numpy as np
import pytest
import torch
from helpers import built
from lanes import every_case
from safetensors.torch import load_file, save_file
from small import SMALL, model, trained
from torch import nn

import privfed
from privfed.client.autotune import fastest
from privfed.client.objective import Sgd
from privfed.client.trainer import LocalTrainer
from privfed.config.reading import load
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.models.networks import Lstm
from privfed.models.recipes import UserNetwork
from privfed.run.train import resume, train
from privfed.store.checkpoint import Checkpoint
from privfed.trained.evaluate import evaluate


def foreign(module):
    """A recipe for a given module, or for what a function returns."""
    function = (lambda: module) if isinstance(module, nn.Module) else module
    return UserNetwork.of(function)()


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
    return local.train(ids, {"params": net.initial_params}, None, keys)[0]


population = federation()


@every_case("module", [Tied(), Positions(), Parameter(torch.zeros(2))])
def test_tied_parameters_and_constant_buffers_train_as_torch_trains_them(module):
    reference = list(module.parameters())
    net = built(foreign(module), (4,))
    assert net.shapes.length == sum(p.numel() for p in reference)
    stacked, loop = rows(net, "stacked"), rows(net, "loop")
    torch.testing.assert_close(stacked, loop, rtol=1e-3, atol=1e-6)
    nn.utils.vector_to_parameters(net.initial_params.clone(), module.parameters())
    module.requires_grad_(True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = population.examples.x[8:9], population.examples.y[8:9]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    moved = nn.utils.parameters_to_vector(module.parameters()).detach() - net.initial_params
    torch.testing.assert_close(loop[2], moved, rtol=1e-3, atol=1e-6)


class Constant(nn.Module):
    """Adds zero times a parameter."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, x):
        return x


class Remembering(nn.Module):
    """Its output depends on the call before, by a plain attribute."""

    def __init__(self):
        super().__init__()
        self.head, self.last = nn.Linear(4, 3), None

    def forward(self, x):
        out = self.head(x) + (0 if self.last is None else self.last)
        self.last = out.detach().mean(0)
        return out


class Hoarding(nn.Module):
    """Its output depends on former calls, by what no tensor of its own shows."""

    def __init__(self):
        super().__init__()
        self.head, self.seen = nn.Linear(4, 3), []

    def forward(self, x):
        self.seen.append(float(x.sum()))
        return self.head(x) + sum(self.seen)


class WhenTrained(Counting):
    """A buffer that changes only where gradients are taken."""

    def forward(self, x):
        if torch.is_grad_enabled():
            return super().forward(x)
        return self.head(x)


class SelfChanging(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        self.scale.data.mul_(1.01)
        return self.head(x * self.scale)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.weights = [self.first.weight]

    def forward(self, x):
        return self.head(x @ self.weights[0])


class Computed(nn.Module):
    """A head behind a given function."""

    def __init__(self, function):
        super().__init__()
        self.head, self.function = nn.Linear(4, 3), function

    def forward(self, x):
        return self.function(self.head(x))


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(nn.Linear(4, 3), torch.zeros(2, 4))


REFUSED = {
    "memory in a tensor": (
        Remembering(),
        "'last' is a buffer .or a parameter.",
    ),
    "memory in a list": (Hoarding(), "keeps state between calls"),
    "memory where trained": (
        WhenTrained(),
        "'seen' is a buffer .or a parameter.",
    ),
    "a frozen parameter that it changes": (SelfChanging(), "'scale' is a buffer .or a parameter."),
    "batch statistics": (
        Computed(lambda x: nn.functional.batch_norm(x, None, None, training=True)),
        "mixes the examples of a batch",
    ),
    "a centred batch": (Computed(lambda x: x - x.mean(0)), "mixes the examples of a batch"),
    "held twice": (Listed(), "from another place than its name"),
    "not finite": (Computed(lambda x: x / 0), "has outputs that are not finite"),
    "no gradient": (Computed(torch.Tensor.detach), "does not require grad|gradient of zero"),
    "TorchScript": (scripted, "a TorchScript module"),
    "a module for a function": (lambda: nn.Linear(4, 3)(), "missing 1 required positional"),
    "an exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "a start that is not finite": (
        lambda: nn.Sequential(nn.Linear(4, 3), Constant(torch.tensor(float("nan")))),
        "not all finite",
    ),
    "batch normalisation": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "'1' is a batch"),
    "without statistics": (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        "'1' is a batch normalisation",
    ),
    "a buffer that changes": (
        Counting(),
        "'seen' is a buffer .or a parameter.",
    ),
    "complex": (Parameter(torch.zeros(2, dtype=torch.complex64)), "'value' is complex"),
    "double": (Parameter(torch.zeros(2, dtype=torch.float64)), r"'value' is torch.float64; call"),
    "half": (nn.Linear(4, 3).half(), r"'weight' is torch.float16"),
    "shared memory": (shared, "'1.weight' shares its memory with '0.weight'"),
    "too many outputs": (nn.Linear(4, 5), r"output is \(3, 5\), but must be \(3, 3\)"),
    "no tensor": (nn.LSTM(4, 3), r"a tuple that holds 0 \(3, 3\); .*model.output = 0"),
    "other features": (nn.Linear(7, 3), r"cannot process these examples, numbers of shape \(4,\)"),
    "nothing to train": (nn.Linear(4, 3).requires_grad_(False), "no trainable parameter"),
    "no module": (lambda: 3, "returned int; expected a torch.nn.Module"),
    "an error of its own": (lambda: 1 / 0, "ZeroDivisionError"),
    "unknown arguments": (lambda depth: nn.Linear(4, 3), "missing 1 required positional"),
}


@every_case("case", REFUSED)
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

    net = built(UserNetwork.of(function)(arguments={"hidden": 7}), (4,))
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
    score = net.evaluate(net.initial_params, population.examples)
    assert score == net.evaluate(net.initial_params, population.examples)
    local = LocalTrainer(population, net, Sgd(), 0.1, 1, 2, "stacked")
    assert fastest(local, 4, "auto", 0).way == "loop"
    with pytest.raises(Refused, match="draws random numbers in training"):
        fastest(local, 4, "stacked", 0)


class Standardised(nn.Module):
    """Each example by its own mean and deviation: NaN where all its features are equal."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))


def test_no_client_changes_what_another_one_sends():
    """Others pad their batches when a larger client joins, and padding may not reach them."""
    net = built(foreign(Standardised()), (4,))
    sizes = [10, *[9] * 20, 3, 0]
    examples = federation(sum(sizes)).examples
    dataset = Federation(examples, np.concatenate([[0], np.cumsum(sizes)]), examples)
    ids = np.arange(len(sizes))
    for batch_size in (4, 10, 10**6):
        local = LocalTrainer(dataset, net, Sgd(), 0.1, 2, batch_size, "stacked")

        def sent(ids, local=local):
            keys = Streams(1).at("shuffle", 1, ids)
            return local.train(ids, {"params": net.initial_params}, None, keys)[0]

        everybody, others = sent(ids), sent(ids[1:])
        assert bool(everybody.isfinite().all())
        torch.testing.assert_close(everybody[1:], others, rtol=1e-4, atol=1e-6)
        assert (others[:-1].norm(dim=1) > 0).all()


def test_a_clients_own_bad_example_spoils_its_own_row_only():
    net = built(foreign(Standardised()), (4,))
    dataset = federation()
    dataset.examples.x[4] = 1.0  # client 1's, all features equal
    found = rows(net, "stacked", federation=dataset)
    assert found[1].isnan().any()
    assert found[[0, 2]].isfinite().all()


def test_dropout_before_a_layer_that_starts_at_zero_is_noticed():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    net = built(foreign(module), (4,))
    assert net.random
    together = rows(net, "loop")
    alone = torch.cat([rows(net, "loop", [client]) for client in (0, 1, 2)])
    torch.testing.assert_close(together, alone, rtol=0, atol=0)


def test_a_tied_parameter_is_frozen_by_either_of_its_names():
    for pattern in ("first", "last", "last.weight"):
        net = built(foreign(Tied()), (4,), frozen=[pattern])
        assert not any("weight" in name for name in net.shapes.names if "out" not in name)


def test_scoring_does_not_change_the_model():
    class Bounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 3, max_norm=0.1)

        def forward(self, x):
            return self.embedding(x)

    x = torch.randint(0, 7, (2, 5))
    with pytest.raises(Refused, match=r"changes its parameters when it is called"):
        built(foreign(Bounded()), None, 3, x=x, y=torch.zeros(2, 5, dtype=torch.int64))
    net = built(foreign(nn.Linear(4, 3)), (4,))
    net.module.forward = lambda x: nn.functional.linear(x, net.module.weight.mul_(2))
    before = net.initial_params.clone()
    list(net.scored(net.initial_params, population.examples))
    assert torch.equal(net.initial_params, before)


def characters(way="loop", **changes):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 7, (9, 5), generator=generator)
    y = torch.randint(-1, 7, (9, 5), generator=generator)
    examples = Examples(x, y, 7)
    dataset = Federation(examples, np.array([0, 3, 8, 9]), examples)
    return dataset, built(Lstm(embedding=3, hidden=6, **changes), None, 7, x=x, y=y)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_the_lstm_predicts_every_position_and_trains(way):
    dataset, net = characters()
    assert net.outputs(net.initial_params, dataset.examples.x).shape == (9, 5, 7)
    assert [name for name in net.shapes.names if "weight_ih" in name] == [
        "lstm.weight_ih_l0",
        "lstm.weight_ih_l1",
    ]
    local = LocalTrainer(dataset, net, Sgd(), 0.1, 1, 9, "stacked")
    assert fastest(local, 4, "auto", 0).unstacked is None
    row = rows(net, way, [2], dataset, epochs=1)[0]
    leaf = net.initial_params.clone().requires_grad_()
    outputs = net.outputs(leaf, dataset.examples.x[8:9])
    nn.functional.cross_entropy(
        outputs.flatten(0, 1), dataset.examples.y[8], ignore_index=-1
    ).backward()
    torch.testing.assert_close(row, -0.1 * leaf.grad, rtol=1e-4, atol=1e-6)


def test_the_lstm_wants_sequences():
    with pytest.raises(Refused, match="instead of a sequence of tokens"):
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
    net.evaluate(net.initial_params, population.examples)
    assert all(torch.equal(before[name], net.constants[name]) for name in before)
    with pytest.raises(Refused, match=r"names 'head', but .*; expected one of 0\.weight"):
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
    monkeypatch.setattr(sys, "path", [*sys.path])
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
    init = [*OWN, f"model.init={here / 'run'}", "server.lr=0.0", "run.randomness=seeded"]
    with pytest.raises(Refused, match=r"was trained .*on this population.*privacy\.prior"):
        trained(here / "next", *init)
    trained(here / "next", *init, f"privacy.prior=['{here / 'run'}']")
    assert torch.equal(model(here / "next")["model/3.bias"], model(here / "run")["model/3.bias"])
    first, second = (load_file(here / run / "constants.safetensors") for run in ("run", "next"))
    assert first.keys() == second.keys() != set()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_code_that_was_changed_is_noticed(here):
    trained(here / "run", *OWN, "run.rounds=3")
    path = here / "my_own_module.py"
    path.write_text(path.read_text().replace("ReLU", "Sigmoid"))
    sys.modules.pop("my_own_module")
    importlib.invalidate_caches()
    with pytest.raises(Broken, match="the model's code computes other outputs"):
        resume(here / "run", lambda stored: stored.with_run(rounds=5))
    with pytest.raises(Broken, match="the model's code computes other outputs"):
        evaluate(here / "run")


def test_a_constant_that_training_changes_after_all_stops_the_run(here, monkeypatch):
    """The trial saw nothing, since only what is in real data makes this module change itself."""
    code = """
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(1))
                self.head = nn.Linear(6, 3)
            def forward(self, x):
                if x.shape[0] > 3:
                    self.seen.add_(1)
                return self.head(x)
        """
    (here / "my_own_module.py").write_text(MODULE.partition("def")[0] + textwrap.dedent(code))
    settings = ["model.name=my_own_module:Hidden", "run.trainer=loop"]
    with pytest.raises(Refused, match="this run's epsilon does not hold"):
        trained(here / "run", *settings)


def test_a_run_with_a_buffer_that_files_leave_out_is_a_start(here):
    code = """
        class Shifted(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("shift", torch.ones(6), persistent=False)
                self.head = nn.Linear(6, 3)
            def forward(self, x):
                return self.head(x + self.shift)
        """
    (here / "my_own_module.py").write_text(MODULE.partition("def")[0] + textwrap.dedent(code))
    trained(here / "run", "model.name=my_own_module:Shifted", "run.rounds=2")
    other = ["run.seed=1", f"model.init={here / 'run'}", "run.rounds=2"]
    trained(here / "next", "model.name=my_own_module:Shifted", *other)


def test_a_start_that_was_changed_before_the_first_checkpoint_is_noticed(here, monkeypatch):
    net = built(foreign(nn.Linear(6, 3)), (6,))
    save_file({"1.weight": torch.ones(3, 6), "1.bias": torch.ones(3)}, here / "s.safetensors")
    assert net.shapes.length == 21

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            trained(here / "run", "model.init=s.safetensors")
    save_file({"1.weight": torch.zeros(3, 6), "1.bias": torch.ones(3)}, here / "s.safetensors")
    with pytest.raises(Broken, match=r"model\.init is not the file"):
        resume(here / "run", lambda stored: stored)


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
        ("my_broken_module:broken", "cannot be imported.*: SyntaxError"),
        ("my_missing_module:network", "cannot be imported.*: ModuleNotFoundError"),
        ("my_own_module:nothing", "cannot be imported.*: AttributeError"),
        ("my_own_module:torch", "which is no part"),
    ],
)
def test_a_module_that_does_not_import_is_refused(here, name, message):
    with pytest.raises(Refused, match=message):
        train(load(None, [*SMALL, f"model.name={name}"]), here / "run")
    assert not (here / "run").exists()


def with_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


OPEN = {"rounds": 1, "privacy": {"mechanism": "none"}, "client": {"epochs": 3, "batch_size": 64}}
"""Arguments of a round without privacy, in which a batch holds all of a client's examples."""


def crowd(count=5):
    """Clients of 4, 5, … examples by name, and their declaration."""
    rng = np.random.default_rng(0)
    held = {
        f"c{n}": (rng.uniform(-1, 1, (4 + n, 6)).astype(np.float32), rng.integers(0, 3, 4 + n))
        for n in range(count)
    }
    test = rng.uniform(-1, 1, (20, 6)).astype(np.float32), rng.integers(0, 3, 20)
    return held, privfed.Arrays(
        held, shape=(6,), bounds=(-1, 1), clients=count, classes=3, test=test
    )


@pytest.mark.parametrize(
    "server", [{"optimizer": "fedavg", "lr": 1.0}, {"optimizer": "fedadam", "lr": 0.1}]
)
def test_without_privacy_a_model_with_batch_normalisation_is_averaged_whole(server):
    """By hand: the mean over clients, by examples, of parameters and of running statistics."""
    held, people = crowd()
    keys = {
        **OPEN,
        "server": server,
        "cohort": {"sampler": "fixed_size", "size": 5},
        "aggregation": {"weights": "examples"},
    }
    run = privfed.train(people, model=with_norm(), temporary=True, **keys)
    ends, total = {}, sum(len(y) for _, y in held.values())
    for x, y in held.values():
        module = with_norm()
        optimizer = torch.optim.SGD(module.parameters(), run.config.client.lr)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)).backward()
            optimizer.step()
        for name, tensor in module.state_dict().items():
            ends[name] = ends.get(name, 0.0) + tensor * len(y) / total
    state = run.model.state_dict()
    steps = server["optimizer"] == "fedavg"
    for name, tensor in ends.items():
        if steps or "running" in name:
            torch.testing.assert_close(state[name].float(), tensor.float(), rtol=1e-4, atol=1e-5)
    assert int(state["1.num_batches_tracked"]) == 3
    assert steps or not torch.allclose(state["0.weight"], ends["0.weight"], atol=1e-3)


def test_averaged_statistics_are_planned_stored_exported_and_resumed(tmp_path):
    _, people = crowd()
    keys = {**OPEN, "rounds": 2, "run": {"randomness": "seeded"}, "cohort": {"size": 4}}
    plan = " ".join(str(privfed.check(people, model=with_norm(), **keys)).split())
    assert "(63 parameters)" in plan
    assert "batch statistics 11 running statistics of batch normalisations are sent and" in plan
    run = privfed.train(people, model=with_norm(), out=tmp_path / "run", **keys)
    short = privfed.train(people, model=with_norm(), out=tmp_path / "short", **keys | {"rounds": 1})
    short.resume(rounds=2)
    state = run.model.state_dict()
    assert (state["1.running_mean"] != 0).all()
    for name, tensor in short.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    run.export(tmp_path / "model.safetensors")
    exported = load_file(tmp_path / "model.safetensors")
    assert torch.equal(exported["1.running_var"], state["1.running_var"])
    again = privfed.train(
        people,
        model={"name": with_norm(), "init": str(tmp_path / "run")},
        server={"lr": 0.0},
        out=tmp_path / "again",
        **keys | {"privacy": {"mechanism": "none", "prior": [str(tmp_path / "run")]}},
    )
    assert torch.equal(again.model.state_dict()["0.weight"], state["0.weight"])
    assert int(again.model.state_dict()["1.num_batches_tracked"]) > 3


NOT_AVERAGED = {
    "under privacy": ({"privacy": {"mechanism": "gaussian"}}, r"cnn.*model\.local\); without pri"),
    "in silos": (
        {"client": {"privacy": {"mechanism": "dp_sgd"}}, "data": {"setting": "cross_silo"}},
        "'1' is a batch normalisation",
    ),
    "stacked": ({"run": {"trainer": "stacked"}}, 'run.trainer is "stacked", but this model norma'),
    "second gradients": ({"client": {"objective": "mime"}}, "client.objective is 'mime', but"),
    "other losses": ({"client": {"objective": "fedlc"}}, "client.objective is 'fedlc', but"),
    "compression": (
        {"compression": {"name": "top_k", "error_feedback": False}},
        "compression.name is 'top_k', but",
    ),
    "steering": (
        {"attack": {"name": "pgd_replacement", "fraction": 0.2}},
        "attack.name is '.*', but clients average the running statistics of '1'",
    ),
}


@every_case("case", NOT_AVERAGED)
def test_where_statistics_cannot_be_averaged_the_model_is_refused(case):
    changes, message = NOT_AVERAGED[case]
    _, people = crowd()
    keys = {**OPEN, **changes}
    with pytest.raises(Refused, match=message):
        privfed.check(people, model=with_norm(), **keys)
