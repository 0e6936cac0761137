"""What a model starts from, and what of it is trained: keys of [model] beside its recipe's."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privfed.parts import Part


class Start(Part):
    """A start from the file or run `init`, but for what is `fresh`; `frozen` is not trained."""

    init: str = ""
    frozen: list[str] = []
    fresh: list[str] = []
    output: str | Annotated[int, Field(ge=0)] = ""
    """The key or the place of the outputs, where a model returns a mapping or a tuple."""
