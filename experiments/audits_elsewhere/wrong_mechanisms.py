r"""Two mechanisms with realistic faults, next to correct ones, which an audit must distinguish.

    privfed audit --function experiments.audits_elsewhere.wrong_mechanisms:clips_the_mean \
        --noise-multiplier 1 --delta 1e-5

Each releases means of rows of ten clients, and claims noise of `NOISE_MULTIPLIER` per round, over
`ROUNDS` rounds or one. The target is the first client; in the neighbour its row is zero (zero-out),
so the divisor is the same.

- *A repeated seed.* An example of DP-SGD in JAX sampled the noise of every layer with one key,
  until pull request 3646 of jax-ml/jax (2020): the difference of two releases has no noise. A seed
  with few possible values, such as a process id or a clock's second, gives the same noise in
  another run: a reader who has seen one value knows its neighbour.
- *Clipping after averaging.* The mean of all rows is clipped, and noise is added as if each row had
  been clipped. One client moves the mean by up to the whole clipping norm, and not by the clipping
  norm over the number of clients. Issue 349 of APPFL (2025) reports this for its gradients. Tramèr
  et al. 2022, "Debugging differential privacy: a case study for privacy auditing", refuted a
  published implementation whose sensitivity was wrong by the size of a batch in this way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
CLIENTS, LENGTH, CLIP, NOISE_MULTIPLIER, ROUNDS = 10, 4, 1.0, 1.0, 2
_FAR = 100.0
_SEEDS = 1000


def gaussian_rounds(member: bool, generator: np.random.Generator) -> Numbers:
    """Correct: fresh noise in both rounds. The releases `[ROUNDS, LENGTH]`."""
    return np.stack([_noised(_mean(member, turn), generator) for turn in range(ROUNDS)])


def same_noise_each_round(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: one seed for the noise of both rounds. The releases `[ROUNDS, LENGTH]`."""
    seed = int(generator.integers(2**63))
    return np.stack(
        [_noised(_mean(member, turn), np.random.default_rng(seed)) for turn in range(ROUNDS)]
    )


def noise_of_few_seeds(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: noise from one of a thousand seeds. One release `[LENGTH]`."""
    seed = int(generator.integers(_SEEDS))
    return _noised(_mean(member, 0), np.random.default_rng(seed))


def clips_each_row(member: bool, generator: np.random.Generator) -> Numbers:
    """Correct: each row is clipped, then averaged. One release `[LENGTH]`."""
    return _noised(_mean(member, 0), generator)


def clips_the_mean(member: bool, generator: np.random.Generator) -> Numbers:
    """Wrong: the mean of rows is clipped, and the noise is that of clipped rows. `[LENGTH]`."""
    mean = _rows(member, 0).mean(0)
    return _noised(clipped(mean[None])[0], generator)


def clipped(rows: Numbers) -> Numbers:
    """Returns `rows` `[n, LENGTH]`, each scaled down to a norm of at most `CLIP`."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * CLIP / np.maximum(norms, CLIP))


def _rows(member: bool, turn: int) -> Numbers:
    """Returns the clients' rows `[CLIENTS, LENGTH]`; the first one is large and alternates its
    sign.
    """
    rows = np.zeros((CLIENTS, LENGTH))
    rows[0, 0] = member * _FAR * (-1) ** turn
    return rows


def _mean(member: bool, turn: int) -> Numbers:
    return np.asarray(clipped(_rows(member, turn)).mean(0))


def _noised(mean: Numbers, generator: np.random.Generator) -> Numbers:
    """Returns `mean` `[LENGTH]` with Gaussian noise for rows of norm `CLIP`.

    Released: the mean over a public number of clients. Sensitivity: `CLIP / CLIENTS`, if rows were
    clipped. Relation: zero-out. Unit: client. Sampler: full participation.
    """
    return mean + generator.normal(0.0, NOISE_MULTIPLIER * CLIP / CLIENTS, len(mean))
