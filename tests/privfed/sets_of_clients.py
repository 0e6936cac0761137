"""What random graphs are not to have, by looking at every set of clients.

Graphs are `[graphs, n, n]`; the last of the n clients are the colluders.
"""

import numpy as np


def _sets(near, honest, votes):
    """Sets of at most half of the `honest` who may have no edge to other voters.

    Their members `[sets, honest]`, which of them may in which graph `[graphs, sets]`, and how many
    neighbours each client has in them `[graphs, sets, honest]`.
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
    """Whether some a clients, by a from 1, are a sum of their own `[graphs, honest // 2]`.

    Each has `threshold` neighbours among them and colluders. They vote, with others, at least as
    many, of whom none is their neighbour: at least `votes` honest ones in all.
    """
    members, apart, inside = _sets(near, honest, votes)
    corrupt = near[:, :honest, honest:].sum(2)
    enough = (inside + corrupt[:, None] >= threshold) | ~members
    return _by_size(apart & enough.all(2), members)


def cut_off(near, honest, votes):
    """Whether some w voters, at most half of them, have no neighbour among the others, by w."""
    members, apart, _ = _sets(near, honest, votes)
    return _by_size(apart, members)
