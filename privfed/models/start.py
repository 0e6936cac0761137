"""What a model starts from, and what of it is trained: keys of [model] beside its recipe's.

Low-rank adaptation (Hu et al. 2021, "LoRA", section 4.1): the keys of [model.lora].

The weight W of each adapted layer stays as it starts, and the layer computes with
W + (alpha / rank) B A. A has `rank` rows and is drawn, B has `rank` columns and starts at zero, so
the adapted model starts as the model that it adapts. What a client sends, and what noise falls on,
is B, and A where it is trained: `rank` times out numbers, in place of in times out.

**Why A is frozen by default** (Sun, Li, Li & Ding 2024, "Improving LoRA in Privacy-preserving
Federated Learning", FFA-LoRA, sections 3 and 4). Where both are trained, noise falls on both, and
the weight gets (B + N_B)(A + N_A) = B A + N_B A + B N_A + N_B N_A: the last term is quadratic in
the noise, no Gaussian, and does not vanish where nothing was learned. Averages suffer alike: the
mean of products B_k A_k, which clients trained, is not the product of the means that a sum
releases. With A frozen the weight is linear in B: noise on it is N_B A, and means are exact. It
also halves what is sent, and `alpha` then only rescales the steps.

No proof depends on it. What is trained is one vector per client, clipped and noised whole, whether
A is in it or not; A itself follows from run.seed and W from the start, which read nobody's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.core.parts import Part


class Lora(Part):
    """Adapters of `rank` in the modules that `targets` name; the rest of the model is frozen."""

    rank: int = Field(ge=1, le=65_536)
    """The rank of what is added to a weight; to an attention's query, key and value, each."""
    targets: list[str] = []
    """Names or patterns of modules whose linear layers, convolutions and attention projections are
    adapted, as "layers.*.attention"; at least one, as only the model knows which there are."""
    alpha: float | None = Field(None, gt=0)
    """What is added is alpha / rank times B A; left out, B A."""
    freeze_a: bool = True
    """Whether A stays as it was drawn, and B alone is trained: see `privfed.models.start`."""
    trained: list[str] = []
    """Names or patterns of further parameters that are trained as they are, as a new "head"."""

    @property
    def scale(self) -> float:
        """By what B A is multiplied."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


_A, _B, _SCALE = "_lora_A", "_lora_B", "_lora_scale"


class Factors(NamedTuple):
    """The names of A, of B, and of the number that B A is multiplied by."""

    a: str
    b: str
    scale: str


def factors(weight: str) -> Factors:
    """The names for the weight of this name, whatever module's name stands before it."""
    return Factors(weight + _A, weight + _B, weight + _SCALE)


def is_factor(name: str) -> bool:
    """Whether it is the name of one of them."""
    return name.endswith((_A, _B, _SCALE))


def with_changes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` by name, with each change in its weight and without factors."""
    weights = {name: tensor for name, tensor in tensors.items() if not is_factor(name)}
    for name in tensors:
        if name.endswith(_B):
            weight = name.removesuffix(_B)
            names = factors(weight)
            product = (tensors[names.b] @ tensors[names.a]) * tensors[names.scale]
            weights[weight] = tensors[weight] + product.reshape(tensors[weight].shape)
    return weights


class Start(Part):
    """A start from the file or run `init`, but for what is `fresh`; `frozen` is not trained, and
    `local` is trained by each client for itself.
    """

    init: str = ""
    """A `.safetensors` file, or an earlier run's directory, to start from."""
    frozen: list[str] = []
    """Names or patterns of parameters that are not trained, as "layer*"."""
    local: list[str] = []
    """Names or patterns of parameters that stay with each client, as "head*": they are trained, and
    never sent."""
    fresh: list[str] = []
    """Names or patterns of parameters that start anew."""
    output: str | Annotated[int, Field(ge=0)] = ""
    """The key or the place of the outputs, where a model returns a mapping or a tuple."""
    lora: Lora | None = None
    """Low-rank adaptation of what it starts from: the keys of [model.lora]."""
