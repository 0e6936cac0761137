"""Reads and writes low-rank adapters in the folder format of the library peft.

peft stores the change s B A of a linear layer's weight `[n, k]` as `lora_B` `[n, r]` and `lora_A`
`[r, k]`, under the layer's name; the weight of `Conv1D` of transformers is transposed. Modules that
were trained without adapters are stored with their tensors (`modules_to_save`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json
from privfed.core.deferred import Tensor, nn, torch
from privfed.core.errors import Refused, public_text
from privfed.models.start import factors, is_factor

CONFIGURATION, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of a folder of adapters."""
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
}
"""peft's name of a task, by the end of the name of a model's class."""
_HARMLESS = frozenset(
    {"base_model_name_or_path", "bias", "exclude_modules", "fan_in_fan_out", "inference_mode"}
    | {"layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core"}
    | {"auto_mapping", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r"}
    | {"revision", "target_modules", "task_type", "use_rslora"}
)
"""Keys that are read, or that do not change what the adapters compute."""


def of_transformers(module: nn.Module, name: str) -> bool:
    """Whether `module` is an instance of the class `name` of the library transformers."""
    return any(
        kind.__name__ == name and kind.__module__.startswith("transformers.")
        for kind in type(module).__mro__
    )


def is_conv1d(layer: nn.Module) -> bool:
    """Whether `layer` is the linear layer of transformers whose weight is `[in, out]`."""
    return of_transformers(layer, "Conv1D")


def is_adapter_folder(init: str) -> bool:
    """Whether `init` is a folder with the configuration file of adapters in peft's format."""
    return bool(init) and (Path(init) / CONFIGURATION).is_file()


def peft_tensors(
    module: nn.Module, values: Mapping[str, Tensor], trained: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors and the configuration of the adapters of a model.

    Args:
      module: the model with its adapters.
      values: tensors of the model by name, trained and constant.
      trained: names of the trained parameters.

    Raises:
      Refused: if a weight is not of a linear layer, or a trained parameter is tied or in no module.
    """
    tensors: dict[str, Tensor] = {}
    targets, scales, ranks = [], set(), set()
    for name in (
        name.removesuffix(factors("").b) for name in values if name.endswith(factors("").b)
    ):
        path = name.rpartition(".")[0]
        layer = module.get_submodule(path)
        a, b = values[factors(name).a], values[factors(name).b]
        if not (path and (isinstance(layer, nn.Linear) or is_conv1d(layer))):
            raise Refused(
                f"--adapters is set, but {name!r} is not a weight of a linear layer, and peft's "
                "format has only those; export the adapters to .safetensors, or the whole model"
            )
        rows, columns = (b[0], a[0]) if not is_conv1d(layer) else (a[0].t(), b[0].t())
        tensors[f"{_PREFIX}{path}{_A}"] = columns.contiguous()
        tensors[f"{_PREFIX}{path}{_B}"] = rows.contiguous()
        targets.append(path)
        scales.add(float(values[factors(name).scale]))
        ranks.add(len(columns))
    (scale,), (rank,) = scales, ranks
    others = sorted(name for name in trained if not is_factor(name))
    saved = sorted({name.rpartition(".")[0] for name in others})
    _refuse_tied(module, others)
    for path in saved:
        state = module.get_submodule(path).state_dict(prefix=f"{path}.")
        tensors |= {f"{_PREFIX}{key}": values.get(key, tensor) for key, tensor in state.items()}
    kind = type(module).__name__
    return tensors, {
        "peft_type": "LORA",
        "task_type": next((task for end, task in _TASKS.items() if kind.endswith(end)), None),
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": all(is_conv1d(module.get_submodule(path)) for path in targets),
        "target_modules": sorted(targets),
        "modules_to_save": saved or None,
        "inference_mode": True,
    }


def _refuse_tied(module: nn.Module, names: Collection[str]) -> None:
    """Raises `Refused` for a trained parameter that is tied, or of `module` itself."""
    shared = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    for name in names:
        if "." not in name or shared[id(module.get_parameter(name))] > 1:
            raise Refused(
                f"--adapters is set, but {name!r} is tied to another parameter or is in no "
                "submodule, which peft's format cannot store; export the adapters to .safetensors, "
                "or the whole model"
            )


def add_adapters(module: nn.Module, folder: str) -> None:
    """Adds the adapters in `folder` to the weights of `module`, and copies its other tensors.

    Raises `Refused` if a file cannot be read, or the adapters are of another model or not plain
    LoRA.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Path(folder)
    try:
        stated = from_json(regular.read_text(place / CONFIGURATION))
        tensors = load(regular.read_bytes(place / WEIGHTS))
        scale = _scale(stated, folder)
        modules = {
            key.removesuffix(_B).removeprefix(_PREFIX) for key in tensors if key.endswith(_B)
        }
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, SafetensorError) as error:
        raise Refused(
            f"model.init is {folder}, but cannot be read as adapters of peft "
            f"({public_text(error)}); expected a folder with {CONFIGURATION} and {WEIGHTS}"
        ) from error
    parameters = dict(module.named_parameters(remove_duplicate=False))
    shared = Counter(id(parameter) for parameter in parameters.values())
    changes: dict[str, Tensor] = {}
    for name in sorted(modules):
        a, b = (tensors.pop(f"{_PREFIX}{name}{end}", None) for end in (_A, _B))
        weight = parameters.get(f"{name}.weight")
        if a is None or b is None or weight is None or shared[id(weight)] > 1:
            raise _another_model(folder, name)
        product = scale * (b @ a)
        changes[f"{name}.weight"] = weight.detach() + (
            product.t() if is_conv1d(module.get_submodule(name)) else product
        )
    changes |= {key.removeprefix(_PREFIX): tensor for key, tensor in tensors.items()}
    state = module.state_dict()
    with torch.no_grad():
        for name, value in changes.items():
            if name not in state or state[name].shape != value.shape:
                raise _another_model(folder, name)
            state[name].copy_(value)


def _scale(stated: Any, folder: str) -> float:
    """Returns the factor s of B A: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA.

    Raises `Refused` for adapters that are not plain LoRA.
    """
    kind, plain = stated["peft_type"], _HARMLESS
    if stated.get("init_lora_weights") in (True, "gaussian"):  # others change the base weights
        plain = plain | {"init_lora_weights"}
    other = sorted(key for key, value in stated.items() if value and key not in plain)
    if kind != "LORA" or stated.get("bias", "none") != "none" or other:
        raise Refused(
            f"model.init is {folder}, but its adapters are not plain LoRA"
            f"{' (' + ', '.join(other) + ')' if other else ''}; merge them with peft "
            "(merge_and_unload) and start from the whole model"
        )
    rank = int(stated["r"])
    return float(stated["lora_alpha"]) / (math.sqrt(rank) if stated.get("use_rslora") else rank)


def _another_model(folder: str, name: str) -> Refused:
    return Refused(
        f"model.init is {folder}, but its adapters are of another model: {name!r} is missing here, "
        "tied, or of another shape; use the model on which they were trained"
    )
