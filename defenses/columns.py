"""Coordinate-wise computation on rows, in chunks of columns that are transposed to be
contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from defenses.deferred import Tensor, torch

_CHUNK = 8192
_BATCH_SIZE = 1 << 24
"""Number of values that a GPU sorts at once."""
_SPARSE = 8
"""Weights are treated as sparse if less than 1 / this number of their entries is nonzero."""


def by_column(
    rows: Tensor,
    keep: Tensor | None,
    weights: Tensor | None,
    reduce: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns `reduce` of the sorted values of each coordinate of `weights @ rows[keep]`.

    In addition to the rows, needs memory for a few chunks of columns only.

    Args:
      rows: client updates, shape [n, d].
      keep: indices of the rows used, shape [k]; None for all.
      weights: mixing weights, float64, shape [m, k]; None to use the rows as they are.
      reduce: maps ascending values, shape [c, m], to one value per coordinate, shape [c].

    Returns:
      The reduced coordinates, shape [d], in the dtype of `rows`.
    """
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    mixing = None if weights is None else weights.to(rows).T
    lanes = torch.get_num_threads() if rows.device.type == "cpu" else 1
    step = _columns_per_step(rows, lanes)
    with ThreadPoolExecutor(lanes) as pool:
        for start in range(0, rows.shape[1], step):
            chunk = rows[:, start : start + step].T
            if keep is not None:
                chunk = chunk[:, keep]
            columns = chunk.clone(memory_format=torch.contiguous_format)
            if mixing is not None:
                columns = columns @ mixing
            out[start : start + step] = reduce(_ascending(columns, pool))
    return out


def _columns_per_step(rows: Tensor, lanes: int) -> int:
    """Returns the number of columns of `rows` `[n, d]` that are sorted at once, by `lanes` threads
    if on a CPU.
    """
    if rows.device.type == "cpu":
        return _CHUNK * lanes
    return max(_CHUNK, _BATCH_SIZE // max(len(rows), 1))


def _ascending(columns: Tensor, pool: ThreadPoolExecutor) -> Tensor:
    """Returns `columns` `[c, m]` with the m values of each sorted; on a CPU, sorts in place, by the
    threads of `pool`.
    """
    if columns.device.type != "cpu":
        return columns.sort(dim=1).values
    values = columns.numpy()
    parts = (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
    list(pool.map(lambda part: part.sort(axis=1), parts))
    return columns


def product(weights: Tensor, rows: Tensor, keep: Tensor | None) -> Tensor:
    """Returns `weights @ rows[keep]`, `[m, d]` in the rows' dtype, without copying `rows`.

    Only weights on the CPU are checked for sparsity: counting nonzeros on a GPU would synchronise.
    """
    counted = keep is None and weights.device.type == "cpu"
    if counted and int(weights.count_nonzero()) * _SPARSE < weights.numel():
        picked: Tensor = torch.sparse.mm(weights.to_sparse().to(rows), rows)
        return picked
    weights = weights.to(rows)
    if keep is None:
        return weights @ rows
    out = torch.empty(len(weights), rows.shape[1], dtype=rows.dtype, device=rows.device)
    for start in range(0, rows.shape[1], _CHUNK):
        chunk = rows[:, start : start + _CHUNK]
        out[:, start : start + _CHUNK] = weights @ chunk[keep]
    return out
