"""Two mechanisms that are wrong in ways that happen, beside right ones: what an audit has to tell.

    privfed audit --function experiments.audits_elsewhere.wrong_mechanisms:clips_the_mean \
        --noise-multiplier 1 --delta 1e-5

Each releases means of rows that ten clients send, and claims noise of `NOISE_MULTIPLIER` for each
round: of `ROUNDS` rounds, or of one. The person in question is the first client; the neighbour has
a row of zeros in that place (zero-out), so that the divisor is the same.

- *A seed that repeats.* An example of DP-SGD in JAX drew the noise of every layer by one key, until
  pull request 3646 of jax-ml/jax (2020): the difference of two releases is without noise. A seed
  of which there are few, such as a process's number or a clock's second, draws the same noise in
  another run: who has seen a value knows its neighbour.
- *Clipping after averaging.* The mean of all rows is clipped, and noise is added as if each row had
  been: one client moves the mean by up to the whole clip, and not by the clip over the number of
  clients. Issue 349 of APPFL (2025) says so of its gradients. Tramèr et al. 2022, "Debugging
  differential privacy: a case study for privacy auditing", refuted a published implementation
  whose sensitivity was wrong by the size of a batch in such a way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
CLIENTS, LENGTH, CLIP, NOISE_MULTIPLIER, ROUNDS = 10, 4, 1.0, 1.0, 2
_FAR = 100.0
_SEEDS = 1000


def gaussian_rounds(member: bool, generator: np.random.Generator) -> Numbers:
    """Right: fresh noise in both rounds. The releases `[ROUNDS, LENGTH]`."""
    return np.stack([_noised(_mean(member, turn), generator) for turn in range(ROUNDS)])


def same_noise_each_round(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: one seed for the noise of both rounds. The releases `[ROUNDS, LENGTH]`."""
    seed = int(generator.integers(2**63))
    return np.stack(
        [_noised(_mean(member, turn), np.random.default_rng(seed)) for turn in range(ROUNDS)]
    )


def noise_of_few_seeds(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: noise by a seed of which there are a thousand. One release `[LENGTH]`."""
    seed = int(generator.integers(_SEEDS))
    return _noised(_mean(member, 0), np.random.default_rng(seed))


def clips_each_row(member: bool, generator: np.random.Generator) -> Numbers:
    """Right: each row is clipped, then averaged. One release `[LENGTH]`."""
    return _noised(_mean(member, 0), generator)


def clips_the_mean(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: the mean of rows is clipped, and the noise is that of clipped rows. `[LENGTH]`."""
    mean = _rows(member, 0).mean(0)
    return _noised(clipped(mean[None])[0], generator)


def clipped(rows: Numbers) -> Numbers:
    """`rows` `[n, LENGTH]`, each scaled down to a norm of at most `CLIP`."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * CLIP / np.maximum(norms, CLIP))


def _rows(member: bool, turn: int) -> Numbers:
    """What clients send `[CLIENTS, LENGTH]`: the first pulls far, the other way in every turn."""
    rows = np.zeros((CLIENTS, LENGTH))
    rows[0, 0] = member * _FAR * (-1) ** turn
    return rows


def _mean(member: bool, turn: int) -> Numbers:
    return np.asarray(clipped(_rows(member, turn)).mean(0))


def _noised(mean: Numbers, generator: np.random.Generator) -> Numbers:
    """`mean` `[LENGTH]` with Gaussian noise for rows of norm `CLIP`.

    Released: the mean over a public number of clients. Sensitivity: `CLIP / CLIENTS`, where rows
    were clipped. Relation: zero-out. Unit: client. Sampler: everybody takes part.
    """
    return mean + generator.normal(0.0, NOISE_MULTIPLIER * CLIP / CLIENTS, len(mean))
