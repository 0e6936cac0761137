"""The true divergences of random allocation: by quadrature for few slots, and by simulation."""

import itertools
import math

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

REMOVED, ADDED = "removed", "added"


def points(z, centre):
    """Returns values `[..., n]` of exp(L) and their weights under Q, dense around `centre` `[...]`.

    It uses the trapezoid rule in the arsinh of the distance, so a kink at the centre does no harm.
    """
    normal = np.clip(np.log(np.maximum(centre, 1e-300)) * z + 0.5 / z, -10.5, 10.5 + 1 / z)
    near = 1e-3 * z
    furthest = math.asinh((21 + 1 / z) / near)
    turns = np.linspace(-furthest, furthest, 361)
    u = normal[..., None] + near * np.sinh(turns)
    steps = near * np.cosh(turns) * (turns[1] - turns[0])
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    return np.exp(np.clip(u / z - 0.5 / z**2, -700, 600)), density * steps


def sums(count, z, step):
    """Returns all sums of `count` terms with their weights, on a uniform grid: for smooth
    functions.
    """
    u = np.arange(-10.5, 10.5 + 1 / z, step)
    weights = np.exp(-(u**2) / 2) * step / math.sqrt(2 * math.pi)
    total, chance = np.zeros(1), np.ones(1)
    for _ in range(count):
        total = np.add.outer(total, np.exp(u / z - 0.5 / z**2)).ravel()
        chance = np.multiply.outer(chance, weights).ravel()
        total, chance = total[chance > 1e-30], chance[chance > 1e-30]
    return total, chance


def call(k, z):
    """Returns E (exp(L) - k)_+, for any k `[n]`."""
    inside = np.log(np.maximum(k, 1e-300)) * z
    return np.where(k > 0, ndtr(0.5 / z - inside) - k * ndtr(-0.5 / z - inside), 1 - k)


def put(k, z):
    """Returns E (k - exp(L))_+, for any k `[n]`."""
    inside = np.log(np.maximum(k, 1e-300)) * z
    return np.where(k > 0, k * ndtr(inside + 0.5 / z) - ndtr(inside - 0.5 / z), 0.0)


def expected(payoff, count, k, z):
    """Returns E payoff of a sum of `count` terms, at any k `[...]`, with the last term in closed
    form.
    """
    if count == 1:
        return payoff(k, z)
    values, weights = points(z, k)
    return (weights * expected(payoff, count - 1, k[..., None] - values, z)).sum(axis=-1)


def true_delta(slots, z, direction, at):
    """Returns the hockey-stick divergence of one epoch at `at` `[...]`."""
    scale = np.exp(at)
    if direction == REMOVED:
        return expected(call, slots, slots * scale, z) / slots
    return expected(put, slots, slots / scale, z) * scale / slots


def true_epsilon(slots, z, direction, delta):
    return brentq(lambda at: true_delta(slots, z, direction, at) - delta, -1.0, 100.0, xtol=1e-13)


def true_pair_delta(z, direction, at):
    """Returns the divergence of two epochs of two slots, by integration over the first one's
    ratio.
    """
    total, chance = sums(2, z, 0.1)
    total, chance = total[chance > 1e-25] / 2, chance[chance > 1e-25]
    sign = 1 if direction == REMOVED else -1
    places = at - sign * np.log(total)
    table = np.linspace(places.min(), places.max(), 2000)
    logs = np.log(np.maximum(true_delta(2, z, direction, table), 1e-60))
    inner = np.exp(CubicSpline(table, logs)(places))
    return float(chance @ (inner * total if direction == REMOVED else inner))


def sampled_delta(slots, z, direction, at, first, others, count=100_000):
    """Returns the mean and standard error of an importance sample, a mixture over all mean vectors.

    `first` are the means of the first slot: by symmetry the slot with the largest term if the
    client is removed, and any slot if it is added. `others` are the means of all other slots.
    """
    draws = np.random.default_rng(slots)
    means = np.array(list(itertools.product(first, others)))
    y = z * draws.standard_normal((count, slots))
    chosen = means[np.arange(count) % len(means)]
    y += np.concatenate([chosen[:, :1], np.repeat(chosen[:, 1:], slots - 1, axis=1)], axis=1)
    linear = np.stack([y[:, 0], y[:, 1:].sum(axis=1)])
    square = (means**2) @ np.array([1, slots - 1]) / 2
    log_proposal = logsumexp((means @ linear - square[:, None]) / z**2, axis=0)
    ratio = np.exp((y - 0.5) / z**2).mean(axis=1)
    if direction == REMOVED:
        largest = y[:, 0] >= y[:, 1:].max(axis=1)
        payoff = slots * largest * np.maximum(ratio - math.exp(at), 0.0)
    else:
        payoff = np.maximum(1 - math.exp(at) * ratio, 0.0)
    values = payoff * np.exp(math.log(len(means)) - log_proposal)
    return float(values.mean()), float(values.std() / math.sqrt(count))
