"""How much clients differ at a model, and how it serves each of them: simulation only.

All of it reads clients' own examples unprotected, so no epsilon covers it. With F_k client k's mean
loss, p_k its share of the examples and f = sum_k p_k F_k:

    heterogeneity  sqrt(sum_k p_k |grad F_k - grad f|^2), the Gamma(theta) of Wang et al. 2021
    dissimilarity  B with B^2 = sum_k p_k |grad F_k|^2 / |grad f|^2 (Li et al. 2020, definition 3)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfed.federation import Federation, Indices
from privfed.local.trainer import LocalTrainer
from privfed.network import Network
from privfed.streams import Streams

_AT_ONCE = 64


def measure_clients(trainer: LocalTrainer, params: Tensor) -> dict[str, Any]:
    """Heterogeneity, dissimilarity, training loss, and the spread of the first measure."""
    federation = trainer.federation
    every = np.arange(federation.clients)
    holders = every[federation.sizes(every) > 0]
    scores = client_scores(trainer.network, federation, params, holders)
    name = next(iter(trainer.network.evaluate(params, federation.examples.take(np.arange(1)))))
    everybody = trainer.network.evaluate(params, federation.examples)
    return {
        **gradients(trainer, params, holders),
        "train_loss": everybody["loss"],
        **{f"client_{name}_{part}": value for part, value in distribution(scores).items()},
    }


def gradients(trainer: LocalTrainer, params: Tensor, holders: Indices) -> dict[str, float]:
    """Heterogeneity and dissimilarity at `params` `[d]`, over clients `holders` `[n]`."""
    sizes = trainer.federation.sizes(holders)
    shares = torch.from_numpy(sizes / sizes.sum())
    mean, squares = torch.zeros(len(params), dtype=torch.float64, device=params.device), 0.0
    streams = Streams(0, simulated=True)
    for start in range(0, len(holders), _AT_ONCE):
        ids = holders[start : start + _AT_ONCE]
        rows = trainer.gradients(ids, params, streams.at("measure", 0, ids)).double()
        weights = shares[start : start + _AT_ONCE].to(rows.device)
        mean += weights @ rows
        squares += float(weights @ rows.square().sum(1))
    whole = float(mean.square().sum())
    return {
        "heterogeneity": math.sqrt(max(squares - whole, 0.0)),
        "dissimilarity": math.sqrt(squares / whole) if whole else math.inf,
    }


def client_scores(
    network: Network, federation: Federation, params: Tensor, ids: Indices
) -> np.ndarray:
    """The loss's first measure of the model `params` on each client's own examples `[n]`."""
    loss, meaning = network.loss, federation.examples.meaning
    scored = network.scored(params, federation.examples)
    kept = torch.cat([loss.keep(outputs, y, meaning) for outputs, y in scored])
    ends = federation.offsets
    return np.array([next(iter(loss.measures(kept[ends[k] : ends[k + 1]]).values())) for k in ids])


def distribution(scores: np.ndarray) -> dict[str, float]:
    """Mean, mean of the worst tenth, least and variance of `scores` `[n]`, each client alike."""
    ordered = np.sort(scores)
    worst = ordered[: max(len(ordered) // 10, 1)]
    return {
        "mean": float(ordered.mean()),
        "worst_decile": float(worst.mean()),
        "min": float(ordered[0]),
        "variance": float(ordered.var()),
    }
