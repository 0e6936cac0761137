"""The test set: examples held out before the rest is partitioned, or declared public.

Measures on the test set are published without noise at every evaluation, so under privacy its
examples must not belong to any client that the guarantee covers.

Under privacy, a test set that is declared public is refused if it contains training clients. If it
has no column of clients, examples are compared instead: it is refused if nearly all training
examples are distinct, and most distinct test examples are among them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation, client_number
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Outside

_BATCH_SIZE = 4096
"""Number of examples read at once."""
_FEW = 0.01
"""Fraction of numbers beyond their bounds up to which there is no warning: outliers are clipped."""
_DISTINCT, _SHARED = 0.9, 0.5
"""Thresholds of a refusal: the fraction of training examples that are distinct, and the fraction of
distinct test examples that are also training examples."""


def refuse_shared_rows(pool: Examples, test: Examples) -> None:
    """Raises `Refused` if more than half of the distinct examples of `test` are also in `pool`.

    Nothing is refused if `pool` has no owners, `test` has owners or is empty, or fewer than 90 % of
    the examples of `pool` are distinct.
    """
    if pool.owners is None or test.owners is not None or not len(test):
        return
    rows, public = _distinct_rows(pool), _distinct_rows(test)
    if len(rows) >= _DISTINCT * len(pool) and len(public & rows) > _SHARED * len(public):
        raise Refused(
            "most rows of the test set are also rows of training clients, but its scores are "
            "released without noise; use a public table of clients that do not train, or set "
            'data.holdout = "clients"'
        )


def bounds_warning(test: Examples) -> str:
    """Returns a warning if numbers in `test`, a public test set, are beyond their declared bounds.

    Returns "" if, for each declared pair of bounds, at most 1 % of the numbers are beyond them.
    """
    outside = test.outside
    if isinstance(test.x, Mapped) and len(test):
        declared = test.preprocessing.numbers if test.preprocessing else ()
        outside = (
            Outside(declared[0].column if declared else "x", test.x.bounds, *test.x.outside()),
        )
    wide = sorted((each for each in outside if each.share > _FEW), key=lambda each: -each.share)
    if not wide:
        return ""
    column, (low, high), share, (least, most) = wide[0]
    others = f" (and of {len(wide) - 1} other columns)" if wide[1:] else ""
    return (
        f"{share:.0%} of the numbers {column!r}{others} in the public test set are outside their "
        f"declared bounds [{low:g}, {high:g}] and are clipped; declare bounds=({least:g}, {most:g})"
        + ("" if isinstance(test.x, Mapped) else f" for {column!r}")
    )


def _distinct_rows(examples: Examples) -> set[int]:
    """Returns the set of hashes of all examples (features and label)."""
    distinct: set[int] = set()
    for start in range(0, len(examples), _BATCH_SIZE):
        index = torch.arange(start, min(start + _BATCH_SIZE, len(examples)))
        x, y = examples.x[index], examples.y[index]
        pairs = zip(
            x.reshape(len(index), -1).numpy(), y.reshape(len(index), -1).numpy(), strict=True
        )
        distinct |= {hash(features.tobytes() + label.tobytes()) for features, label in pairs}
    return distinct


def with_held_back(federation: Federation, fraction: float) -> tuple[Federation, Federation]:
    """Returns two populations of the same clients: one for training, one for evaluation.

    Each client holds out `fraction` of its examples for evaluation, rounded and evenly spaced. The
    choice depends only on the client's number of examples. A client with few examples may have none
    to train or none to evaluate on. If `fraction` is 0, both populations have all examples.
    """
    if not fraction:
        return federation, federation
    sizes = np.diff(federation.offsets)
    place = np.arange(len(federation.examples)) - np.repeat(federation.offsets[:-1], sizes)
    held = np.floor((place + 1) * fraction + 0.5) > np.floor(place * fraction + 0.5)
    return _only(federation, ~held), _only(federation, held)


def _only(federation: Federation, chosen: np.ndarray) -> Federation:
    """Returns the population with only the examples that the mask `chosen` `[N]` selects."""
    before = np.concatenate([[0], np.cumsum(chosen)]).astype(np.int64)
    offsets: Indices = before[federation.offsets]
    examples = federation.examples.take(np.flatnonzero(chosen))
    return replace(federation, examples=examples, offsets=offsets, _stages={})


@dataclass(frozen=True)
class HoldoutSplit:
    """The training examples `pool`, the test set, and the names of test clients declared public.

    `typical` is an estimate of a client's number of examples from public facts; None if unknown.
    `shared` states whether clients of the test set also train.
    """

    pool: Examples
    test: Examples
    public: tuple[str, ...] = ()
    typical: float | None = None
    shared: bool = False


def held_out(
    pool: Examples,
    declared: Examples | None,
    holdout: str,
    fraction: float,
    clients: int,
    streams: Streams,
    protected: bool = True,
) -> HoldoutSplit:
    """Splits `pool` into training examples and a test set.

    The test set depends on `holdout`. "none": it is empty. "test": the `declared` test set; without
    one, a random fraction of the examples, which then must not have owners. "clients": the examples
    of a random fraction of the clients, or the `declared` test set if the source does not name
    clients. "examples": a random fraction of each client's examples.

    If clients of the `declared` test set also train, as in a published split by example, it is used
    for "examples" (a simulation) and, if no client is `protected`, also for "test" and "clients".
    Otherwise it is refused for "test", and ignored for "clients".

    Args:
      pool: all examples of the source.
      declared: the source's own test set, if any.
      holdout: `data.holdout`: "test", "clients", "examples" or "none".
      fraction: fraction to hold out.
      clients: declared number of clients.
      streams: random streams of the run.
      protected: whether a guarantee covers the clients.

    Returns:
      The split.

    Raises:
      Refused: if the test set would not be public, or no training or no test example would remain.
    """
    if holdout == "none":
        return HoldoutSplit(pool, pool.take(np.empty(0, dtype=np.int64)))
    overlap = sorted({*pool.clients} & {*declared.clients}) if declared is not None else []
    if declared is not None and overlap and (holdout == "examples" or not protected):
        return HoldoutSplit(pool, declared, shared=True)
    if holdout == "examples":
        return replace(_split_each_client(pool, fraction, streams), shared=True)
    if holdout == "clients" and (pool.clients or declared is None):
        return _split_clients(pool, fraction, streams)
    if declared is not None:
        _refuse_overlap(overlap)
        if protected:
            refuse_shared_rows(pool, declared)
        return HoldoutSplit(pool, declared, typical=_mean_size(declared))
    return _split_unowned(pool, fraction, clients, streams)


def _refuse_overlap(overlap: list[str]) -> None:
    if overlap:
        raise Refused(
            f"{len(overlap)} clients of the test set also train, but its scores are released "
            "without noise; split the files by client, hold some clients out without guarantee by "
            'data.holdout = "clients", or, for a simulation, use "examples"',
            private=f"the first of them is {overlap[0]!r}",
        )


def _split_unowned(pool: Examples, fraction: float, clients: int, streams: Streams) -> HoldoutSplit:
    """Returns a split that holds out a random `fraction` of the examples, which have no owners.

    `clients` is their declared number, for the estimate `typical`. Raises `Refused` if the examples
    have owners, or no example would be left to test or to train.
    """
    if pool.owners is not None:
        raise Refused(
            'data.holdout is "test", but this source states the owners of examples and has no '
            "public test examples; name some (data.test_path, if the source has this key; in "
            'Python test=…), or set data.holdout = "clients", which exempts some clients from '
            'the guarantee, or "examples", which makes the run a simulation'
        )
    order = streams.at("holdout").generator().permutation(len(pool))
    test = round(fraction * len(pool))
    train = len(pool) - test
    if not (test and train):
        raise Refused(
            f"data.holdout_fraction is {fraction}, but of {len(pool)} examples it leaves {test} to "
            f"test and {train} to train; choose a fraction that leaves at least one for each"
        )
    return HoldoutSplit(
        pool.take(np.sort(order[test:])),
        pool.take(np.sort(order[:test])),
        typical=test * (1 - fraction) / fraction / clients,
    )


def _split_clients(pool: Examples, fraction: float, streams: Streams) -> HoldoutSplit:
    """Returns a split that holds out each client with probability `fraction`, by name and seed.

    Raises `Refused` if examples have no owners with names, or no client or example would be
    left to test or to train.
    """
    if pool.owners is None or not pool.clients:
        raise Refused(
            'data.holdout is "clients", but this source does not state the owner of each '
            'example; name its column of clients, or use data.holdout = "test"'
        )
    root = streams.at("holdout").integer()
    draws = np.array([_uniform(name, root) for name in pool.clients])
    public = draws < fraction
    if public.all() or not public.any():
        raise Refused(
            f"data.holdout_fraction is {fraction}, which holds out {int(public.sum())} of "
            f"{len(pool.clients)} clients, but one has to be held out and one to train; "
            "change data.holdout_fraction or run.seed"
        )
    test, train = _of_clients(pool, public), _of_clients(pool, ~public)
    if not len(test) or not len(train):
        raise Refused(
            f"data.holdout_fraction is {fraction}, but the {int(public.sum())} clients held "
            f"out have {len(test)} examples, and the others {len(train)}; change "
            "data.holdout_fraction or run.seed until both have at least one"
        )
    return HoldoutSplit(train, test, public=test.clients, typical=_mean_size(test))


def _uniform(name: str, root: int) -> float:
    """Returns a uniform number in [0, 1): a hash of a client's name and the split's `root`."""
    return client_number(f"{root}/{name}") / 2.0**63


def _of_clients(pool: Examples, chosen: np.ndarray) -> Examples:
    """Returns the examples of the clients in the mask `chosen` `[clients]`, renumbered from 0."""
    assert pool.owners is not None
    number = np.cumsum(chosen) - 1
    examples = pool.take(np.flatnonzero(chosen[pool.owners]))
    assert examples.owners is not None
    names = tuple(itertools.compress(pool.clients, chosen))
    return replace(examples, owners=number[examples.owners], clients=names)


def _split_each_client(pool: Examples, fraction: float, streams: Streams) -> HoldoutSplit:
    """Returns a split that holds out each example with probability `fraction`: a simulation.

    Raises `Refused` if none would be left to test or to train.
    """
    held_out = streams.at("holdout").generator().random(len(pool)) < fraction
    if held_out.all() or not held_out.any():
        raise Refused(
            f"data.holdout_fraction is {fraction}, but of {len(pool)} examples it leaves none to "
            "test or none to train; choose a fraction that leaves at least one for each"
        )
    return HoldoutSplit(pool.take(np.flatnonzero(~held_out)), pool.take(np.flatnonzero(held_out)))


def _mean_size(test: Examples) -> float | None:
    """Returns the mean number of examples per client in `test`; None if they have no owners."""
    if test.owners is None:
        return None
    return len(test) / max(len(np.unique(test.owners)), 1)
