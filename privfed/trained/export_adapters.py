"""What low-rank adaptation trained, as a file by itself: factors, and what was trained beside them.

It goes with the weights that were adapted, which many such files can share. W of the merged model
is W + scale * (B @ A) in W's shape, by the names beside W's: `privfed.models.lora.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from safetensors.torch import load
from torch import Tensor

from privfed.errors import Refused
from privfed.models.lora.names import is_factor, with_changes
from privfed.models.network import Network
from privfed.store.tensorfile import pack
from privfed.trained.export_formats import Exportable, Predict


@dataclass(frozen=True)
class Adapters:
    """The format of such a file; `base` is what its `tensors` are added to, by name."""

    tensors: Mapping[str, Tensor]
    base: Mapping[str, Tensor]
    called = "adapters by name, without the weights that they are added to"

    @classmethod
    def of(cls, network: Network, params: Tensor) -> Adapters:
        """The adapters of a model `[d]`. Raises `Refused` for one without any."""
        factors = {name: t for name, t in network.constants.items() if is_factor(name)}
        if not factors:
            raise Refused("--adapters: the run adapted no weight by a low rank (model.lora)")
        base = {name: t for name, t in network.constants.items() if name not in factors}
        return cls({**factors, **network.shapes.views(params)}, base)

    def write(self, exportable: Exportable) -> bytes:
        return pack(self.tensors, exportable.facts)

    def read(self, content: bytes, exportable: Exportable) -> Predict:
        """What another program makes of it: base and adapters, merged."""
        weights = with_changes({**self.base, **load(content)})
        module = exportable.model.module
        known = module.state_dict().keys()
        module.load_state_dict(
            {name: weights[name] for name in known if name in weights}, strict=False
        )
        return lambda inputs: exportable.model(*inputs)
