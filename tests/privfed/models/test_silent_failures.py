"""Silent failures are refused before the first charge; sound models are not."""

import pytest
import torch
from helpers import built
from torch import nn

from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.inputs import Input, synthetic_inputs
from privfed.models.build import build_network
from privfed.models.given_module import GivenModule
from privfed.models.losses.cross_entropy import CrossEntropy
from privfed.models.recipes import UserNetwork
from privfed.models.start import Lora, Start

VOCABULARY, LENGTH, SIZE = 12, 5, 8
INPUTS = {
    "ids": Input(tokens=VOCABULARY, shape=[LENGTH]),
    "mask": Input(mask=True, shape=[LENGTH]),
}


class Sound(nn.Module):
    """A small language model: tied weights, a mask, and an adapted layer."""

    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, SIZE)
        self.mix = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, ids, mask):
        hidden = self.embedding(ids) * mask[..., None]
        return self.head(self.norm(hidden + self.mixed(hidden.cumsum(-2))))

    def mixed(self, hidden):
        return self.mix(hidden).tanh()


class Tied(Sound):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embedding.weight


class Unused(Sound):
    """Its adapted layer is not called."""

    def mixed(self, hidden):
        return hidden.tanh()


class HeldElsewhere(Sound):
    """It computes with the layer's weight as it was when it was built."""

    def __init__(self):
        super().__init__()
        self.held = [self.mix.weight]

    def mixed(self, hidden):
        return (hidden @ self.held[0].detach().t()).tanh()


class ByType(Sound):
    """Its path depends on the layer's type, which an adapter changes."""

    def mixed(self, hidden):
        return (
            self.mix(hidden).tanh() if type(self.mix) is nn.Linear else self.mix(2 * hidden).tanh()
        )


class NotFinite(Sound):
    def mixed(self, hidden):
        return self.mix(hidden) / 0


class SlopeNotFinite(Sound):
    """The outputs are finite; the gradient of the root at zero is not."""

    def mixed(self, hidden):
        return (self.mix(hidden).square() * 0).sqrt()


class Unfrozen(Sound):
    """Its frozen embedding moves with each call."""

    def forward(self, ids, mask):
        with torch.no_grad():
            self.embedding.weight.mul_(0.9)
        return super().forward(ids, mask)


class Counts(Sound):
    """A buffer that counts tokens: outside of the vector that is clipped."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(VOCABULARY))

    def forward(self, ids, mask):
        self.seen += torch.bincount(ids.flatten(), minlength=VOCABULARY)
        return super().forward(ids, mask)


class Remembers(Sound):
    """A cache of the last batch, as of keys and values."""

    cache = 0

    def mixed(self, hidden):
        before, self.cache = self.cache, hidden.detach().mean()
        return self.mix(hidden + before).tanh()


class Unmasked(Sound):
    def forward(self, ids, mask):
        return super().forward(ids, torch.ones_like(mask))


class OfTheBatch(Sound):
    """It scales by the batch, as longest-in-batch padding does."""

    def mixed(self, hidden):
        return self.mix(hidden / hidden.square().mean()).tanh()


ADAPTED = {"lora": Lora(rank=2, targets=["mix"])}
FAILURES = {
    "vocabulary larger than the embedding": (lambda: Sound(VOCABULARY - 1), {}, "ids go up to 11"),
    "adapter without a gradient": (Unused, ADAPTED, "the model's output does not depend on"),
    "adapter of a weight held elsewhere": (HeldElsewhere, ADAPTED, "does not depend on"),
    "merged model that differs": (ByType, ADAPTED, "other outputs after its adapters are merged"),
    "outputs that are not finite": (NotFinite, {}, "has outputs that are not finite"),
    "gradient that is not finite": (SlopeNotFinite, {}, "has a gradient that is not finite"),
    "frozen part that is not": (Unfrozen, {"frozen": ["embedding"]}, "'embedding.weight' is"),
    "buffer that counts": (Counts, {}, "'seen' is a buffer .or a parameter."),
    "memory of earlier calls": (Remembers, {}, "'cache' is a buffer .or a parameter."),
    "mask that is ignored": (Unmasked, {}, "outputs do not depend on its input 'mask'"),
    "batch that is mixed": (OfTheBatch, {}, "mixes the examples of a batch"),
    "adapter of a tied weight": (Tied, {"lora": Lora(rank=2, targets=["head"])}, "is tied to"),
}  # fmt: skip
SOUND = {
    "plain": (Sound, {}),
    "tied": (Tied, {}),
    "larger embedding": (lambda: Sound(VOCABULARY + 3), {}),
    "adapted": (Sound, ADAPTED),
    "adapted, both factors": (Sound, {"lora": Lora(rank=2, targets=["mix"], freeze_a=False)}),
    "adapted and tied": (Tied, ADAPTED),
    "frozen": (Sound, {"frozen": ["embedding"]}),
}


def network(module, **start):
    x = synthetic_inputs(INPUTS, 4)
    y = torch.zeros(4, LENGTH, dtype=torch.int64)
    examples = Examples(x, y, VOCABULARY, inputs=INPUTS)
    keys = Streams(0, simulated=True).at("init")
    recipe = GivenModule.of(module)()
    return build_network(
        recipe, examples, Start(**start), CrossEntropy(), keys, torch.device("cpu")
    )


@pytest.mark.parametrize("case", FAILURES)
def test_a_silent_failure_is_refused(case):
    make, start, reason = FAILURES[case]
    torch.manual_seed(0)
    with pytest.raises(Refused, match=reason):
        network(make(), **start)


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_model_is_not(case):
    make, start = SOUND[case]
    torch.manual_seed(0)
    net = network(make(), **start)
    assert net.outputs(net.initial_params, synthetic_inputs(INPUTS, 4)).shape == (
        4,
        LENGTH,
        VOCABULARY,
    )


def test_an_embedding_with_padding_is_not_stacked():
    """PyTorch's vmap would train the padding's row for all models but the first."""
    assert "padding_idx" in built(
        UserNetwork.of(lambda: nn.Sequential(nn.Embedding(3, 2, padding_idx=0), nn.Linear(2, 3)))(),
        (4,), x=torch.zeros(2, 4, dtype=torch.int64), y=torch.zeros(2, 4, dtype=torch.int64),
    ).unstackable  # fmt: skip
    module, rows = nn.Embedding(3, 2, padding_idx=0), torch.zeros(2, 3, 2, requires_grad=True)

    def summed(weight, ids):
        return torch.func.functional_call(module, {"weight": weight}, (ids,)).sum()

    total = torch.func.vmap(summed)(rows, torch.zeros(2, 1, dtype=torch.int64)).sum()
    (gradient,) = torch.autograd.grad(total, rows)
    assert gradient[:, 0].tolist() == [[0.0, 0.0], [1.0, 1.0]], "stacking could be allowed again"
