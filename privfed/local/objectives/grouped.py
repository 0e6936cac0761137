"""What local objectives that know public groups of clients have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privfed.deferred import torch
from privfed.local.objective import Grouping, Work
from privfed.local.objectives.sgd import Sgd

if TYPE_CHECKING:
    from torch import Tensor


class Grouped(Sgd):
    """Plain local SGD of clients that each know which public group they are in.

    `group` is a declared column of categories, "label" or "site" (of `data.sites`): a client is in
    the group of most of its examples, or of its site. Which groups there are is public; which is a
    client's follows from its own rows, and leaves it only as a part of its row, under the clip.
    """

    group: str = "label"
    """What tells a client's group: a declared column of categories, "label" or "site"."""

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.group, 0)


def memberships(work: Work, count: int, like: Tensor) -> Tensor:
    """In which of `count` groups each client is: `[c, count]`, a 1 each; none is 0 throughout."""
    if work.groups is None:
        raise ValueError("this objective needs each client's group")
    return (work.groups[:, None] == torch.arange(count, device=like.device)).to(like)
