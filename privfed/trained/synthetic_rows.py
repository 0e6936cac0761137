"""Synthetic rows of data, valid and invalid, with the run's predictions, to check exported models.

The rows contain no client data: they are drawn from the declared form of examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfed.core.errors import Refused
from privfed.data.inputs import synthetic_inputs
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing
from privfed.data.source import Prepares
from privfed.models.calling import scoring
from privfed.models.form import Form
from privfed.models.network import Network

_ROWS = 64
_FEWEST, _OUTPUTS = 8, 2**25
"""Minimum number of rows for a model with declared inputs, and a limit on rows times outputs."""


@dataclass(frozen=True)
class SyntheticRows:
    """N synthetic rows of data, with the outputs that an exported model should have for them.

    Attributes:
      inputs: raw columns, shape `[N, *]`, one tensor per input of the model, in its order.
      expected: the expected outputs, shape `[N, *]`.
    """

    inputs: tuple[Tensor, ...]
    expected: Tensor

    def first(self, count: int) -> SyntheticRows:
        """Returns the first `count` rows."""
        return SyntheticRows(tuple(each[:count] for each in self.inputs), self.expected[:count])


def synthetic_rows(form: Form, source: Any, network: Network, params: Tensor) -> SyntheticRows:
    """Returns synthetic rows of the form of the model's examples, with the model's predictions.

    With preprocessing, rows include numbers within, at and beyond their bounds, empty cells, and
    declared and undeclared categories.

    Args:
      form: the form of the examples.
      source: the run's source, whose code prepares the rows.
      network: the model.
      params: the model's parameters, shape `[d]`.

    Returns:
      The rows; the expected output is NaN for rows that `source` would refuse.

    Raises:
      Refused: if preprocessing is declared, but features can be computed neither by
        `source.prepared` (for one dimension per row) nor by scaling a single array.
    """
    generator = torch.Generator().manual_seed(0)
    preprocessing = form.preprocessing
    if preprocessing is None:
        if form.inputs:
            outputs = max(math.prod(form.labels) * form.classes, 1)
            x = synthetic_inputs(form.inputs, max(_FEWEST, min(_ROWS, _OUTPUTS // outputs)))
            return SyntheticRows((x,), _expectation(network, params, x, form))
        shape = (_ROWS, *form.features)
        tokens = torch.randint(0, form.classes, shape, generator=generator)
        x = tokens if form.tokens else torch.randn(shape, generator=generator)
        return SyntheticRows((x,), _expectation(network, params, x, form))
    inputs = tuple(
        _numbers(preprocessing, generator)
        if dtype.is_floating_point
        else _codes(preprocessing, generator)
        for dtype, _ in preprocessing.inputs.values()
    )
    expected = _expectation(network, params, _prepared(preprocessing, source, inputs), form)
    expected[_refused(preprocessing, inputs)] = math.nan
    return SyntheticRows(inputs, expected)


def _expectation(network: Network, params: Tensor, x: Tensor, form: Form) -> Tensor:
    """Returns the expected label of each row of x `[N, *]` (`Loss.expectation`)."""
    with torch.no_grad(), scoring(network.module):
        outputs = network.outputs(params.clone(), x)
    return network.loss.expectation(outputs, form.meaning)


def _numbers(preprocessing: Preprocessing, generator: torch.Generator) -> Tensor:
    """Returns numbers `[N, *]`: in the first half of the rows, all are within their bounds.

    In the other rows, some are at or beyond the bounds, infinite or missing (NaN).
    """
    dtype, shape = preprocessing.inputs["numbers"]
    low, high = _bounds(preprocessing)
    inside = torch.rand((_ROWS, len(low)), generator=generator, dtype=torch.float64)
    values = low + (high - low) * inside
    nothing, infinite = (torch.full_like(low, value) for value in (math.nan, math.inf))
    odd = torch.stack([low, high, low - (high - low), high + 1, infinite, nothing])
    for row in range(_ROWS // 2, _ROWS):
        kinds = (row + torch.arange(len(low))) % (2 * len(odd))  # every kind in every column
        for kind, value in enumerate(odd):
            values[row] = torch.where(kinds == kind, value, values[row])
    return values.view(_ROWS, *shape).to(dtype)


def _bounds(preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Returns the lower and the upper bound of every number of a row, shape `[numbers]` each."""
    bounds = [each.bounds for each in preprocessing.numbers for _ in range(each.count)]
    low, high = torch.tensor(bounds, dtype=torch.float64).unbind(1)
    return low, high


def _codes(preprocessing: Preprocessing, generator: torch.Generator) -> Tensor:
    """Returns category indices, shape `[N, categories]`.

    Those in the first half of the rows are valid; the others may also be -1 or the number of the
    column's categories.
    """
    columns = []
    for category in preprocessing.categories:
        count = len(category.values)
        declared = torch.randint(0, count, (_ROWS // 2,), generator=generator)
        any_code = torch.randint(-1, count + 1, (_ROWS - _ROWS // 2,), generator=generator)
        columns.append(torch.cat([declared, any_code]))
    return torch.stack(columns, 1)


def _refused(preprocessing: Preprocessing, inputs: tuple[Tensor, ...]) -> Tensor:
    """Returns a mask `[N]` of the rows that a source would refuse."""
    wrong = torch.zeros(_ROWS, dtype=torch.bool)
    if preprocessing.numbers:
        each = [numbers for numbers in preprocessing.numbers for _ in range(numbers.count)]
        for column, declared in zip(inputs[0].reshape(_ROWS, -1).unbind(1), each, strict=True):
            low, high = declared.bounds
            if declared.missing is None:
                wrong |= column.isnan()
            if not preprocessing.clips:
                wrong |= (column < low) | (column > high)
    for place, category in enumerate(preprocessing.categories):
        codes = inputs[-1][:, place]
        if not (preprocessing.clips or category.lacks):
            wrong |= (codes < 0) | (codes >= len(category.values))
    return wrong


def _prepared(preprocessing: Preprocessing, source: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    """Returns x `[N, *shape]`, computed from raw `inputs` as for training examples.

    If x has one dimension per row, `source.prepared` computes it, if there is this method;
    otherwise a raw input that is a single array (`is_array`) is scaled. Raises `Refused` if neither
    is possible.
    """
    if isinstance(source, Prepares) and len(preprocessing.shape) == 1:
        numbers = inputs[0].numpy() if preprocessing.numbers else np.zeros((_ROWS, 0))
        codes = inputs[-1].numpy() if preprocessing.categories else np.zeros((_ROWS, 0), np.int64)
        return source.prepared(numbers, codes, preprocessing)
    if preprocessing.is_array:
        ((bounds, missing),) = [(each.bounds, each.missing) for each in preprocessing.numbers]
        store = inputs[0].view(_ROWS, *preprocessing.shape)
        rows = torch.arange(_ROWS)
        return Mapped(store, rows, bounds, preprocessing.onto, 0.0 if missing is None else missing)[
            rows
        ]
    raise Refused(
        f"data.source is {type(source).__name__}, which declares preprocessing, but has no method "
        "`prepared` with which an export is checked on synthetic rows; add this method"
    )
