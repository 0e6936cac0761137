"""Declared inputs of a model by name: numbers, token ids, or a mask.

An example's inputs are concatenated in one tensor, in the order of their names; `by_name` splits
it. A model receives each input as the argument of that name of its `forward`, except that a single
input named "x" is passed by position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import Part

X = "x"
"""The name of a single input, which is passed by position."""
_MOST_TOKENS = 2**24
"""Largest vocabulary: float32 represents all its ids exactly, in one tensor with numbers."""
_MEMORY = 2**22
"""Number of values checked at once."""


class Input(Part):
    """One input: numbers with `bounds`, token ids below `tokens`, or a `mask`; only one of them."""

    shape: list[Annotated[int, Field(ge=1)]]
    """Shape of one example."""
    bounds: list[float] = Field([], max_length=2)
    """Bounds [low, high] of numbers, from which they are scaled onto [-1, 1]."""
    tokens: int = Field(0, ge=0, le=_MOST_TOKENS)
    """Size of the vocabulary of token ids, which are not scaled."""
    unknown: int = Field(-1, ge=-1)
    """The id that replaces ids outside of the vocabulary; -1: they are refused."""
    mask: bool = False
    """Whether values are 0 (padding) and 1."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (bool(self.bounds), bool(self.tokens), self.mask).count(True) != 1:
            raise ValueError(
                f"bounds is {self.bounds}, tokens is {self.tokens} and mask is "
                f"{str(self.mask).lower()}, but an input has exactly one of them, as a public "
                "constant; set bounds (numbers), tokens (size of a vocabulary) or mask = true"
            )
        if self.bounds and (len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]):
            raise ValueError(f"bounds is {self.bounds}; expected [low, high]")
        if self.unknown >= 0 and self.tokens <= self.unknown:
            raise ValueError(
                f"unknown is {self.unknown}, but ids are below tokens = {self.tokens}; expected "
                "one of these ids"
            )
        return self

    @property
    def size(self) -> int:
        """Number of values of one example."""
        return math.prod(self.shape)

    @property
    def integral(self) -> bool:
        """Whether values are integers: token ids, or a mask."""
        return not self.bounds

    def encoded(self, array: np.ndarray, called: str, refuse: bool) -> tuple[Tensor, int]:
        """Checks and converts values `[N, *shape]` to those that the model receives.

        Args:
          array: values as passed.
          called: name of the input in messages.
          refuse: whether numbers beyond their bounds are refused instead of clipped, and ids
            outside of the vocabulary instead of replaced by `unknown`; if that is -1, such ids are
            always refused.

        Returns:
          Float32 numbers in [-1, 1], or int64 integers, and the number of values that were clipped
          or replaced.

        Raises:
          Refused: for values that are not of the declared kind, or that `refuse` concerns.
        """
        flat = array.reshape(len(array), -1)
        out = np.empty(flat.shape, dtype=np.int64 if self.integral else np.float32)
        outside, step = 0, max(1, _MEMORY // self.size)
        for start in range(0, len(flat), step):
            piece = flat[start : start + step]
            usual, beyond = self._valid(piece)
            self._refuse_any(~(usual | beyond), piece, start, called)
            if refuse or (self.tokens and self.unknown < 0):
                self._refuse_any(beyond, piece, start, called)
            outside += int(beyond.sum())
            out[start : start + step] = self._converted(piece, beyond)
        return torch.from_numpy(out.reshape(array.shape)), outside

    def _valid(self, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns two boolean masks: of values as declared, and of values to clip or replace.

        A value in neither, such as NaN, is refused.
        """
        finite = np.isfinite(piece)
        low, high = self.bounds or (0, (self.tokens or 2) - 1)
        usual = finite & (piece >= low) & (piece <= high)
        if not self.integral:
            return usual, finite & ~usual
        with np.errstate(invalid="ignore"):
            integer = finite & (piece == np.floor(piece))
        return usual & integer, integer & ~usual & bool(self.tokens)

    def _converted(self, piece: np.ndarray, beyond: np.ndarray) -> np.ndarray:
        if self.integral:
            return np.where(beyond, self.unknown, piece).astype(np.int64)
        low, high = self.bounds
        scaled: np.ndarray = (piece.clip(low, high) - low) * (2 / (high - low)) - 1
        return scaled

    def _refuse_any(self, wrong: np.ndarray, piece: np.ndarray, start: int, called: str) -> None:
        if not wrong.any():
            return
        row, column = np.argwhere(wrong)[0]
        if self.tokens:
            kind = f"not an id from 0 to {self.tokens - 1}; set tokens to the vocabulary's size, "
            kind += "or unknown to an id that replaces others"
        else:
            kind = "neither 0 nor 1" if self.mask else f"not a number in {self.bounds}"
            kind += "; correct it"
        raise Refused(
            f"data: {called}, example {start + row + 1}: a value is {kind}",
            private=f"it is {piece[row, column]}",
        )

    def synthetic(self, count: int, generator: torch.Generator) -> Tensor:
        """Returns random values `[count, *shape]` of this input, drawn without data.

        Numbers are standard normal. Token ids include the largest one. Masks are 1 up to a random
        end along the last axis, then 0.
        """
        shape = (count, *self.shape)
        if self.bounds:
            return torch.randn(shape, generator=generator)
        if self.tokens:
            ids = torch.randint(0, self.tokens, shape, generator=generator)
            ids.view(-1)[: 1 if count else 0] = self.tokens - 1
            return ids
        length = self.shape[-1]
        ends = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
        return (torch.arange(length) < ends).long()


Inputs = Mapping[str, Input]
"""All inputs of a model by name; empty for a source that does not name them."""


def by_position(inputs: Inputs) -> bool:
    """Whether the model takes x as one positional argument: `inputs` is empty, or only "x"."""
    return not inputs or [*inputs] == [X]


def side_by_side(values: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """Returns inputs `[N, *shape]` flattened and concatenated to `[N, entries]`.

    If no input, or only "x", is declared, the value of "x" is returned unchanged. Inputs are sorted
    by name; the type is int64 if all inputs are integers, otherwise float32.
    """
    if by_position(inputs):
        return values[X]
    kind = torch.int64 if all(each.integral for each in inputs.values()) else torch.float32
    return torch.cat([values[name].flatten(1).to(kind) for name in sorted(inputs)], 1)


def by_name(x: Tensor, inputs: Inputs) -> dict[str, Tensor]:
    """Returns the inputs `[..., *shape]` in `x` `[..., entries]`: the reverse of `side_by_side`."""
    ordered = sorted(inputs.items())
    parts = torch.split(x, [each.size for _, each in ordered], -1)
    return {
        name: (part.long() if each.integral else part).reshape(*part.shape[:-1], *each.shape)
        for (name, each), part in zip(ordered, parts, strict=True)
    }


def synthetic_inputs(inputs: Inputs, count: int, seed: int = 0) -> Tensor:
    """Returns `count` synthetic examples, drawn from `seed`, as one tensor (`side_by_side`)."""
    generator = torch.Generator().manual_seed(seed)
    values = {name: each.synthetic(count, generator) for name, each in sorted(inputs.items())}
    return side_by_side(values, inputs)
