"""Distributed backdoors: each attacker trains on one part of the trigger."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.types import Briefing


class DistributedBackdoor(Backdoor):
    """Cuts the patch into `parts`; each attacker stamps its examples with one part only (DBA).

    The patch of `backdoor` is partitioned into groups of consecutive pixels, row by row: pixel i of
    s^2 belongs to part floor(i `parts` / s^2), and attacker number k stamps part k mod `parts`. No
    attacker stamps the complete patch, so each attacker's update is closer to honest updates than
    with the complete patch. If the attackers change from round to round, k is the client's number
    among all clients.

    Knows its own data and updates, and its number among the attackers. Success: the fraction of
    other classes' test examples with the complete patch that are classified as `target`.

    Source: Xie, Huang, Chen & Li 2020, "DBA: distributed backdoor attacks against federated
    learning", section 3.2 (trigger factors: there parts also have gaps between them).

    >>> import torch
    >>> attack, x = DistributedBackdoor(parts=2), torch.zeros(1, 2, 3)
    >>> attack.poisoned_examples(x, Briefing(10, place=1))
    tensor([[[0., 0., 0.],
             [0., 1., 1.]]])
    """

    parts: int = Field(4, ge=2, le=10_000)
    """Number of parts that the patch is cut into."""

    @model_validator(mode="after")
    def _refuse_empty_parts(self) -> Self:
        if self.parts > self.size**2:
            raise ValueError(
                f"attack.parts is {self.parts}, but a patch of {self.size} x {self.size} has "
                f"{self.size**2} pixels; raise attack.size, or lower attack.parts"
            )
        return self

    def poisoned_examples(self, x: Tensor, briefing: Briefing) -> Tensor:
        pixels = self.patch(x)
        part = pixels * self.parts // self.size**2
        stamped = (pixels >= 0) & (part == briefing.place % self.parts)
        return torch.where(stamped, self.value, x)
