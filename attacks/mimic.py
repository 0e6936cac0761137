"""Mimic: copy one honest client, so that it counts for many."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import ReadingAttack, State, View, usable_honest


class Mimic(ReadingAttack):
    """Copy the honest client that stands out most: nothing that it sends can be called hostile.

    All send the honest row x_k with the largest <z, x_k>; z is the direction in which honest
    updates differ most, learned over `warmup` rounds by z <- sum over k of <z, x_k - mu> (x_k - mu)
    + z, of length one, from a random start.

    Knows all honest updates. Source: Karimireddy, He & Jaggi 2022, section 3.2.

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(1, 2), torch.tensor([[5.0, 0.0], [-4.0, 0.0], [0.0, 1.0]]))
    >>> Mimic().corrupt(view, {}, numpy.random.default_rng(1))[0]
    tensor([[5., 0.]])
    """

    warmup: int = Field(20, ge=1, le=10_000)
    """Over how many rounds the direction is learned."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        honest = usable_honest(view.honest)
        if honest is None:
            return view.byzantine, state
        z = state.get("direction")
        if z is None:
            z = torch.from_numpy(rng.normal(size=honest.shape[1])).to(honest)
            z = z / z.norm()
        done = int(state.get("rounds", torch.tensor(0)))
        if done < self.warmup:
            away = honest - honest.mean(0)
            z = away.T @ (away @ z) + z
            z = z / z.norm()
        after = {"direction": z, "rounds": torch.tensor(done + 1)}
        return honest[int((honest @ z).argmax())].expand_as(view.byzantine).clone(), after
