"""What a model starts from, and what of it is trained: keys of [model] beside its part's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privfed.parts import Part


class Start(Part):
    init: str = ""
    frozen: list[str] = []
    fresh: list[str] = []
    output: str | Annotated[int, Field(ge=0)] = ""
    """Where a model returns a mapping or a tuple: the key or the place of its outputs."""
