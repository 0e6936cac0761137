"""Personalisation by fine-tuning: the value of a trained model to each client (simulation only).

As in Wang et al. 2021, section 7.5: each client's examples are split in halves. A copy of the model
is trained on one half by plain SGD at the run's client learning rate and batch size. The run's
model and the copy are scored on the other half. The run itself trained on both halves, so neither
score is on held-out examples; the meaningful result is the change by fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from privfed.client.objective import Sgd
from privfed.client.trainer import LocalTrainer
from privfed.core.deferred import Tensor
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.models.local_part import full_network, local_start
from privfed.models.network import Network
from privfed.run.evaluation.heterogeneity import client_scores, distribution
from privfed.run.population import load_population
from privfed.store.run_directory import RunDirectory
from privfed.trained.stored_model import stored_model

CONFIDENCE = 0.95
_RESAMPLES = 2000
Interval = tuple[float, float]
Scores = np.ndarray


@dataclass(frozen=True)
class Personalised:
    """Clients' scores with the run's model and with personal models, and their comparison.

    Attributes:
      path: directory of the run.
      round: the last round whose update the model includes.
      measure: name of the score, which is the first measure of the model's loss.
      clients: number of scored clients.
      epochs: epochs of fine-tuning; 0 if clients keep personal models and these were scored.
      before: distribution over clients, equally weighted, of the score of the run's model.
      after: distribution over clients, equally weighted, of the score of the personal models.
      improved: fraction of clients whose score with the personal model is strictly better.
      intervals: 95 % confidence intervals by name: "before", "after" and "change" are of means over
        clients, "improved" is of that fraction; empty for a single client.
      note: a text that states the limits of these scores.
    """

    path: Path
    round: int
    measure: str
    clients: int
    epochs: int
    before: dict[str, float]
    after: dict[str, float]
    improved: float
    intervals: dict[str, Interval]
    note: str

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed evaluate --personalise --json` prints."""
        return {
            "measure": self.measure,
            "clients": self.clients,
            "epochs": self.epochs,
            "before": self.before,
            "after": self.after,
            "improved": self.improved,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "confidence": CONFIDENCE,
            "simulation": True,
            "note": self.note,
            "round": self.round,
            "run": str(self.path),
        }


def comparison_of(before: Scores, after: Scores, lower_is_better: bool) -> dict[str, Any]:
    """Returns the fields of a `Personalised`, by name, that are computed from clients' scores.

    Args:
      before: each client's score of the run's model, shape `[n]`.
      after: score of the personal model of the same clients, shape `[n]`.
      lower_is_better: whether lower scores are better.
    """
    better = (after < before) if lower_is_better else (after > before)
    return {
        "clients": len(before),
        "before": distribution(before, lower_is_better),
        "after": distribution(after, lower_is_better),
        "improved": float(better.mean()),
        "intervals": _intervals(before, after, better) if len(before) > 1 else {},
    }


def _intervals(before: Scores, after: Scores, better: Scores) -> dict[str, Interval]:
    """Returns confidence intervals over clients, by the names of `Personalised.intervals`.

    The intervals of means are percentiles of the bootstrap over clients (Efron 1979). The interval
    of the fraction of improved clients is a score interval (Wilson 1927).
    """
    share = stats.binomtest(int(better.sum()), len(better)).proportion_ci(CONFIDENCE, "wilson")
    return {
        "before": _of_mean(before),
        "after": _of_mean(after),
        "change": _of_mean(after - before),
        "improved": (float(share.low), float(share.high)),
    }


def _of_mean(scores: Scores) -> Interval:
    interval = stats.bootstrap(
        (scores,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def client_score(network: Network, scoring: Federation, model: Tensor, client: int) -> float:
    """Returns a model's score, by the first measure of its loss, on one client's examples.

    Args:
      network: the network.
      scoring: the clients and their examples.
      model: parameters, shape `[d]`.
      client: index of the client in `scoring`.
    """
    start, end = scoring.offsets[client], scoring.offsets[client + 1]
    examples = scoring.examples.take(np.arange(start, end))
    alone = Federation(examples, np.array([0, end - start]), examples)
    return float(client_scores(network, alone, model, np.array([0]))[1][0])


_NOTE = "a simulation: clients' own examples, which the run trained on and which no ε covers"


def personalise(path: Path, epochs: int) -> Personalised:
    """Fine-tunes the model of a run on half of each client's examples, and scores the other half.

    Args:
      path: directory of the run.
      epochs: epochs of fine-tuning.

    Returns:
      Scores before and after fine-tuning, over the clients with two or more examples.

    Raises:
      Refused: if there is no run with a checkpoint, or no client has two examples.
      Broken: if a file of the run is damaged.
    """
    config = RunDirectory.open(path).config.read()
    streams = Streams(config.run.seed)
    population = load_population(config, streams)
    ids = np.arange(population.clients)
    ids = ids[population.sizes(ids) > 1]
    if not len(ids):
        raise Refused(
            "no client holds two examples, one to fine-tune and one to score; use data with more "
            "examples per client"
        )
    network, params, round = stored_model(path, population.examples)
    tuning, scoring = _halves(population.at(round), streams)
    measure, before = client_scores(network, scoring, params, ids)
    # Parameters that clients keep are also tuned, from their public initial values.
    params, network = torch.cat([params, local_start(network)]), full_network(network)
    plain = Sgd()
    trainer = LocalTrainer(
        tuning, network, plain, config.client.lr, epochs, config.client.batch_size, "loop"
    )
    after = []
    for client in ids:
        ids_of_one = np.array([client])
        keys = streams.at("personal", 0, population.identify(ids_of_one))
        rows, _ = trainer.train(ids_of_one, {"params": params}, None, keys)
        after.append(client_score(network, scoring, params + rows[0], int(client)))
    return Personalised(
        path=path,
        round=round,
        measure=measure,
        epochs=epochs,
        note=_NOTE,
        **comparison_of(before, np.array(after), network.loss.lower_is_better),
    )


def _halves(population: Federation, streams: Streams) -> tuple[Federation, Federation]:
    """Splits each client's examples at random, and returns the population with each of the halves.

    The first half has one example more if the number is odd.
    """
    order = streams.at("personal").generator().permutation(len(population.examples))
    owners = np.repeat(np.arange(population.clients), np.diff(population.offsets))
    order = order[np.argsort(owners[order], kind="stable")]  # by client, shuffled within
    place = np.arange(len(order)) - population.offsets[owners]
    first = place < (np.diff(population.offsets)[owners] + 1) // 2
    sides = []
    for side in (first, ~first):
        counts = np.bincount(owners[side], minlength=population.clients)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        examples = population.examples.take(order[side])
        sides.append(replace(population, examples=examples, offsets=offsets, _stages={}))
    return sides[0], sides[1]
