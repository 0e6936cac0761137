"""What models are scored on: examples set apart before anybody owns the rest, or declared public.

Measures of these leave after every round, so under privacy they must belong to nobody that the
guarantee covers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privfed.data.federation import Examples, identity
from privfed.errors import Refused
from privfed.streams import Streams


@dataclass(frozen=True)
class Held:
    """What is left to train on, the test set, and the clients declared public for it.

    `typical` is a client's likely number of examples, computed from public facts only. `shared`:
    clients of the test set train too.
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
) -> Held:
    """The test set by `holdout`, of which `fraction` says how much. Raises `Refused`.

    A `declared` test set of clients that train (a published split by example) is taken as it is by
    "examples", a simulation, and where nobody is `protected`.
    """
    both = sorted({*pool.clients} & {*declared.clients}) if declared is not None else []
    if declared is not None and both and (holdout == "examples" or not protected):
        return Held(pool, declared, shared=True)
    if holdout == "examples":
        return replace(_examples(pool, fraction, streams), shared=True)
    if holdout == "clients" and (pool.clients or declared is None):
        return _clients(pool, fraction, streams)
    if declared is not None:
        _refuse_shared(both)
        return Held(pool, declared, typical=_mean_size(declared))
    return _split(pool, fraction, clients, streams)


def _refuse_shared(both: list[str]) -> None:
    if both:
        raise Refused(
            f"{len(both)} clients of the test set also train, so it is not public, and scores on "
            "it would be released unprotected; split the files by client, declare some clients "
            'public with data.holdout = "clients", or, for a simulation, use "examples"',
            private=f"the first of them is {both[0]!r}",
        )


def _split(pool: Examples, fraction: float, clients: int, streams: Streams) -> Held:
    """A random fraction, of a pool that nobody owns yet."""
    if pool.owners is not None:
        raise Refused(
            'data.holdout is "test", but this source knows owners and has no public examples '
            "beside them; splitting would publish measures of its clients' own data. Use "
            'data.holdout = "clients" to declare some of them public, name a public test file '
            'where the source has such a key, or, for a simulation, use "examples"'
        )
    order = streams.at("holdout").generator().permutation(len(pool))
    test = round(fraction * len(pool))
    train = len(pool) - test
    if not (test and train):
        raise Refused(
            f"data.holdout_fraction is {fraction} of {len(pool)} examples, which leaves {test} to "
            f"test and {train} to train; expected at least one each"
        )
    return Held(
        pool.take(np.sort(order[test:])),
        pool.take(np.sort(order[:test])),
        typical=test * (1 - fraction) / fraction / clients,
    )


def _clients(pool: Examples, fraction: float, streams: Streams) -> Held:
    """Clients declared public: each by a coin that follows from its own name and the seed."""
    if pool.owners is None or not pool.clients:
        raise Refused(
            'data.holdout is "clients", but this source does not know whose an example is; name '
            'its column of clients, or use data.holdout = "test"'
        )
    root = streams.at("holdout").integer()
    coins = np.array([_coin(name, root) for name in pool.clients])
    public = coins < fraction
    if public.all() or not public.any():
        raise Refused(
            f"data.holdout_fraction is {fraction} of {len(pool.clients)} clients, which declares "
            f"{int(public.sum())} public; expected at least one to test and one to train: change "
            "it, or run.seed"
        )
    test, train = _of(pool, public), _of(pool, ~public)
    if not len(test) or not len(train):
        raise Refused(
            f"data.holdout_fraction is {fraction}: the {int(public.sum())} clients declared public "
            f"hold {len(test)} examples and the others {len(train)}; expected at least one each: "
            "change it, or run.seed"
        )
    return Held(train, test, public=test.clients, typical=_mean_size(test))


def _coin(name: str, root: int) -> float:
    return identity(f"{root}/{name}") / 2.0**63


def _of(pool: Examples, chosen: np.ndarray) -> Examples:
    """The examples of the chosen clients `[clients]`, numbered anew from 0."""
    assert pool.owners is not None
    number = np.cumsum(chosen) - 1
    some = pool.take(np.flatnonzero(chosen[pool.owners]))
    assert some.owners is not None
    names = tuple(name for name, kept in zip(pool.clients, chosen, strict=True) if kept)
    return replace(some, owners=number[some.owners], clients=names)


def _examples(pool: Examples, fraction: float, streams: Streams) -> Held:
    """A fraction of the examples, in expectation of each client's too: simulation only."""
    coins = streams.at("holdout").generator().random(len(pool)) < fraction
    if coins.all() or not coins.any():
        raise Refused(
            f"data.holdout_fraction is {fraction} of {len(pool)} examples, which leaves none to "
            "test or none to train; expected at least one each"
        )
    return Held(pool.take(np.flatnonzero(~coins)), pool.take(np.flatnonzero(coins)))


def _mean_size(test: Examples) -> float | None:
    if test.owners is None:
        return None
    return len(test) / max(len(np.unique(test.owners)), 1)
