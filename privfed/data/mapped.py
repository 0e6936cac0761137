"""Features that stay in their file: read when they are gathered, never copied as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from privfed.data.pieces import Pieces
from privfed.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mapped:
    """Features `[N, *features]` float32: `store[rows]`, clipped to `bounds`, scaled `onto` a range.

    `store` `[M, *features]` is of any real type and lies in the CPU's memory or in files mapped
    into it; `rows` `[N]` says which of its rows these are. Bounds are public constants. NaN, where
    a store may hold it, becomes `missing` (in the store's own units).
    """

    store: Tensor | Pieces
    rows: Tensor
    bounds: tuple[float, float]
    onto: tuple[float, float]
    missing: float | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the examples as a tensor, `(N, *features)`."""
        return (len(self.rows), *self.store.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def __getitem__(self, index: Tensor) -> Tensor:
        """The features `[..., *features]` of rows `index` `[...]`, on `device`."""
        values = self._stored(self.rows[index.to(self.rows.device)]).to(self.device).float()
        if self.missing is not None:
            values.nan_to_num_(self.missing, float("inf"), float("-inf"))
        low, high = self.bounds
        start, end = self.onto
        return values.clamp_(low, high).sub_(low).mul_((end - start) / (high - low)).add_(start)

    def _stored(self, rows: Tensor) -> Tensor:
        """A copy of rows `[...]` of the store `[..., *features]`."""
        if isinstance(self.store, Pieces):
            taken = self.store.take(rows.reshape(-1).numpy())
            return torch.from_numpy(taken).view(*rows.shape, *taken.shape[1:])
        return self.store[rows]

    def take(self, index: Tensor) -> Mapped:
        """The rows `index` `[n]` of these, still mapped."""
        return replace(self, rows=self.rows[index])

    def to(self, device: torch.device) -> Mapped:
        """The same features, gathered onto `device`; the store stays where it is."""
        return replace(self, device=device)
