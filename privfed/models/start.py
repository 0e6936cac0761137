"""Start and trained parameters of a model: the keys of [model] that do not belong to its recipe.

Low-rank adaptation (Hu et al. 2021, "LoRA", section 4.1): the keys of [model.lora].

The weight W of each adapted layer stays at its start, and the layer computes with W + (alpha /
rank) B A. A has `rank` rows and is drawn at random, B has `rank` columns and starts at zero, so the
adapted model starts as the model that it adapts. A client sends, and noise is added to, B, and A if
it is trained: `rank` times out numbers, in place of in times out.

**Why A is frozen by default** (Sun, Li, Li & Ding 2024, "Improving LoRA in Privacy-preserving
Federated Learning", FFA-LoRA, sections 3 and 4). If both are trained, noise is added to both, and
the weight gains (B + N_B)(A + N_A) = B A + N_B A + B N_A + N_B N_A. The last term is quadratic in
the noise, not Gaussian, and does not vanish if nothing was learned. Averages have the same problem:
the mean of the clients' products B_k A_k is not the product of the means that a sum releases. With
A frozen the weight is linear in B: noise on it is N_B A, and means are exact. It also halves the
message size, and `alpha` then only rescales the steps.

No proof depends on it. The trained parameters are one vector per client, clipped and noised as a
whole, with or without A. A itself follows from run.seed and W from the start, which read no client
data.
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
    """Rank of the change of a weight; for an attention, of each of query, key and value."""
    targets: list[str] = []
    """Names or patterns of modules whose linear layers, convolutions and attention projections are
    adapted, as "layers.*.attention"; at least one, since the names depend on the model.
    """
    alpha: float | None = Field(None, gt=0)
    """The change is alpha / rank times B A; if left out, B A."""
    freeze_a: bool = True
    """Whether A keeps its random start, and only B is trained: see `privfed.models.start`."""
    trained: list[str] = []
    """Names or patterns of further parameters that are trained directly, as a new "head"."""

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


_A, _B, _SCALE = "_lora_A", "_lora_B", "_lora_scale"


class Factors(NamedTuple):
    """The names of A, of B, and of the factor of B A."""

    a: str
    b: str
    scale: str


def factors(weight: str) -> Factors:
    """The factor names of the weight with this name, whatever the module's name before it."""
    return Factors(weight + _A, weight + _B, weight + _SCALE)


def is_factor(name: str) -> bool:
    """Whether it is the name of a factor."""
    return name.endswith((_A, _B, _SCALE))


def with_changes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` by name, with each change merged into its weight and without factors."""
    weights = {name: tensor for name, tensor in tensors.items() if not is_factor(name)}
    for name in tensors:
        if name.endswith(_B):
            weight = name.removesuffix(_B)
            names = factors(weight)
            product = (tensors[names.b] @ tensors[names.a]) * tensors[names.scale]
            weights[weight] = tensors[weight] + product.reshape(tensors[weight].shape)
    return weights


class Start(Part):
    """A start from the file or run `init`, except for `fresh` parameters.

    `frozen` parameters are not trained, and `local` ones are trained by each client for itself.
    """

    init: str = ""
    """A `.safetensors` file, an earlier run's directory, or a folder of adapters, to start from."""
    frozen: list[str] = []
    """Names or patterns of parameters that are not trained, as "layer*"."""
    local: list[str] = []
    """Names or patterns of parameters that stay with each client, as "head*": they are trained, and
    never sent.
    """
    fresh: list[str] = []
    """Names or patterns of parameters that are initialised afresh."""
    output: str | Annotated[int, Field(ge=0)] = ""
    """The key or index of the outputs, if a model returns a mapping or a tuple."""
    lora: Lora | None = None
    """Low-rank adaptation of the start: the keys of [model.lora]."""
