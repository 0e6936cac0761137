"""File formats of exported models: .safetensors, .pt2 and .onnx.

A file is written from a PyTorch module and facts (a JSON object), and is read back, as another
program would read it, as a function of raw columns.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors.torch import load
from torch import Tensor, nn

from accounting.documents import from_json
from privfed.core.errors import Refused, public_text
from privfed.data.federation import Meaning
from privfed.data.preprocessing import Numbers, Preprocessing
from privfed.models.loss import Loss
from privfed.store.tensorfile import pack


class Preprocess(nn.Module):
    """A module that computes a run's declared `Preprocessing` on raw columns `[N, *]`.

    It returns features x `[N, *shape]`, float32, and a mask `[N]` of rows that the run's source
    would have refused, for example because a number is missing or out of bounds.
    """

    low: Tensor
    high: Tensor
    missing: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        bounds = [(each.bounds, each.missing) for each in _each_column(preprocessing)]
        for name, values in (
            ("low", [low for (low, _), _ in bounds]),
            ("high", [high for (_, high), _ in bounds]),
            ("missing", [math.nan if missing is None else missing for _, missing in bounds]),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=preprocessing.dtype))

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features x and the mask of refused rows.

        `columns` are one tensor of numbers, one of category indices, or both in this order.
        """
        if not self.preprocessing.categories:
            x, refused = self._scaled(columns[0])
        elif not self.preprocessing.numbers:
            x, refused = self._one_hot(columns[0])
        else:
            scaled, out_of_bounds = self._scaled(columns[0])
            one_hot, unknown = self._one_hot(columns[1])
            x, refused = torch.cat([scaled, one_hot], 1), out_of_bounds | unknown
        return x.reshape(-1, *self.preprocessing.shape), refused

    def _scaled(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        filled = torch.where(numbers.isnan(), self.missing, numbers)
        refused = filled.isnan()
        if not self.preprocessing.clips:
            refused = refused | (numbers < self.low) | (numbers > self.high)
        start, end = self.preprocessing.onto
        clipped = torch.minimum(torch.maximum(filled, self.low), self.high)
        scaled = (clipped - self.low) * ((end - start) / (self.high - self.low)) + start
        return scaled.float(), refused.flatten(1).any(1)

    def _one_hot(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [len(category.values) for category in self.preprocessing.categories]
        columns = zip(codes.unbind(1), sizes, strict=True)
        one_hot = torch.cat([code[:, None] == torch.arange(size) for code, size in columns], 1)
        unknown = (codes < 0) | (codes >= torch.tensor(sizes))
        strict = [
            not (self.preprocessing.clips or category.lacks)
            for category in self.preprocessing.categories
        ]
        return one_hot.float(), (unknown & torch.tensor(strict)).any(1)


class Preprocessed(nn.Module):
    """A model with the run's preprocessing before it and the expected label as its output.

    Its inputs are raw columns, or the source's features x if no preprocessing is declared. Its
    output is the expected label of each row (`Loss.expectation`): probabilities of classes, or a
    number. The output is NaN for a row that the run's source would have refused.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, meaning: Meaning, preprocessing: Preprocessing | None
    ) -> None:
        super().__init__()
        self.module = module
        self.preprocess = Preprocess(preprocessing) if preprocessing else None
        self.loss, self.meaning = loss, meaning

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns the expected label of each row."""
        if self.preprocess is None:
            return self.loss.expectation(self.module(*inputs), self.meaning)
        x, refused = self.preprocess(*inputs)
        expected = self.loss.expectation(self.module(x), self.meaning)
        return expected.masked_fill(refused.view(-1, *[1] * (expected.dim() - 1)), math.nan)


def _each_column(preprocessing: Preprocessing) -> list[Numbers]:
    """Returns a declaration for each number of a row; for an array, one for all its numbers."""
    if preprocessing.is_array:
        return [*preprocessing.numbers]
    return [numbers for numbers in preprocessing.numbers for _ in range(numbers.count)]


FACTS = "privfed"
"""The metadata key whose value is the facts, as JSON. A .pt2 file has them in its file `_FILE`."""
Predict = Callable[[tuple[Tensor, ...]], Tensor]
"""A function from raw columns, a tuple in the order of the inputs, to the expected labels."""


@dataclass(frozen=True)
class Exportable:
    """A model to export, with all that a file of it states.

    Attributes:
      model: the model with its preprocessing.
      inputs: a few rows of each input, by name, with which exporters trace the model.
      output: name of the output.
      facts: the JSON object that the file states about the model and its run.
    """

    model: Preprocessed
    inputs: Mapping[str, Tensor]
    output: str
    facts: Mapping[str, Any]


class Format(Protocol):
    """The interface of a file format of exported models; `called` describes it in messages."""

    called: str

    def write(self, exportable: Exportable) -> bytes:
        """Returns the bytes of the file. Raises `Refused` if the format cannot store the model."""

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """Returns the model in `content` as a function, loaded as another program loads it."""


class Safetensors:
    """A file of weights by name, for `load_state_dict`; its metadata state the preprocessing."""

    called = "weights by name"

    def write(self, exportable: Exportable) -> bytes:
        return pack(exportable.model.module.state_dict(), exportable.facts)

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """Returns the model in `content` as a function; preprocessing is read from the metadata."""
        size = int.from_bytes(content[:8], "little")
        facts = from_json(from_json(content[8 : 8 + size])["__metadata__"][FACTS])
        module = exportable.model.module
        module.load_state_dict(load(content))
        label, stated = facts["label"], facts["preprocessing"]
        preprocessing = Preprocessing.model_validate(stated, strict=False) if stated else None
        meaning = Meaning(tuple(label["names"]), label["scale"], label["shift"])
        model = Preprocessed(module, exportable.model.loss, meaning, preprocessing).eval()
        return lambda inputs: model(*inputs)


class ExportedProgram:
    """A program of PyTorch, which `torch.export.load` loads."""

    called = "a program of torch.export"

    def write(self, exportable: Exportable) -> bytes:
        buffer = io.BytesIO()
        with quiet(self.called):
            program = torch.export.export(
                exportable.model,
                tuple(exportable.inputs.values()),
                dynamic_shapes=_any_number_of_rows(exportable),
            )
            torch.export.save(program, buffer, extra_files={_FILE: json.dumps(exportable.facts)})
        return buffer.getvalue()

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        with quiet(self.called):
            module = torch.export.load(io.BytesIO(content)).module()
        return lambda inputs: module(*inputs)


class Onnx:
    """An ONNX graph, which any ONNX runtime loads."""

    called = "an ONNX graph"

    def write(self, exportable: Exportable) -> bytes:
        with quiet(self.called):
            program = torch.onnx.export(
                exportable.model,
                tuple(exportable.inputs.values()),
                dynamo=True,
                dynamic_shapes=_any_number_of_rows(exportable),
                input_names=[*exportable.inputs],
                output_names=[exportable.output],
                verbose=False,
            )
        if program is None:
            raise Refused("this version of PyTorch has no ONNX exporter; update PyTorch")
        graph = program.model_proto
        entry = graph.metadata_props.add()
        entry.key, entry.value = FACTS, json.dumps(exportable.facts)
        return bytes(graph.SerializeToString())

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        with quiet(self.called):
            import onnxruntime

            session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

        def predict(inputs: tuple[Tensor, ...]) -> Tensor:
            arrays = (column.numpy() for column in inputs)
            (outputs,) = session.run(None, dict(zip(exportable.inputs, arrays, strict=True)))
            return torch.from_numpy(outputs)

        return predict


_FILE = "privfed.json"
FORMATS: dict[str, Format] = {
    ".safetensors": Safetensors(),
    ".pt2": ExportedProgram(),
    ".onnx": Onnx(),
}
"""The formats, by the suffix of the file."""


def _any_number_of_rows(exportable: Exportable) -> Any:
    """Returns the argument `dynamic_shapes` of `torch.export`: inputs have any number of rows."""
    rows = torch.export.Dim("rows")
    return (tuple({0: rows} for _ in exportable.inputs),)


_ONNX = ("onnx", "onnxscript", "onnxruntime")
"""The packages of exports to ONNX."""


@contextlib.contextmanager
def quiet(called: str) -> Iterator[None]:
    """Returns a context that silences warnings and logs of the libraries that read and write files.

    An error within the context becomes `Refused`, whose message names the format as `called`. If a
    library for ONNX is not installed, the message states the packages to install; any other
    `ImportError` is raised unchanged.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Refused:
        raise
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] not in _ONNX:
            raise
        raise Refused(
            "exports to ONNX need onnx, onnxscript and onnxruntime, but not all are installed; "
            "run: pip install 'privfed[onnx]'"
        ) from None
    except Exception as error:  # exporters raise anything for models they cannot trace
        raise Refused(
            f"this model cannot be written or read as {called} ({public_text(error)}); export the "
            "model to .safetensors, a format for any model",
            private=" ".join(str(error).split()),
        ) from None
    finally:
        logging.disable(before)
