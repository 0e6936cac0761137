"""What a model starts from, and what of it is trained: keys of [model] beside its recipe's."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privfed.models.lora.keys import Lora
from privfed.parts import Part


class Start(Part):
    """A start from the file or run `init`, but for what is `fresh`; `frozen` is not trained, and
    `local` is trained by each client for itself.
    """

    init: str = ""
    """A `.safetensors` file, or an earlier run's directory, to start from."""
    frozen: list[str] = []
    """Names or patterns of parameters that are not trained, as "layer*"."""
    local: list[str] = []
    """Names or patterns of parameters that stay with each client, as "head*": they are trained, and
    never sent."""
    fresh: list[str] = []
    """Names or patterns of parameters that start anew."""
    output: str | Annotated[int, Field(ge=0)] = ""
    """The key or the place of the outputs, where a model returns a mapping or a tuple."""
    lora: Lora | None = None
    """Low-rank adaptation of what it starts from: the keys of [model.lora]."""
