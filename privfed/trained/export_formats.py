"""The files that a model is exported to: their bytes, and the model as another program reads it.

Each format is written from a module and facts (JSON), and read back as a function of raw columns.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors.torch import load
from torch import Tensor

from accounting.documents import from_json
from privfed.data.federation import Meaning
from privfed.data.preprocessing import Preprocessing
from privfed.errors import Refused, public_text
from privfed.store.tensorfile import pack
from privfed.trained.with_preprocessing import Preprocessed

FACTS = "privfed"
"""The place where every format keeps the facts, as JSON."""
Predict = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Exportable:
    """A model, its `inputs` (a few rows of each, by name), the name of its `output`, `facts`."""

    model: Preprocessed
    inputs: Mapping[str, Tensor]
    output: str
    facts: Mapping[str, Any]


class Format(Protocol):
    """One kind of file, which messages name as `called`."""

    called: str

    def write(self, exportable: Exportable) -> bytes:
        """The whole file. Raises `Refused` for a model that cannot be written so."""
        ...

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """The model in `content`, as far as the format goes without what wrote it."""
        ...


class Safetensors:
    """Weights by name, as `load_state_dict` takes them; preprocessing stands among the facts."""

    called = "weights by name"

    def write(self, exportable: Exportable) -> bytes:
        return pack(exportable.model.module.state_dict(), exportable.facts)

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """What another program makes of it: the same module, and preprocessing as the facts say."""
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
    """A program of PyTorch's, which `torch.export.load` reads."""

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
    """A graph of ONNX, which any of its runtimes reads."""

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
            raise Refused("this PyTorch has no ONNX exporter; update it")
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
    """Dynamic shapes for `torch.export` under which the first dimension is any number of rows."""
    rows = torch.export.Dim("rows")
    return (tuple({0: rows} for _ in exportable.inputs),)


@contextlib.contextmanager
def quiet(called: str) -> Iterator[None]:
    """A context in which libraries neither warn nor log.

    Raises `Refused` for whatever they raise on a model that they cannot write or read.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Refused:
        raise
    except ImportError:
        raise Refused(
            "exports to ONNX need onnx, onnxscript and onnxruntime, of which not all are "
            "installed: pip install 'privfed[onnx]'"
        ) from None
    except Exception as error:  # exporters raise anything for what they cannot trace
        raise Refused(
            f"this model cannot be used as {called} ({public_text(error)}); export it to "
            ".safetensors, which any model can be written to",
            private=" ".join(str(error).split()),
        ) from None
    finally:
        logging.disable(before)
