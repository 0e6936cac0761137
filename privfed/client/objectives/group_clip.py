"""A separate clip for each group of clients: DP-SGD-F applied to client updates.

Source: Xu, Du & Wu 2021, "Removing disparate impact on model accuracy in differentially private
stochastic gradient descent", section 4. A single clip biases a model against groups with large
gradients. The paper therefore clips by group, and adds noise for the largest clip. In the paper,
noised counts determine the clips at each step; here, the clips are declared.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privfed.client.exchange import Broadcast
from privfed.client.objective import Grouping, Objective, Work
from privfed.core.deferred import Tensor, torch


class Grouped(Objective):
    """Plain local SGD of clients that each know their group.

    With `group` "site" a client's group is its site (`data.sites`); with "label" or a declared
    column of categories it is the most frequent value of its examples. The set of groups is public.
    A client's group depends on its own data only, and affects only its own clipped row.
    """

    group: str = "label"
    """Source of a client's group: a declared column of categories, "label" or "site"."""

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.group, 0)


def memberships(work: Work, count: int, like: Tensor) -> Tensor:
    """Returns each client's one-hot membership in `count` groups, shape `[c, count]`.

    A client without a group, or with a group number of `count` or more, has zeros only. The result
    has the dtype and device of `like`.
    """
    if work.groups is None:
        raise ValueError("this objective needs each client's group, but got none")
    return (work.groups[:, None] == torch.arange(count, device=like.device)).to(like)


class GroupClip(Grouped):
    """Plain local SGD with updates clipped by group, before the common clip.

    A client of group g clips its update to group_clips[g], and sends d numbers. Under privacy every
    row is also clipped to privacy.clip, which *alone* is the sensitivity: no proof depends on the
    groups or on their clips, and a group's clip above privacy.clip has no effect. The noise is
    therefore the same for all groups. Smaller clips for large groups reduce the weight of these
    groups without reducing the noise: compare with a common clip of that size.
    """

    group_clips: list[Annotated[float, Field(gt=0)]] = Field([1.0], min_length=1)
    """Clip of each group, in order; the last applies to all further groups. More clips than groups
    are refused.
    """

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
