"""Conversion of a model's parameters to one flat vector, and back to the original layout.

A model is an array or tensor, or a list or mapping of these. The vector contains its floating-point
numbers, in the order of the list or of the mapping's sorted names (some file formats keep no other
order). Arrays of integers or booleans, such as batch counters, are not part of the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.core.errors import Refused

Numbers = NDArray[np.float64]


def flatten(parameters: Any) -> Numbers:
    """Returns a model's floating-point numbers as a vector `[d]`, float64.

    Raises `Refused` for objects that are no model.
    """
    vectors = [_numbers(leaf) for _, leaf in _leaves(parameters) if _is_real(leaf)]
    return np.concatenate([np.empty(0), *vectors])


def shifted(parameters: Any, shift: NDArray[np.floating[Any]]) -> Any:
    """Returns `parameters` plus `shift`, in the same layout and precision.

    Args:
      parameters: an array or tensor, a list of these, or a mapping of these; left unchanged.
      shift: the difference to add, shape `[d]`.

    Raises:
      Refused: if `parameters` are no such model or do not have d floating-point numbers, or if a
        result is not finite in its precision.
    """
    count = len(flatten(parameters))
    if not count and len(shift):
        raise Refused("the model has no floating-point numbers; expected the model's parameters")
    if count != len(shift):
        raise Refused(
            f"the model has {count:,} floating-point numbers, but the canaries have "
            f"{len(shift):,}; make new canaries with --dimension {count}"
        )
    parts = iter(np.split(shift, np.cumsum(_sizes(parameters))[:-1]))
    return _rebuilt(parameters, lambda leaf: _moved(leaf, next(parts)) if _is_real(leaf) else leaf)


def _sizes(parameters: Any) -> list[int]:
    return [_numbers(leaf).size for _, leaf in _leaves(parameters) if _is_real(leaf)]


def _leaves(parameters: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every array of `parameters` with its key or index, in the order of the vector.

    A mapping is ordered by its sorted keys. A model that is one array has the key None.
    """
    if isinstance(parameters, Mapping):
        places = sorted(parameters)
    elif isinstance(parameters, list | tuple):
        places = list(range(len(parameters)))
    else:
        yield None, _checked(parameters, "the model")
        return
    for place in places:
        yield place, _checked(parameters[place], f"parameter {place!r}")


def _rebuilt(parameters: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `parameters` with `change` applied to each array, in the order of the flat vector."""
    changed = {place: change(leaf) for place, leaf in _leaves(parameters)}
    if isinstance(parameters, Mapping):
        if not isinstance(parameters, MutableMapping):  # such as an archive of numpy.load
            return changed
        answer = copy(parameters)
        answer.update(changed)
        return answer
    if isinstance(parameters, list | tuple):
        return type(parameters)(changed.values())
    return changed[None]


def _checked(leaf: Any, what: str) -> Any:
    """Returns `leaf`, an array of reals or booleans named `what`, or else raises `Refused`."""
    if not (_is_tensor(leaf) or isinstance(leaf, np.ndarray | np.generic)):
        raise Refused(
            f"{what} is of type {type(leaf).__name__}; expected NumPy arrays or torch tensors: a "
            "single one, a list, or a state_dict"
        )
    if leaf.is_complex() if _is_tensor(leaf) else leaf.dtype.kind not in "fiub":
        raise Refused(f"{what} is an array of type {leaf.dtype}; expected real numbers")
    return leaf


def _is_tensor(leaf: Any) -> bool:
    """Whether `leaf` is a torch tensor; works without torch installed."""
    return hasattr(leaf, "detach") and hasattr(leaf, "is_floating_point")


def _is_real(leaf: Any) -> bool:
    """Whether the array `leaf` has floating-point numbers."""
    return bool(leaf.is_floating_point()) if _is_tensor(leaf) else leaf.dtype.kind == "f"


def _numbers(leaf: Any) -> Numbers:
    """Returns the numbers of one array, flat, as float64."""
    array = leaf.detach().cpu().double().numpy() if _is_tensor(leaf) else np.asarray(leaf)
    return array.astype(np.float64).ravel()


def _moved(leaf: Any, shift: NDArray[np.floating[Any]]) -> Any:
    """Returns the array `leaf` plus `shift`. Raises `Refused` if a result is not finite."""
    moved = (_numbers(leaf) + shift).reshape(tuple(leaf.shape))
    with np.errstate(over="ignore"):
        answer = leaf.new_tensor(moved) if _is_tensor(leaf) else moved.astype(leaf.dtype)
    if not np.isfinite(_numbers(answer)).all():
        raise Refused(
            f"a canary's row does not fit into numbers of type {leaf.dtype}, or the received model "
            "is not finite; make new canaries with a smaller --clip"
        )
    return answer
