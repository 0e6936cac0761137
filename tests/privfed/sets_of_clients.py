"""What random graphs are not to have, by looking at every set of clients."""

import numpy as np


def _sets(near, honest):
    """Each set of honest clients: its members `[honest]`, and how many have no edge to it."""
    for code in range(1, 1 << honest):
        members = (code >> np.arange(honest)) & 1 == 1
        touched = near[:, :honest, :honest][:, :, members].any(2) | members
        yield members, honest - touched.sum(1)


def closed_parts(near, honest, votes, threshold):
    """Whether some a clients, by a from 1, are a sum of their own in graphs `[graphs, n, n]`.

    Each has `threshold` neighbours among them and colluders, the last of the n. They vote, with
    others, at least as many, of whom none is their neighbour: at least `votes` honest ones in all.
    """
    found = np.zeros((len(near), honest // 2), dtype=bool)
    for members, beyond in _sets(near, honest):
        size = members.sum()
        if size <= honest // 2:
            kept = np.append(members, np.ones(near.shape[2] - honest, dtype=bool))
            enough = (near[:, :honest][:, members][:, :, kept].sum(2) >= threshold).all(1)
            found[:, size - 1] |= enough & (beyond >= max(size, votes - size))
    return found


def cut_off(near, honest, votes):
    """Whether some w voters, at most half of them, have no neighbour among the others, by w."""
    found = np.zeros((len(near), honest // 2), dtype=bool)
    for members, beyond in _sets(near, honest):
        size = members.sum()
        if size <= honest // 2:
            found[:, size - 1] |= beyond >= max(size, votes - size)
    return found
