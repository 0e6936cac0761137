"""Exports a trained model to one file, and compares its predictions with the run's.

Low-rank adapters can be exported alone, with all other trained parameters. They are used together
with the adapted weights, which many sets of adapters can share. They are stored in one file, or as
a folder in the format of the library peft. In the merged model, the weight W is replaced by
W + scale * (B @ A) in W's shape. The factors A and B are named after W, with a suffix
(`privfed.models.adapters`).
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from accounting.documents import from_json
from accounting.durable import write_atomically
from privfed.auditing.run_audit import audit
from privfed.config.config import Config
from privfed.core import __version__
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Streams
from privfed.core.text import dump
from privfed.data.inputs import by_name, by_position
from privfed.models.adapters import merge_model, unadapt
from privfed.models.form import Form
from privfed.models.local_part import missing_part
from privfed.models.network import Network
from privfed.models.peft_format import CONFIGURATION, WEIGHTS, add_adapters, peft_tensors
from privfed.models.start import is_factor, with_changes
from privfed.run.population import load_population
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import FORMAT, pack
from privfed.trained.export_formats import (
    FORMATS,
    Exportable,
    Format,
    Predict,
    Preprocessed,
    Safetensors,
    quiet,
)
from privfed.trained.stored_model import stored_model
from privfed.trained.synthetic_rows import SyntheticRows, synthetic_rows


@dataclass(frozen=True)
class PeftAdapters:
    """A model's low-rank adapters, `tensors` by name, for a folder in the format of library peft.

    `stated` is the content of peft's configuration file, and `base` the model without adapters.
    """

    tensors: Mapping[str, Tensor]
    stated: Mapping[str, Any]
    base: nn.Module
    called = "adapters in peft's format, without the weights that they are added to"

    @classmethod
    def of(cls, network: Network, params: Tensor) -> PeftAdapters:
        """Returns a model's adapters. Raises `Refused` without any, or if peft rejects them."""
        Adapters.of(network, params)
        values = {**network.constants, **network.shapes.views(params)}
        tensors, stated = peft_tensors(network.module, values, network.shapes.names)
        base = copy.deepcopy(network.module)
        for layer in base.modules():
            unadapt(layer)
        return cls(tensors, stated, base)

    def write(self, exportable: Exportable) -> bytes:
        return pack(self.tensors, exportable.facts)

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """Returns the function that predicts with `base` and the adapters in `content`."""
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder), content)
            add_adapters(self.base, folder)
        model = exportable.model
        checked = Preprocessed(self.base, model.loss, model.meaning, None).eval()
        return lambda inputs: checked(*inputs)

    def save(self, to: Path, content: bytes) -> None:
        """Writes the folder `to`: the weights `content`, and peft's configuration file."""
        to.mkdir(exist_ok=True)
        write_atomically(to / WEIGHTS, content)
        write_atomically(to / CONFIGURATION, (json.dumps(self.stated, indent=2) + "\n").encode())


@dataclass(frozen=True)
class Adapters:
    """A model's low-rank adapters and other trained parameters, `tensors` by name, for one file.

    `base` are the weights that the adapters are added to; the file does not contain them.
    """

    tensors: Mapping[str, Tensor]
    base: Mapping[str, Tensor]
    called = "adapters by name, without the weights that they are added to"

    @classmethod
    def of(cls, network: Network, params: Tensor) -> Adapters:
        """Returns the adapters of the model `params` `[d]`. Raises `Refused` if it has none."""
        factors = {name: t for name, t in network.constants.items() if is_factor(name)}
        if not factors:
            raise Refused(
                "--adapters is given, but the run adapted no weight by a low rank (model.lora); "
                "leave --adapters out"
            )
        base = {name: t for name, t in network.constants.items() if name not in factors}
        return cls({**factors, **network.shapes.views(params)}, base)

    def write(self, exportable: Exportable) -> bytes:
        return pack(self.tensors, exportable.facts)

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """Returns the function that predicts with `base` merged with the adapters in `content`."""
        weights = with_changes({**self.base, **load(content)})
        module = exportable.model.module
        known = module.state_dict().keys()
        module.load_state_dict(
            {name: weights[name] for name in known if name in weights}, strict=False
        )
        return lambda inputs: exportable.model(*inputs)


_CLOSE = 1e-5
"""Tolerance of an export's predictions: relative, plus this times the scale of labels."""
_FEW = 3
"""Number of rows for tracing an export."""


@dataclass(frozen=True)
class Exported:
    """The result of an export: the written file, and its comparison with the run's model.

    Attributes:
      path: directory of the run.
      to: the written file or folder.
      called: a description of the format, such as "an ONNX graph".
      size: size in bytes of the file, or of the weights in the folder.
      facts: the JSON object in the file: its run and ε, and the model's inputs and output.
      checked: number of synthetic rows that both the file and the run's model predicted.
      difference: largest absolute difference between these predictions.
    """

    path: Path
    to: Path
    called: str
    size: int
    facts: Mapping[str, Any]
    checked: int
    difference: float

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed export --json` prints."""
        return {
            **self.facts,
            "file": str(self.to),
            "bytes": self.size,
            "checked": self.checked,
            "difference": self.difference,
            "path": str(self.path),
        }


def export(run: Path | RunDirectory, to: Path, adapters: bool = False) -> Exported:
    """Exports the model of a run to one file, and compares the file's predictions with the model's.

    The exported model takes raw columns, as the run's source declares them, and returns
    probabilities of classes, or numbers in the label's units (a .safetensors file has the weights
    only, and states the preprocessing). The file also states the run, its population and its ε.
    Low-rank adapters are merged into the weights, unless `adapters` is set.

    Args:
      run: directory of the run.
      to: file to write: .safetensors, .pt2 or .onnx; a folder for adapters in peft's format.
      adapters: whether to export only low-rank adapters and the other trained parameters.

    Returns:
      The file, the facts that it states, and the largest difference from the model's predictions.

    Raises:
      Refused: if `to` exists, its folder does not, or its suffix is unknown; if the run has no
        checkpoint, or no adapters although `adapters` is set; if the model or its loss cannot be
        exported; or if the predictions differ. Nothing is written then.
      Busy: while the run is in progress.
      Broken: if the run's files are damaged, or do not prove its guarantee.
    """
    file_format = _format_of(to, adapters)
    directory = RunDirectory.open(run)
    if not directory.checkpoint.exists():
        raise Refused(f"{directory.path} has no checkpoint: its run has not begun; train it first")
    with directory.locked(reads=True):  # a run in progress would spend more than stated
        provenance = _provenance(directory)
        config = directory.config.read()
        _refuse_without_expectation(config)
        form = directory.checkpoint.form() or _form_of_data(config)
        network, params, round = stored_model(directory, form.empty())
    _refuse_named_inputs(form, file_format, to)
    synthetic = synthetic_rows(form, config.source, network, params)
    if adapters:
        file_format = (Adapters if to.suffix else PeftAdapters).of(network, params)
    inputs = dict(zip(_names(form), synthetic.inputs, strict=True))
    named = inputs if by_position(form.inputs) else by_name(synthetic.inputs[0], form.inputs)
    output = "value" if synthetic.expected.dim() == 1 else "probabilities"
    recipe = {key: value for key, value in config.values()["model"].items() if key != "init"}
    facts = {
        "format": FORMAT,
        "privfed": __version__,
        "round": round,
        **provenance,
        "lacks": missing_part(network) or None,
        "model": recipe,
        "inputs": [_described(name, value) for name, value in named.items()],
        "output": _described(output, synthetic.expected),
        "label": {"names": list(form.names), "scale": form.scale, "shift": form.shift},
        "preprocessing": form.preprocessing and form.preprocessing.model_dump(mode="json"),
    }
    facts = from_json(dump(facts))
    few_rows = {name: value[:_FEW] for name, value in inputs.items()}
    exportable = Exportable(_model(network, params, form), few_rows, output, facts)
    content = file_format.write(exportable)
    with quiet(file_format.called):
        difference = _largest_difference(file_format.read(content, exportable), synthetic, form, to)
    if isinstance(file_format, PeftAdapters):
        file_format.save(to, content)
    else:
        write_atomically(to, content)
    return Exported(
        directory.path,
        to,
        file_format.called,
        len(content),
        facts,
        len(synthetic.expected),
        difference,
    )


def _format_of(to: Path, adapters: bool) -> Format:
    """Returns the format of `to`. Raises `Refused` for a bad suffix or folder, or if it exists."""
    if to.suffix.lower() not in FORMATS and not (adapters and not to.suffix):
        raise Refused(f"--to is {to}; expected a name that ends in {', '.join(FORMATS)}")
    file_format = FORMATS[to.suffix.lower() or ".safetensors"]
    if adapters and not isinstance(file_format, Safetensors):
        raise Refused(
            f"--to is {to}, but adapters are weights by name; expected .safetensors, or the name "
            "of a folder, without a suffix, for peft's format"
        )
    if not to.parent.is_dir():
        raise Refused(f"--to is {to}, but the folder {to.parent} is missing; create the folder")
    if to.exists():
        raise Refused(
            f"--to is {to}, but that file exists; nothing was changed; remove the file, or name "
            "another"
        )
    return file_format


def _refuse_named_inputs(form: Form, file_format: Format, to: Path) -> None:
    """Raises `Refused` if the format stores a program and the model takes its inputs by name."""
    if not by_position(form.inputs) and not isinstance(file_format, Safetensors):
        raise Refused(
            f"--to is {to}, but the model takes its inputs by name ({', '.join(form.inputs)}), "
            "which formats that store a program do not support; export its weights to .safetensors"
        )


def _form_of_data(config: Config) -> Form:
    return Form.of(load_population(config, Streams(config.run.seed)).test)


def _model(network: Network, params: Tensor, form: Form) -> Preprocessed:
    """Returns the model on raw columns, with adapters merged into the weights that they adapt."""
    module = network.module
    network.hold(params)
    merge_model(module, ())
    return Preprocessed(module, network.loss, form.meaning, form.preprocessing).eval()


def _names(form: Form) -> list[str]:
    return [*form.preprocessing.inputs] if form.preprocessing else ["x"]


def _refuse_without_expectation(config: Config) -> None:
    """Raises `Refused` if a user's own loss does not define `Loss.expectation`."""
    if not hasattr(config.loss, "expectation"):
        raise Refused(
            f"model.loss is {config.names['loss']!r}, which has no method `expectation` that turns "
            "outputs into probabilities or numbers; add this method to the loss"
        )


def _provenance(directory: RunDirectory) -> dict[str, Any]:
    """Returns facts with which a later run that starts from the exported model can count this run.

    Raises `Broken` if the run's files do not prove its guarantees, or canaries refute them.
    """
    audited = audit(directory.path)
    refuted = ["its canaries refute its claimed epsilon"] if audited.refuted else []
    for problem in (*audited.problems, *refuted):
        raise Broken(f"{directory.path} proves no guarantee: {problem}")
    stated = audited.to_json()
    keys = ("epsilon", "delta", "unit", "relation", "meaning", "guarantees", "uncovered", "note")
    return {
        "run": audited.terms["id"],
        "population": audited.terms["population"],
        **{key: stated[key] for key in keys},
        "ledger_head": directory.checkpoint.head().hex(),
        "lineage": directory.checkpoint.lineage(),
    }


def _described(name: str, value: Tensor) -> dict[str, Any]:
    dtype = str(value.dtype).removeprefix("torch.")
    return {"name": name, "dtype": dtype, "shape": ["rows", *value.shape[1:]]}


def _largest_difference(predict: Predict, synthetic: SyntheticRows, form: Form, to: Path) -> float:
    """Returns the largest absolute difference between `predict` and the expected outputs.

    Batches of all rows, of 5 and of 1 are predicted. Raises `Refused` if an output has another
    shape than expected, or differs by more than the tolerance `_CLOSE`.
    """
    difference = 0.0
    for count in (len(synthetic.expected), _FEW + 2, 1):
        part = synthetic.first(count)
        with torch.no_grad():
            predicted = predict(part.inputs)
        close = torch.allclose(
            predicted, part.expected, rtol=_CLOSE, atol=_CLOSE * form.scale, equal_nan=True
        )
        if predicted.shape != part.expected.shape or not close:
            raise Refused(
                f"--to is {to}, but the export gives other predictions than the run for {count} "
                "synthetic rows; nothing was written; export to another format"
            )
        gap = (predicted - part.expected).nan_to_num().abs().max()
        difference = max(difference, float(gap))
    return difference
