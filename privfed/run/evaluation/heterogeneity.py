"""Heterogeneity of clients at a model, and the model's score on each: simulation only.

These values depend on unprotected examples, so no epsilon covers them. F_k is client k's mean loss,
p_k its fraction of the examples, and f = sum_k p_k F_k:

    heterogeneity  sqrt(sum_k p_k |grad F_k - grad f|^2), the Gamma(theta) of Wang et al. 2021
    dissimilarity  B with B^2 = sum_k p_k |grad F_k|^2 / |grad f|^2 (Li et al. 2020, definition 3)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privfed.client.trainer import LocalTrainer
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.models.network import Network

_BATCH_SIZE = 64


def measure_clients(trainer: LocalTrainer, params: Tensor) -> dict[str, Any]:
    """Heterogeneity, dissimilarity, training loss, and the distribution of scores over clients.

    The values are by name, at the model `params` `[d]`, over the clients that have examples. The
    result is empty if no client has any.
    """
    federation = trainer.federation
    every = np.arange(federation.clients)
    holders = every[federation.sizes(every) > 0]
    if not len(holders):
        return {}
    name, scores = client_scores(trainer.network, federation, params, holders)
    spread = distribution(scores, trainer.network.loss.lower_is_better)
    return {
        **gradients(trainer, params, holders),
        "train_loss": _loss(trainer.network, federation, params),
        **{f"client_{name}_{part}": value for part, value in spread.items()},
    }


def _loss(network: Network, federation: Federation, params: Tensor) -> float:
    """The mean loss over all examples of all clients."""
    scored = network.scored(params, federation.examples)
    return float(torch.cat([network.loss.losses(out, y).double() for out, y in scored]).mean())


def gradients(trainer: LocalTrainer, params: Tensor, holders: Indices) -> dict[str, float]:
    """Heterogeneity and dissimilarity (defined in the module's docstring) at `params` `[d]`.

    `holders` `[n]` are the clients that have examples.
    """
    sizes = trainer.federation.sizes(holders)
    shares = torch.from_numpy(sizes / sizes.sum())
    mean, squares = torch.zeros(len(params), dtype=torch.float64, device=params.device), 0.0
    streams = Streams(0, simulated=True)
    for start in range(0, len(holders), _BATCH_SIZE):
        ids = holders[start : start + _BATCH_SIZE]
        rows = trainer.gradients(ids, params, streams.at("measure", 0, ids)).double()
        weights = shares[start : start + _BATCH_SIZE].to(rows.device)
        mean += weights @ rows
        squares += float(weights @ rows.square().sum(1))
    of_mean = float(mean.square().sum())
    return {
        "heterogeneity": math.sqrt(max(squares - of_mean, 0.0)),
        "dissimilarity": math.sqrt(squares / of_mean) if of_mean else math.inf,
    }


def client_scores(
    network: Network, federation: Federation, params: Tensor, ids: Indices
) -> tuple[str, np.ndarray]:
    """The name of the measure, and the model's score on each client's own examples `[n]`."""
    loss, meaning = network.loss, federation.examples.meaning
    scored = network.scored(params, federation.examples)
    judged = torch.cat([loss.scores(outputs, y, meaning) for outputs, y in scored])
    ends = federation.offsets
    scores = [loss.client_measure(judged[ends[k] : ends[k + 1]]) for k in ids]
    return scores[0][0], np.array([score for _, score in scores])


def distribution(scores: np.ndarray, lower_is_better: bool = False) -> dict[str, float]:
    """The mean, worst and variance of `scores` `[n]`, and the mean of the worst tenth.

    Scores have equal weights. The worst tenth consists of floor(n / 10) scores, but at least one.
    """
    ordered = np.sort(scores)[:: -1 if lower_is_better else 1]
    worst = ordered[: max(len(ordered) // 10, 1)]
    return {
        "mean": float(ordered.mean()),
        "worst_decile": float(worst.mean()),
        "worst": float(ordered[0]),
        "variance": float(ordered.var()),
    }
