"""A trained model from raw columns to probabilities, as one module that needs no privfed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from privfed.data.federation import Meaning
from privfed.data.preprocessing import Numbers, Preprocessing
from privfed.models.loss import Loss


class Preprocess(nn.Module):
    """The module that computes what `Preprocessing` declares, on raw columns `[N, *]`.

    It gives x `[N, *shape]` float32, and which rows `[N]` the run would have refused.
    """

    low: Tensor
    high: Tensor
    missing: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        bounds = [(each.bounds, each.missing) for each in _each_column(preprocessing)]
        for name, values in (
            ("low", [low for (low, _), _ in bounds]),
            ("high", [high for (_, high), _ in bounds]),
            ("missing", [math.nan if missing is None else missing for _, missing in bounds]),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=preprocessing.dtype))

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """X and the refused rows; `columns` are numbers, codes of categories, or both."""
        if not self.preprocessing.categories:
            x, refused = self._scaled(columns[0])
        elif not self.preprocessing.numbers:
            x, refused = self._one_hot(columns[0])
        else:
            scaled, out_of_bounds = self._scaled(columns[0])
            one_hot, unknown = self._one_hot(columns[1])
            x, refused = torch.cat([scaled, one_hot], 1), out_of_bounds | unknown
        return x.reshape(-1, *self.preprocessing.shape), refused

    def _scaled(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        filled = torch.where(numbers.isnan(), self.missing, numbers)
        refused = filled.isnan()
        if not self.preprocessing.clips:
            refused = refused | (numbers < self.low) | (numbers > self.high)
        start, end = self.preprocessing.onto
        clipped = torch.minimum(torch.maximum(filled, self.low), self.high)
        scaled = (clipped - self.low) * ((end - start) / (self.high - self.low)) + start
        return scaled.float(), refused.flatten(1).any(1)

    def _one_hot(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [len(category.values) for category in self.preprocessing.categories]
        columns = zip(codes.unbind(1), sizes, strict=True)
        one_hot = torch.cat([code[:, None] == torch.arange(size) for code, size in columns], 1)
        unknown = (codes < 0) | (codes >= torch.tensor(sizes))
        strict = [
            not (self.preprocessing.clips or category.lacks)
            for category in self.preprocessing.categories
        ]
        return one_hot.float(), (unknown & torch.tensor(strict)).any(1)


class Preprocessed(nn.Module):
    """`module` with what goes before and after it.

    It takes raw columns, or x as the source gives it where there is no preprocessing. It gives what
    the label is expected to be (`Loss.expectation`); NaN for a row that the run would have refused.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, meaning: Meaning, preprocessing: Preprocessing | None
    ) -> None:
        super().__init__()
        self.module = module
        self.preprocess = Preprocess(preprocessing) if preprocessing else None
        self.loss, self.meaning = loss, meaning

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the label of each row is expected to be."""
        if self.preprocess is None:
            return self.loss.expectation(self.module(*inputs), self.meaning)
        x, refused = self.preprocess(*inputs)
        expected = self.loss.expectation(self.module(x), self.meaning)
        return expected.masked_fill(refused.view(-1, *[1] * (expected.dim() - 1)), math.nan)


def _each_column(preprocessing: Preprocessing) -> list[Numbers]:
    """What declares each number of a row; one for a whole array, whose bounds are the same."""
    if preprocessing.is_array:
        return [*preprocessing.numbers]
    return [numbers for numbers in preprocessing.numbers for _ in range(numbers.count)]
