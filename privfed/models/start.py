"""The keys of [model] that do not belong to its recipe: initial weights, and trained parameters.

Low-rank adaptation (Hu et al. 2021, "LoRA", section 4.1): the keys of [model.lora].

The weight W of each adapted layer is frozen, and the layer computes with W + (alpha / rank) B A. A
has `rank` rows and is drawn at random; B has `rank` columns and starts at zero, so the adapted
model initially computes the same as the original. A client sends only B (and A, if it is trained),
to which noise is added: for a layer with i inputs and o outputs, rank * o numbers instead of i * o.

**Why A is frozen by default** (Sun, Li, Li & Ding 2024, "Improving LoRA in Privacy-preserving
Federated Learning", FFA-LoRA, sections 3 and 4). If both are trained, noise is added to both, and
the weight gains (B + N_B)(A + N_A) = B A + N_B A + B N_A + N_B N_A. The last term is quadratic in
the noise, not Gaussian, and does not vanish if nothing was learned. Averages have a similar
problem: the mean of the clients' products B_k A_k is not the product of the mean B and the mean A,
which a sum releases. With A frozen the weight is linear in B: the noise on it is N_B A, and means
are exact. Freezing A also halves the message size; `alpha` then only rescales the steps.

No proof depends on this choice. The trained parameters are one vector per client, clipped and
noised as a whole, with or without A. A is determined by run.seed, and W by the initial model; no
client data enter either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from privfed.core.deferred import Tensor
from privfed.core.parts import Part


class Lora(Part):
    """Adapters B A of the modules in `targets`.

    Only B (and A, unless `freeze_a`) and the parameters that `trained` names are trained.
    """

    rank: int = Field(ge=1, le=65_536)
    """Rank of the change of each weight; for an attention, of query, key and value each."""
    targets: list[str] = []
    """Names or patterns of modules, such as "layers.*.attention", whose linear layers, convolutions
    and attention projections are adapted; at least one is required.
    """
    alpha: float | None = Field(None, gt=0)
    """Scale of the change, which is (alpha / rank) B A; by default it is B A."""
    freeze_a: bool = True
    """Whether A keeps its random start, and only B is trained: see `privfed.models.start`."""
    trained: list[str] = []
    """Names or patterns of further parameters that are trained directly, such as a new "head"."""

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


_A, _B, _SCALE = "_lora_A", "_lora_B", "_lora_scale"


class Factors(NamedTuple):
    """The names under which the factors A and B, and the scale s, of a weight are stored."""

    a: str
    b: str
    scale: str


def factors(weight: str) -> Factors:
    """Returns the names of the factors of a weight; the weight's name may include its module's."""
    return Factors(weight + _A, weight + _B, weight + _SCALE)


def is_factor(name: str) -> bool:
    """Whether `name` is that of a factor A or B, or of the scale, of an adapted weight."""
    return name.endswith((_A, _B, _SCALE))


def with_changes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns `tensors` without factors; the changes s B A are added to the weights."""
    weights = {name: tensor for name, tensor in tensors.items() if not is_factor(name)}
    for name in tensors:
        if name.endswith(_B):
            weight = name.removesuffix(_B)
            names = factors(weight)
            product = (tensors[names.b] @ tensors[names.a]) * tensors[names.scale]
            weights[weight] = tensors[weight] + product.reshape(tensors[weight].shape)
    return weights


class Start(Part):
    """Keys of a model's initial, trained and local parameters, of its adapters and its outputs."""

    init: str = ""
    """A `.safetensors` file, run directory or folder of adapters with the initial parameters."""
    frozen: list[str] = []
    """Names or patterns of parameters that are not trained, such as "layer*"."""
    local: list[str] = []
    """Names or patterns of parameters, such as "head*", that each client trains and never sends."""
    fresh: list[str] = []
    """Names or patterns of parameters that are initialised at random instead of from `init`."""
    output: str | Annotated[int, Field(ge=0)] = ""
    """The key or index of the outputs, if the model returns a mapping or a tuple."""
    lora: Lora | None = None
    """Low-rank adaptation: the keys of [model.lora]."""
