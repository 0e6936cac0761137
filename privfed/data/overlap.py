"""Whether a test set that is declared public holds the rows of those who train.

Who is who in a test set without a column of clients, nobody can say. But where nearly every row of
those who train is like no other, and most rows of the test set are among them, they are theirs.
"""

from __future__ import annotations

from privfed.data.federation import Examples
from privfed.deferred import torch
from privfed.errors import Refused

_AT_ONCE = 4096
"""How many examples are read at once."""
_DISTINCT, _SHARED = 0.9, 0.5
"""The part of rows to train on that has to be distinct, and that of test rows among them."""


def refuse_shared_rows(pool: Examples, test: Examples) -> None:
    """Raises `Refused` where most rows of `test`, which nobody owns, are rows of `pool`."""
    if pool.owners is None or test.owners is not None or not len(test):
        return
    rows, public = _distinct_rows(pool), _distinct_rows(test)
    if len(rows) >= _DISTINCT * len(pool) and len(public & rows) > _SHARED * len(public):
        raise Refused(
            "most rows of the test set are rows of clients that train, so it is not public, and "
            "scores on it would be released unprotected; expected a public table of other people, "
            'or data.holdout = "clients"'
        )


def _distinct_rows(examples: Examples) -> set[int]:
    """A number for each distinct row, features and label."""
    distinct: set[int] = set()
    for start in range(0, len(examples), _AT_ONCE):
        index = torch.arange(start, min(start + _AT_ONCE, len(examples)))
        x, y = examples.x[index], examples.y[index]
        pairs = zip(
            x.reshape(len(index), -1).numpy(), y.reshape(len(index), -1).numpy(), strict=True
        )
        distinct |= {hash(features.tobytes() + label.tobytes()) for features, label in pairs}
    return distinct
