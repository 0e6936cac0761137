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
"""Where every format keeps the facts, as JSON."""
Predict = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Exportable:
    """A model with its `inputs` (names, and a few rows of each) and `facts`; `output` is a name."""

    model: Preprocessed
    inputs: Mapping[str, Tensor]
    output: str
    facts: Mapping[str, Any]


class Format(Protocol):
    """One kind of file."""

    called: str

    def write(self, what: Exportable) -> bytes:
        """The whole file. Raises `Refused` for a model that cannot be written so."""
        ...

    def read(self, content: bytes, what: Exportable) -> Predict:
        """The model in `content`, as far as the format goes without what wrote it."""
        ...


class Safetensors:
    """Weights by name, as `load_state_dict` takes them; preprocessing and the rest as facts."""

    called = "weights by name"

    def write(self, what: Exportable) -> bytes:
        return pack(what.model.module.state_dict(), what.facts)

    def read(self, content: bytes, what: Exportable) -> Predict:
        """Another program builds the same module, and preprocesses as the facts say."""
        size = int.from_bytes(content[:8], "little")
        facts = from_json(from_json(content[8 : 8 + size])["__metadata__"][FACTS])
        module = what.model.module
        module.load_state_dict(load(content))
        label, stated = facts["label"], facts["preprocessing"]
        how = Preprocessing.model_validate(stated, strict=False) if stated else None
        meaning = Meaning(tuple(label["names"]), label["scale"], label["shift"])
        model = Preprocessed(module, what.model.loss, meaning, how).eval()
        return lambda inputs: model(*inputs)


class ExportedProgram:
    """A program of PyTorch's, which `torch.export.load` reads."""

    called = "a program of torch.export"

    def write(self, what: Exportable) -> bytes:
        out = io.BytesIO()
        with quiet(self.called):
            program = torch.export.export(
                what.model, tuple(what.inputs.values()), dynamic_shapes=_dynamic(what)
            )
            torch.export.save(program, out, extra_files={_FILE: json.dumps(what.facts)})
        return out.getvalue()

    def read(self, content: bytes, what: Exportable) -> Predict:
        with quiet(self.called):
            module = torch.export.load(io.BytesIO(content)).module()
        return lambda inputs: module(*inputs)


class Onnx:
    """A graph of ONNX, which any of its runtimes reads."""

    called = "an ONNX graph"

    def write(self, what: Exportable) -> bytes:
        with quiet(self.called):
            program = torch.onnx.export(
                what.model,
                tuple(what.inputs.values()),
                dynamo=True,
                dynamic_shapes=_dynamic(what),
                input_names=[*what.inputs],
                output_names=[what.output],
                verbose=False,
            )
        if program is None:
            raise Refused("this PyTorch has no ONNX exporter; update it")
        graph = program.model_proto
        entry = graph.metadata_props.add()
        entry.key, entry.value = FACTS, json.dumps(what.facts)
        return bytes(graph.SerializeToString())

    def read(self, content: bytes, what: Exportable) -> Predict:
        with quiet(self.called):
            import onnxruntime

            session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

        def run(inputs: tuple[Tensor, ...]) -> Tensor:
            arrays = (each.numpy() for each in inputs)
            (outputs,) = session.run(None, dict(zip(what.inputs, arrays, strict=True)))
            return torch.from_numpy(outputs)

        return run


_FILE = "privfed.json"
FORMATS: dict[str, Format] = {
    ".safetensors": Safetensors(),
    ".pt2": ExportedProgram(),
    ".onnx": Onnx(),
}
"""By the suffix of the file."""


def _dynamic(what: Exportable) -> Any:
    """Any number of rows."""
    rows = torch.export.Dim("rows")
    return (tuple({0: rows} for _ in what.inputs),)


@contextlib.contextmanager
def quiet(called: str) -> Iterator[None]:
    """Without what libraries warn of and log; what they raise on a model that they do not know is
    refused.
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
