"""The declaration of a run, which a coordinator sends to a site before any question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from accounting import chain
from accounting.documents import from_json, from_toml
from accounting.errors import LedgerBroken
from privfed.config.config import digest
from privfed.data.federation import Examples
from privfed.secure.frames import BadMessage, Reader, sized
from privfed.secure.primitives import KEY

_TYPES = {"float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True)
class ExampleForm:
    """The shapes and types of an example's features and labels, and the number of classes."""

    x: tuple[int, ...]
    x_type: str
    y: tuple[int, ...]
    y_type: str
    classes: int

    @classmethod
    def of(cls, examples: Examples) -> ExampleForm:
        """Returns the form of `examples`."""
        x, y = examples.x, examples.y
        shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
        return cls(shapes[0], _name(x.dtype), shapes[1], _name(y.dtype), examples.classes)

    def zeros(self, count: int) -> Examples:
        """Returns `count` synthetic examples of this form; features and labels are zero."""
        x = torch.zeros((count, *self.x), dtype=_TYPES[self.x_type])
        return Examples(x, torch.zeros((count, *self.y), dtype=_TYPES[self.y_type]), self.classes)


@dataclass(frozen=True)
class Declaration:
    """A run, as its coordinator declares it.

    Attributes:
      opening: first line of the ledger. It states the digest of the run file, and its hash
        identifies the run.
      text: the text of the run file.
      examples: shapes and types of the model's examples.
      constants: tensors of the model that training does not change.
      sealing: the coordinator's public X25519 key, 32 bytes, to which plain sums are sealed.
    """

    opening: bytes
    text: str
    examples: ExampleForm
    constants: Mapping[str, Tensor]
    sealing: bytes

    @property
    def digest(self) -> str:
        """SHA-256 (in hexadecimal) of `file_digest`, `examples` and `constants` together."""
        constants = save(dict(sorted(self.constants.items())))
        parts = (self.file_digest.encode(), self._form, constants)
        return hashlib.sha256(b"".join(map(sized, parts))).hexdigest()

    @property
    def file_digest(self) -> str:
        """The digest of the run file `text` that a ledger states; "" if `text` is invalid."""
        try:
            return digest(from_toml(self.text))
        except (ValueError, KeyError, TypeError, AttributeError):
            return ""

    @property
    def run(self) -> bytes:
        """The hash of `opening`, 32 bytes. Raises `BadMessage` if it is no ledger's first line."""
        return bytes.fromhex(self._first["hash"])

    @property
    def terms(self) -> Mapping[str, Any]:
        """The object "terms" of the ledger's first line `opening`; {} if the line has none.

        Raises `BadMessage` if `opening` is no ledger's first line.
        """
        return dict(self._first.get("terms", {}))

    @property
    def _first(self) -> chain.Link:
        try:
            (link,) = chain.following(chain.START, [self.opening], "a declaration")
        except LedgerBroken as error:
            raise BadMessage("wrong ledger", "the line is not the first of a ledger") from error
        return link

    def encode(self) -> bytes:
        """Returns the bytes from which `decode` restores this declaration."""
        tensors = {name: value.cpu().contiguous() for name, value in self.constants.items()}
        parts = (self.opening, self.text.encode(), self._form)
        return self.sealing + b"".join(map(sized, parts)) + save(tensors)

    @property
    def _form(self) -> bytes:
        form = self.examples
        facts = {
            "x": list(form.x),
            "x_type": form.x_type,
            "y": list(form.y),
            "y_type": form.y_type,
            "classes": form.classes,
        }
        return json.dumps(facts, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Declaration:
        """Parses a declaration. Raises `BadMessage` if it is malformed."""
        reader = Reader(data)
        try:
            sealing = reader.take(KEY)
            opening, text = reader.sized(), reader.sized().decode()
            facts: Any = from_json(reader.sized().decode())
            x, y = (tuple(map(int, facts[axis])) for axis in ("x", "y"))
            x_type, y_type = (_known(facts[key]) for key in ("x_type", "y_type"))
            form = ExampleForm(x, x_type, y, y_type, int(facts["classes"]))
            return cls(opening, text, form, load(reader.rest()), sealing)
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise BadMessage("wrong format", "the bytes are not a declaration") from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _known(name: str) -> str:
    if name not in _TYPES:
        raise ValueError(name)
    return name
