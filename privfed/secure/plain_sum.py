"""The plain sum: the server is trusted with clients' rows and keeps only their total."""

from __future__ import annotations

import math
from typing import ClassVar

from privfed.core.deferred import Tensor, torch
from privfed.core.parts import Part
from privfed.core.vector import Indices
from privfed.privacy.clipping import blocks
from privfed.privacy.integers import Share
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid
from privfed.secure.limits import Limits
from privfed.secure.summation import Session, SummedClients


class PlainSum(Part):
    """No secure sum: the server sees each client's row.

    Rows are added in float64, chunk by chunk in the order given; memory does not grow with the
    cohort.
    """

    seen: ClassVar[str] = "the server sees every client's row"
    hides_rows: ClassVar[bool] = False
    approximate: ClassVar[bool] = False
    layers: ClassVar[bool] = False
    opener: ClassVar[str] = "the server"

    def over(self, limits: Limits) -> PlainSum:
        return self

    def open(
        self, session: Session, length: int, encoding: Encoding
    ) -> PlainAccumulator | NoisedSiteSums:
        if encoding.noise is not None:
            raise TypeError("distributed noise requires a secure sum; this sum would add none")
        if encoding.site_std:
            return NoisedSiteSums(session, length, encoding)
        return PlainAccumulator(length, encoding.bound)

    def encoded(self, encoding: Encoding, length: int) -> float:
        return encoding.bound

    def abort_probability(self, clients: int, dropout: float) -> float:
        return 0.0

    def partial_probability(self, clients: int, dropout: float) -> float:
        return 0.0

    def seconds(self, length: int, clients: int, noise: Share | None = None) -> float:
        return 0.0

    def step(self, encoding: Encoding, length: int) -> float | None:
        return None

    def download(self, clients: int, noise: Share | None = None) -> float:
        return 0.0

    def upload(self, length: int, clients: int, noise: Share | None = None) -> float:
        return 4.0 * length


class PlainAccumulator:
    """Accumulates one total `[m]`; a second row of a client raises `ValueError`.

    Two rows of one client would double the sensitivity.
    """

    def __init__(self, length: int, bound: float) -> None:
        self._total: Tensor = torch.zeros(length, dtype=torch.float64)
        self._bound = bound
        self._added = SummedClients()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._added.check(ids, rows, self._bound)
        if rows.rows.shape[1] != len(self._total):
            raise ValueError(
                f"rows have {rows.rows.shape[1]} numbers, but the sum has {len(self._total)}"
            )
        self._total = self._total.to(rows.rows.device)
        for block in blocks(rows.rows):
            part = rows.rows[:, block]  # a single row needs no reduction, which takes twice as long
            self._total[block] += part[0] if len(part) == 1 else part.sum(0, dtype=torch.float64)

    def close(self) -> BoundedSum:
        """Returns the total; no further rows can be added."""
        total, self._total = self._total, self._total[:0]
        return BoundedSum(total, self._bound, len(self._added))


class NoisedSiteSums:
    """Accumulates one sum `[m]` per site; each site adds Gaussian noise before it sends its sum.

    The server sees these sums and adds them up. Each sum is private by itself, even if none of the
    site's clients was sampled. Rows lie on the grid of the noise, so sums are exact.
    """

    def __init__(self, session: Session, length: int, encoding: Encoding) -> None:
        if session.sites is None:
            raise ValueError("the noise of sites requires the site of each client")
        self._session, self._site_of, self._encoding = session, session.sites, encoding
        self._sums = torch.zeros(len(session.clients), length, dtype=torch.float64)
        self._added = SummedClients()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._added.check(ids, rows, self._encoding.bound)
        sites = torch.from_numpy(self._site_of[ids]).to(rows.rows.device)
        self._sums = self._sums.to(rows.rows.device)
        self._sums.index_add_(0, sites, rows.rows.double())

    def close(self) -> BoundedSum:
        session, std = self._session, self._encoding.site_std
        stream = f"noise/site/{session.exchange}"
        keys = session.streams.at(stream, session.round, session.senders).each()
        total = torch.zeros_like(self._sums[0])
        for site, site_keys in zip(session.senders.tolist(), keys, strict=True):
            noise = torch.from_numpy(gaussian_on_grid(site_keys, std, len(total)))
            total += self._sums[site] + noise.to(total)
        return BoundedSum(total, math.inf, len(self._added))
