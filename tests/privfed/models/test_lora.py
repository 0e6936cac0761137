"""Low-rank adaptation: layers compute W + s B A, B alone is trained, and files hold the sum."""

import copy

import pytest
import torch
from helpers import built
from lanes import every_case
from safetensors.torch import load_file, save_file
from torch import nn

from privfed.client.silos import PerExample
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.models.adapters import adapt_model, adaptable, merge_model
from privfed.models.recipes import UserNetwork
from privfed.models.start import Lora, factors, is_factor, with_changes

SIZE, RANK, SCALE = 6, 2, 1.5


class Attention(nn.Module):
    """Attention among the positions of `[B, T, SIZE]`; keys and values may be of another width."""

    def __init__(self, width=SIZE):
        super().__init__()
        self.narrow = nn.Linear(SIZE, width, bias=False)
        self.inner = nn.MultiheadAttention(SIZE, 2, kdim=width, vdim=width, batch_first=True)

    def forward(self, x):
        other = self.narrow(x)
        return self.inner(x, other, other)[0]


class Doubled(nn.Linear):
    """A layer with code of its own, that reads its weight."""

    def forward(self, x):
        return 2 * nn.functional.linear(x, self.weight, self.bias)


IMAGE, ROWS = (4, 4, 5, 5), (4, 3, SIZE)
torch.manual_seed(3)  # the layers' weights
LAYERS = {
    "linear": (nn.Linear(SIZE, 5), ROWS),
    "without bias": (nn.Linear(SIZE, 5, bias=False), ROWS),
    "a subclass": (Doubled(SIZE, 5), ROWS),
    "convolution": (nn.Conv2d(4, 6, 3, padding=1, stride=2), IMAGE),
    "in groups": (nn.Conv2d(4, 6, 3, groups=2, dilation=2), IMAGE),
    "circular": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGE),
    "packed attention": (Attention(), ROWS),
    "projections apart": (Attention(4), ROWS),
    "an encoder": (nn.TransformerEncoderLayer(SIZE, 2, 8, dropout=0.0, batch_first=True), ROWS),
}


def adapted(module, **keys):
    """A copy of `module` with an adapter in each layer, whose B are random."""
    torch.manual_seed(1)
    module = copy.deepcopy(module)
    lora = Lora(**{"rank": RANK, "targets": ["*"], "alpha": SCALE * RANK} | keys)
    adapt_model(module, lora, Streams(0, simulated=True).at("init"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("_lora_B"):
                parameter.normal_()
    return module


def changed_by_hand(module, tensors):
    """A copy of `module` with s B A added to each weight, block by block of its rows."""
    module = copy.deepcopy(module)
    for name, weight in module.named_parameters():
        names = factors(name)
        if names.a in tensors:
            rows = weight.detach().flatten(1).chunk(len(tensors[names.a]))
            blocks = zip(rows, tensors[names.b], tensors[names.a], strict=True)
            weight.data = torch.cat([w + SCALE * b @ a for w, b, a in blocks]).view_as(weight)
    return module


@every_case("case", LAYERS)
@every_case("mode", ["train", "eval"])
def test_a_layer_computes_with_its_weight_and_the_product(case, mode):
    """Called, read from a file, and merged; merged it is the class that it was.

    In double precision, as attention makes much of what float32 rounds.
    """
    module, shape = LAYERS[case]
    module = getattr(copy.deepcopy(module), mode)().double()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    layer = adapted(module).double()
    tensors = layer.state_dict()
    assert {name for name in tensors if not is_factor(name)} == module.state_dict().keys()
    expected = changed_by_hand(module, tensors)
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert not torch.allclose(expected(x), module(x), **close)
    torch.testing.assert_close(layer(x), expected(x), **close)
    for name, tensor in with_changes(tensors).items():
        torch.testing.assert_close(tensor, expected.state_dict()[name])
    merge_model(layer, ())
    torch.testing.assert_close(layer(x), expected(x), **close)
    assert [type(part) for part in layer.modules()] == [type(part) for part in module.modules()]
    assert layer.state_dict().keys() == module.state_dict().keys()


def test_every_projection_of_an_attention_is_adapted():
    """The three of a packed weight each have factors of their own."""
    assert adaptable(Attention().inner) == {"in_proj_weight": 3}
    assert set(adaptable(Attention(4).inner)) == {"q_proj_weight", "k_proj_weight", "v_proj_weight"}
    tensors = adapted(Attention(), targets=["inner"]).state_dict()
    assert tensors["inner.in_proj_weight_lora_B"].shape == (3, SIZE, RANK)
    assert tensors["inner.out_proj.weight_lora_B"].shape == (1, SIZE, RANK)
    assert "narrow.weight_lora_B" not in tensors


def network():
    """Two layers, a normalisation and a head."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)
    )


def foreign(module):
    return UserNetwork.of(lambda: copy.deepcopy(module))()


def with_lora(module=None, shape=(SIZE,), **keys):
    start = {key: keys.pop(key) for key in ("init", "frozen", "fresh", "seed") if key in keys}
    lora = {"rank": RANK, "targets": ["*"]} | keys
    return built(foreign(network() if module is None else module), shape, lora=lora, **start)


def fixed_head():
    """The same, whose head stays as it is whatever names it."""
    module = network()
    module[4].requires_grad_(False)
    return module


TRAINED = {
    "b alone": ({"targets": ["0", "3"]}, {"0.weight_lora_B", "3.weight_lora_B"}),
    "both factors": ({"targets": ["0"], "freeze_a": False}, {"0.weight_lora_A", "0.weight_lora_B"}),
    "and a head": (
        {"targets": ["0"], "trained": ["4"]},
        {"0.weight_lora_B", "4.weight", "4.bias"},
    ),
    "less what comes frozen": (
        {"module": fixed_head(), "targets": ["0"], "trained": ["3", "4"]},
        {"0.weight_lora_B", "3.weight", "3.bias"},
    ),
    "less what is frozen": ({"targets": ["0", "3"], "frozen": ["3"]}, {"0.weight_lora_B"}),
}


@every_case("case", TRAINED)
def test_what_is_trained_is_what_is_stated(case):
    """All else is a constant; the batch normalisation uses what it came with."""
    keys, names = TRAINED[case]
    net = with_lora(**keys)
    assert set(net.shapes.names) == names
    everything = {*net.module.state_dict()}
    assert set(net.constants) == everything - names
    assert not net.module[1].training
    x, y = torch.randn(5, SIZE), torch.tensor([0, 1, 2, 0, 1])
    before = {name: tensor.clone() for name, tensor in net.constants.items()}
    gradient = net.gradient(net.initial_params, x, y)
    assert gradient.shape == net.initial_params.shape
    assert bool(gradient.any())
    assert all(torch.equal(before[name], net.constants[name]) for name in before)


def test_the_model_starts_as_the_one_that_it_adapts(tmp_path):
    module = network().eval()
    save_file(module.state_dict(), tmp_path / "start.safetensors")
    other = network()
    for parameter in other.parameters():
        parameter.data.zero_()
    net = with_lora(other, init=str(tmp_path / "start.safetensors"), frozen=["1"])
    x = torch.randn(7, SIZE)
    torch.testing.assert_close(net.outputs(net.initial_params, x), module(x))
    assert net.without_adapters == sum(p.numel() for p in module.parameters())


def test_a_is_drawn_by_the_seed_and_for_each_weight():
    drawn = {seed: with_lora(nn.Linear(SIZE, 3), seed=seed).constants for seed in (0, 1)}
    name = "weight_lora_A"
    assert torch.equal(with_lora(nn.Linear(SIZE, 3)).constants[name], drawn[0][name])
    assert not torch.equal(drawn[0][name], drawn[1][name])
    square = nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 400), nn.Linear(400, 3))
    constants = with_lora(square, (400,), rank=3).constants
    first, second = constants["0.weight_lora_A"], constants["1.weight_lora_A"]
    assert not torch.equal(first, second)
    assert float(first.square().mean()) == pytest.approx(1 / 400, rel=0.2)


@every_case("case", ["linear", "convolution", "packed attention"])
def test_stacked_models_are_those_one_by_one(case):
    layer, shape = LAYERS[case]
    net = with_lora(nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3)), shape[1:], trained=[])
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, net.shapes.length, generator=generator)
    x, y = torch.randn(3, *shape, generator=generator), torch.randint(0, 3, (3, shape[0]))
    shares = torch.full(y.shape, 1 / shape[0])
    together = net.stacked_gradient(rows, x, y, shares)
    apart = [net.gradient(*each) for each in zip(rows, x, y, strict=True)]
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-3, atol=1e-5)


@every_case("freeze_a", [True, False], ids=["b alone", "both factors"])
@every_case("case", ["linear", "in groups"])
def test_single_examples_have_gradients(case, freeze_a):
    """As Opacus takes them, they are autograd's; those of another change are not."""
    layer, shape = LAYERS[case]
    module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3))
    net = with_lora(module, shape[1:], targets=["0"], freeze_a=freeze_a, trained=["2"])
    x, y = torch.randn(3, *shape[1:]), torch.tensor([0, 1, 2])
    per_example = PerExample(net)
    per_example.verify(x, y)
    net.module.get_parameter("0.weight_lora_scale").mul_(3)
    with pytest.raises(Refused, match="does not compute this model's per-example gradients"):
        per_example.verify(x, y)


class Unused(nn.Module):
    """A layer that nothing depends on, beside one that is used."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(SIZE, 3), nn.Linear(SIZE, 3)

    def forward(self, x):
        return self.used(x)


class Held(nn.Module):
    """Its weight is used under another layer's name too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.second.weight, self.head = self.first.weight, nn.Linear(SIZE, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x)))


class Named(nn.Linear):
    def __init__(self):
        super().__init__(SIZE, 3)
        self.weight_lora_A = nn.Parameter(torch.zeros(2))


REFUSED = {
    "no target": ({"targets": []}, r"targets: no module is named; .* use '0', '3', '4'"),
    "an unknown name": ({"targets": ["body"]}, r"no module is called 'body'; .* use '0', '3'"),
    "another kind": ({"targets": ["1"]}, "'1' is a BatchNorm1d; name linear layers"),
    "too high a rank": ({"rank": 4}, r"rank is 4, but '4.weight' is 3 by 8; .* at most 3"),
    "trained too": (
        {"trained": ["4.*"]},
        "'4.weight', but model.lora.targets names it, too",
    ),
    "nothing to train": ({"trained": ["heads"]}, "trained names 'heads', but .*0.weight"),
    "unused": ({"module": Unused()}, "'idle.weight_lora_B', but .* does not depend on"),
    "tied": ({"module": Held(), "targets": ["first"]}, "'first.weight', but .* tied to another"),
    "a factor's name": ({"module": Named()}, "'weight_lora_A', which is the name of a factor"),
    "all of it frozen": ({"frozen": ["*"]}, "no trainable parameter"),
    "none to adapt": ({"module": nn.Sequential(nn.Flatten(), nn.Bilinear(1, 1, 1))}, "has none"),
}


@every_case("case", REFUSED)
def test_what_cannot_be_adapted_is_refused_with_a_reason(case):
    keys, message = REFUSED[case]
    with pytest.raises(Refused, match=message):
        with_lora(**keys)


def test_a_start_that_holds_factors_alone_is_refused(tmp_path):
    """Those of a whole model are merged."""
    module = nn.Linear(SIZE, 3)
    tensors = adapted(module, alpha=None).state_dict()
    save_file(tensors, tmp_path / "all.safetensors")
    net = built(foreign(module), (SIZE,), init=str(tmp_path / "all.safetensors"))
    merged = with_changes(load_file(tmp_path / "all.safetensors"))
    assert torch.equal(net.shapes.views(net.initial_params)["weight"], merged["weight"])
    save_file({n: t for n, t in tensors.items() if is_factor(n)}, tmp_path / "part.safetensors")
    with pytest.raises(Refused, match="without the weight 'weight'; start from the run"):
        built(foreign(module), (SIZE,), init=str(tmp_path / "part.safetensors"))
