"""Properties that random graphs must not have, by enumeration of all sets of clients.

Graphs are `[graphs, n, n]`; the last of the n clients are the colluders.
"""

import numpy as np


def _sets(near, honest, votes):
    """Returns sets of at most half of the `honest` that may have no edge to other voters.

    Their members `[sets, honest]`, a mask by graph `[graphs, sets]`, and each client's number of
    neighbours in them `[graphs, sets, honest]`.
    """
    codes = np.arange(1, 1 << honest)
    members = (codes[:, None] >> np.arange(honest)) & 1
    members = members[members.sum(1) <= honest // 2]
    inside = members @ near[:, :honest, :honest].astype(np.int64)
    beyond = honest - ((inside > 0) | (members > 0)).sum(2)
    sizes = members.sum(1)
    return members > 0, beyond >= np.maximum(sizes, votes - sizes), inside


def _by_size(these, members):
    sizes = members.sum(1)
    most = members.shape[1] // 2
    return np.stack([these[:, sizes == size].any(1) for size in range(1, most + 1)], axis=1)


def closed_parts(near, honest, votes, threshold):
    """Returns whether some a clients, by a from 1, form a sum of their own `[graphs, honest // 2]`.

    Each of them has `threshold` neighbours among them and colluders. They vote together with at
    least as many others, none of them a neighbour: at least `votes` honest ones in all.
    """
    members, apart, inside = _sets(near, honest, votes)
    corrupt = near[:, :honest, honest:].sum(2)
    enough = (inside + corrupt[:, None] >= threshold) | ~members
    return _by_size(apart & enough.all(2), members)


def cut_off(near, honest, votes):
    """Returns whether some w voters, at most half of them, have no neighbour among the others, by
    w.
    """
    members, apart, _ = _sets(near, honest, votes)
    return _by_size(apart, members)
