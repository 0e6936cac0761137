"""A trained model from raw columns to probabilities, as one module that needs no privfed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from privfed.data.federation import Meaning
from privfed.data.preprocessing import Numbers, Preprocessing
from privfed.models.loss import Loss


class Preprocess(nn.Module):
    """What `Preprocessing` declares, computed on raw columns `[N, *]`.

    Gives x `[N, *shape]` float32, and which rows `[N]` the run would have refused.
    """

    low: Tensor
    high: Tensor
    missing: Tensor

    def __init__(self, how: Preprocessing) -> None:
        super().__init__()
        self.how = how
        bounds = [(each.bounds, each.missing) for each in _each_column(how)]
        for name, values in (
            ("low", [low for (low, _), _ in bounds]),
            ("high", [high for (_, high), _ in bounds]),
            ("missing", [math.nan if missing is None else missing for _, missing in bounds]),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=how.dtype))

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        if not self.how.categories:
            x, refused = self._numbers(columns[0])
        elif not self.how.numbers:
            x, refused = self._categories(columns[0])
        else:
            scaled, odd = self._numbers(columns[0])
            ones, unknown = self._categories(columns[1])
            x, refused = torch.cat([scaled, ones], 1), odd | unknown
        return x.reshape(-1, *self.how.shape), refused

    def _numbers(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        filled = torch.where(numbers.isnan(), self.missing, numbers)
        refused = filled.isnan()
        if not self.how.clips:
            refused = refused | (numbers < self.low) | (numbers > self.high)
        start, end = self.how.onto
        clipped = torch.minimum(torch.maximum(filled, self.low), self.high)
        scaled = (clipped - self.low) * ((end - start) / (self.high - self.low)) + start
        return scaled.float(), refused.flatten(1).any(1)

    def _categories(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [len(category.values) for category in self.how.categories]
        columns = zip(codes.unbind(1), sizes, strict=True)
        ones = torch.cat([code[:, None] == torch.arange(size) for code, size in columns], 1)
        unknown = (codes < 0) | (codes >= torch.tensor(sizes))
        strict = [not (self.how.clips or category.lacks) for category in self.how.categories]
        return ones.float(), (unknown & torch.tensor(strict)).any(1)


class Preprocessed(nn.Module):
    """`module` with what goes before and after it: raw columns in, what the label is expected to be
    out (`Loss.expectation`). A row that the run would have refused gives NaN.

    Without preprocessing, x goes in as the source gives it.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, meaning: Meaning, how: Preprocessing | None
    ) -> None:
        super().__init__()
        self.module = module
        self.preprocess = Preprocess(how) if how else None
        self.loss, self.meaning = loss, meaning

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.preprocess is None:
            return self.loss.expectation(self.module(*inputs), self.meaning)
        x, refused = self.preprocess(*inputs)
        expected = self.loss.expectation(self.module(x), self.meaning)
        return expected.masked_fill(refused.view(-1, *[1] * (expected.dim() - 1)), math.nan)


def _each_column(how: Preprocessing) -> list[Numbers]:
    """One for each number of a row; of a whole array, which has the same bounds throughout, one."""
    if how.is_array:
        return [*how.numbers]
    return [numbers for numbers in how.numbers for _ in range(numbers.count)]
