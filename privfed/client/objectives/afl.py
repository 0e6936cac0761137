"""AFL: agnostic federated learning, for the worst mixture of groups of clients.

Source: Mohri, Sivek & Suresh 2019, "Agnostic federated learning", section 4, Algorithm 1. The
objective is

    min over w, max over mixtures a of G groups:  sum_g a_g F_g(w)

with F_g the mean of the losses of group g's clients. In a round, with p_g the fraction of clients
in group g:

    w  <-  w + sum_k v_g(k) d_k / sum_k v_g(k),   v_g = a_g / p_g    (d_k: client k's update)
    a  <-  projection on the simplex of (a + ascent F(w))

The paper takes a stochastic gradient of both at each step; here clients take local steps in
between, and F_g is evaluated at the broadcast model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Grouping, Measures, Memory, Work
from privfed.client.objectives.group_clip import Grouped, memberships
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Layout


class Afl(Grouped):
    """Agnostic federated learning: groups with a large loss gain weight, round by round.

    A client of group g sends d + 2 * groups numbers: its update times v_g / max v, where v_g is the
    mixture's weight of its group over the fraction p_g of clients in it, and, in the two entries of
    its group, its loss and a 1. It receives the groups' weights and the model.

    Under privacy these numbers are bounded jointly: *one* clip over (weighted update, measure_scale
    times the rest), one release, one event. *Sensitivity*: the clip, whatever a client's data. A
    client's group affects only its own row, so a change of group, under replace-one, also changes
    the sum by at most two clips. *Post-processing*: the mixture, the fractions p_g (mean of the
    released counts over the rounds so far, at least least_part) and the division by them are
    computed from releases and public constants. Weights v_g / max v are at most 1, so the same clip
    suits weighted updates. The division multiplies the noise by 1 / p_g if all weight is on group
    g, and never by more than 1 / least_part.
    """

    measures: ClassVar[Measures] = "loss"

    groups: int = Field(10, ge=1, le=1000)
    """Number of groups, a declared public constant."""
    ascent: float = Field(0.1, gt=0)
    """Step size of the ascent of the mixture along the groups' losses."""
    loss_cap: float = Field(10.0, gt=0)
    """Upper bound on a client's loss."""
    measure_scale: float = Field(0.1, gt=0)
    """Weight of loss (over its cap) and group relative to the update, under their joint clip."""
    least_part: float = Field(0.02, gt=0, le=1)
    """Lower bound on a group's fraction of all clients."""

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.group, self.groups)

    def layout(self, d: int) -> Layout:
        return Layout((("delta", d), ("losses", self.groups), ("counts", self.groups)))

    def init(self, params: Tensor) -> Memory:
        return {
            "mixture": params.new_full((self.groups,), 1 / self.groups),
            "counts": params.new_zeros(self.groups),
            "rounds": torch.zeros((), dtype=torch.int64),
        }

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        weights = memory["mixture"] / self._parts(memory).clamp(min=self.least_part)
        return {"weights": weights / weights.max()}

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        if work.measured is None:
            raise ValueError("AFL needs each client's loss at the broadcast model, but got none")
        group = memberships(work, self.groups, w)
        weight = (group * broadcast["weights"]).sum(1, keepdim=True)
        loss = work.measured.clamp(0.0, self.loss_cap) / self.loss_cap
        sent = self.measure_scale * torch.cat([loss * group, group], dim=1)
        return torch.cat([weight * (w - broadcast["params"]), sent], dim=1), state

    def admitted(self, rows: Tensor) -> Tensor:
        """Returns rows `[c, m]` limited to what honest clients send.

        A row's counts are nonnegative and sum to at most 1; the loss of each group, over loss_cap,
        is between 0 and its count.
        """
        layout = self.layout(rows.shape[1] - 2 * self.groups)
        delta, losses, counts = (layout.view(rows, name) for name, _ in layout.parts)
        counts = counts.clamp(0.0, self.measure_scale)
        counts = counts / (counts.sum(1, keepdim=True) / self.measure_scale).clamp(min=1.0)
        return torch.cat([delta, losses.clamp(min=0.0).minimum(counts), counts], dim=1)

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        layout = self.layout(len(broadcast["params"]))
        losses, counts = (
            layout.view(released, name) / self.measure_scale for name in ("losses", "counts")
        )
        now = {**memory, "counts": memory["counts"] + counts, "rounds": memory["rounds"] + 1}
        parts = self._parts(now)
        means = (losses / parts.clamp(min=self.least_part)).clamp(0.0, 1.0) * self.loss_cap
        now["mixture"] = on_simplex(memory["mixture"] + self.ascent * means)
        weight = (broadcast["weights"] * parts).sum().clamp(min=self.least_part)
        return layout.view(released, "delta") / weight, now

    def _parts(self, memory: Memory) -> Tensor:
        """Returns the estimated fraction of clients in each group, `[groups]`, in [0, 1].

        It is the mean of the released counts so far; before the first release, 1 / `groups`.
        """
        counts, rounds = memory["counts"], int(memory["rounds"])
        parts = counts / rounds if rounds else torch.full_like(counts, 1 / self.groups)
        return parts.clamp(0.0, 1.0)


def on_simplex(point: Tensor) -> Tensor:
    """Returns the projection of `point` `[G]` onto the simplex: nonnegative numbers with sum 1.

    Source: Duchi, Shalev-Shwartz, Singer & Chandra 2008, Figure 1.
    """
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(point) + 1, device=point.device)
    positive = int((ordered > excess).sum())
    return (point - excess[positive - 1]).clamp(min=0.0)
