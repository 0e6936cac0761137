"""Grouping of numbers on a line: exact 2-means, and a test for two groups by the gap statistic."""

from __future__ import annotations

from defenses.deferred import Tensor, torch
from defenses.gap import gap


def upper_group(values: Tensor, references: int, generator: torch.Generator) -> Tensor:
    """Returns a mask `[m]` of the `values` in the higher of two groups; all False if there is one
    group.

    2-means is exact: on a line both groups are intervals. There is one group if Gap(1) >= Gap(2) -
    s_2 (`defenses.gap`), if there are fewer than three values, or if all are equal.

    Args:
      values: numbers to group, shape [m].
      references: number of reference sets, uniform between the least value and the largest.
      generator: source of randomness on the CPU.
    """
    ordered = values.double().sort().values
    if len(values) < 3 or not float(ordered[-1]) > float(ordered[0]):
        return torch.zeros_like(values, dtype=torch.bool)
    scaled = ((ordered - ordered[0]) / (ordered[-1] - ordered[0]))[None]
    uniform = torch.rand(references, len(values), generator=generator, dtype=torch.float64)
    drawn = uniform.sort(dim=1).values.to(scaled.device)
    together, apart, last = _dispersions(scaled)
    drawn_together, drawn_apart, _ = _dispersions(drawn)
    gap_of_two, error = gap(apart[0], drawn_apart)
    if gap(together[0], drawn_together)[0] >= gap_of_two - error:
        return torch.zeros_like(values, dtype=torch.bool)
    return values.double() > ordered[int(last[0])]


def _dispersions(ordered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums of squares within one group and within the best two groups, and the groups'
    boundary.

    `ordered` are b sets of m ascending values, `[b, m]`; each result is `[b]`. The last result is
    the index of the lower group's last value.
    """
    m = ordered.shape[1]
    sizes = torch.arange(1, m, dtype=ordered.dtype, device=ordered.device)
    sums, squares = ordered.cumsum(1), ordered.square().cumsum(1)
    low = squares[:, :-1] - sums[:, :-1].square() / sizes
    total, every = sums[:, -1:], squares[:, -1:]
    high = every - squares[:, :-1] - (total - sums[:, :-1]).square() / (m - sizes)
    apart, last = (low + high).clamp(min=0.0).min(dim=1)
    return (every - total.square() / m)[:, 0], apart, last
