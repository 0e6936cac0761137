"""A clip of its own for each public group of clients: the idea of DP-SGD-F for users' updates.

Xu, Du & Wu 2021, "Removing disparate impact on model accuracy in differentially private stochastic
gradient descent", section 4: one clip for all biases a model against groups whose gradients are
long; they clip by groups, and add noise for the largest clip. There the clips follow noised counts
in each step; here they are declared.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privfed.client.exchange import Broadcast
from privfed.client.objective import Grouping, Objective, Work
from privfed.core.deferred import Tensor, torch


class Grouped(Objective):
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


class GroupClip(Grouped):
    """Plain local SGD whose updates are clipped by group, before the clip of all.

    A client of group g shortens its update to group_clips[g], and sends it: d numbers. Under
    privacy every row is clipped to privacy.clip besides, as ever, which *alone* is the sensitivity:
    no proof hangs on the groups or on their clips, of which none above privacy.clip does anything.
    So noise is that of the largest clip, and smaller ones for large groups take weight from them
    that the noise does not give back: compare it with one clip, as large, for all.
    """

    group_clips: list[Annotated[float, Field(gt=0)]] = Field([1.0], min_length=1)
    """The clip of each group, in their order; the last counts for all others. More clips than
    groups are refused."""

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.group, 0, len(self.group_clips), "group_clips")

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        delta = w - broadcast["params"]
        clips = delta.new_tensor(self.group_clips)
        first = memberships(work, len(clips) - 1, delta)
        clip = torch.where(first.any(1), (first * clips[:-1]).sum(1), clips[-1])
        norms = torch.linalg.vector_norm(delta, dim=1).clamp(min=1e-30)
        return delta * (clip / norms).clamp(max=1.0)[:, None], state
