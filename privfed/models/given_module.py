"""A network passed in Python as an object, with its current weights.

Its weights are assumed to be public, since their origin is unknown; the ledger and the guarantee
state this assumption. Weights that a run of privfed trained are recognised
(`privfed.models.pretrained`).
"""

from __future__ import annotations

import copy
import hashlib
from typing import ClassVar

from privfed.core.deferred import nn
from privfed.core.errors import Refused, public_text
from privfed.core.parts import Part, part_with_objects
from privfed.core.user_code import sources_digest
from privfed.models.pretrained import Origins, is_lazy, origins_of, tensor_bytes, unchanged


class GivenModule(Part):
    """A `torch.nn.Module` that was passed in Python, and starts from its current weights.

    `layout` is the SHA-256 digest of its structure (with names, shapes and types of its tensors),
    and `code` the digest of the sources of its classes. The module itself is not stored.
    """

    layout: str = ""
    code: str = ""
    module: ClassVar[nn.Module | None] = None

    @classmethod
    def of(cls, module: nn.Module) -> type[GivenModule]:
        """Returns a model class that builds copies of `module`.

        Raises `Refused` for a module on the device "meta", which has no values.
        """
        if any(tensor.is_meta for tensor in module.state_dict().values()):
            raise Refused(
                'model is a network on the device "meta", but training needs its values; pass a '
                "network on the CPU or a GPU",
                key="model.name",
            )
        return part_with_objects(cls, cls, module=module)

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        module = self.module
        if module is None:
            raise Refused(
                "the model of this run was passed as an object, which a run directory does not "
                "store; in Python, pass the object again by privfed.load(path, model=net)",
                key="model.name",
            )
        for what, stated, passed in (
            ("layout", self.layout, layout_digest(module)),
            ("code", self.code, code_digest(module)),
        ):
            if stated and stated != passed:
                raise Refused(
                    f"model is a network with another {what} than at the start of the run; pass "
                    "the same class, with the same arguments",
                    key="model.name",
                )
        try:
            return copy.deepcopy(module)
        except Exception as error:  # a user's module may raise any exception
            raise Refused(
                f"model is a network that cannot be copied ({public_text(error)}), but every "
                "client trains a copy; pass a function that makes the network: model=make_net",
                private=" ".join(str(error).split()),
                key="model.name",
            ) from None

    def weights(self) -> str:
        """Returns the SHA-256 of the weights that training starts from; empty without a module."""
        return weights_digest(self.module) if self.module is not None else ""

    def origins(self) -> tuple[Origins, ...]:
        return origins_of(self.module) if self.module is not None else ()

    def known(self) -> bool:
        return self.module is not None and unchanged(self.module)


def layout_digest(module: nn.Module) -> str:
    """Returns the SHA-256 of the `repr` of `module`, and its tensors' names, shapes and types."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lines = [
        f"{name} lazy" if is_lazy(t) else f"{name} {tuple(t.shape)} {t.dtype}"
        for name, t in tensors
    ]
    return hashlib.sha256("\n".join([repr(module), *lines]).encode()).hexdigest()


def code_digest(module: nn.Module) -> str:
    """Returns the SHA-256 of the sources of users' own classes in `module` (`sources_digest`)."""
    return sources_digest({base for part in module.modules() for base in type(part).__mro__})


def weights_digest(module: nn.Module) -> str:
    """Returns the SHA-256 of each tensor's name, shape, type and values in `module`'s state.

    Lazy tensors are left out.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not is_lazy(tensor):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
