"""Federated averaging with clipping and Gaussian noise, without a framework, with canaries.

    privfed canary new canaries --count 200 --dimension 10010
    python -m experiments.audits_elsewhere.bare_loop canaries models
    privfed canary judge canaries --releases models --claimed-epsilon 1 --delta 1e-5 --gaussian

All clients take part in every round, so T rounds at noise multiplier z are one Gaussian mechanism
at z / √T. By default it is (1, 1e-5)-private for a client (Balle & Wang 2018, theorem 8).
`--without noise` and `--without clip` leave out a line, as a bug would.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privfed.canary import Client, participants

Numbers = NDArray[np.float64]
Model = list[Numbers]
EXAMPLES, CLASSES = 20, 10
CLIP, RATE, STEPS = 1.0, 0.5, 3


@dataclass(frozen=True)
class Pipeline:
    """The settings of training; if `without` is "noise" or "clip", that step is left out."""

    rounds: int = 10
    clients: int = 100
    features: int = 1000
    noise_multiplier: float = 11.8
    without: str = "nothing"
    seed: int = 0


def train(canaries: Path, releases: Path, pipeline: Pipeline) -> None:
    """Trains, and saves the model after each round as `releases/N.npz`, the initial one as 0."""
    rng = np.random.default_rng(pipeline.seed)
    clients = population(rng, pipeline)
    clients += [Client(canaries, number).answer for number in participants(canaries)]
    model = [np.zeros((pipeline.features, CLASSES)), np.zeros(CLASSES)]
    releases.mkdir()
    np.savez(releases / "0.npz", *model)
    for round in range(1, pipeline.rounds + 1):
        total = [np.zeros_like(part) for part in model]
        for answer in clients:
            update = [new - old for new, old in zip(answer(model), model, strict=True)]
            norm = np.sqrt(sum((part**2).sum() for part in update))
            scale = 1.0 if pipeline.without == "clip" else min(1.0, CLIP / max(norm, 1e-12))
            total = [so_far + scale * part for so_far, part in zip(total, update, strict=True)]
        std = 0.0 if pipeline.without == "noise" else pipeline.noise_multiplier * CLIP
        total = [part + std * rng.normal(size=part.shape) for part in total]
        model = [old + part / pipeline.clients for old, part in zip(model, total, strict=True)]
        np.savez(releases / f"{round}.npz", *model)


def population(rng: np.random.Generator, pipeline: Pipeline) -> list[Callable[[Model], Model]]:
    """Returns clients with their own examples of one classification task."""
    truth = rng.normal(size=(pipeline.features, CLASSES))
    shape = EXAMPLES, pipeline.features
    return [_person(rng.normal(size=shape), truth) for _ in range(pipeline.clients)]


def _person(features: Numbers, truth: Numbers) -> Callable[[Model], Model]:
    """Returns a client that takes some steps of softmax regression on its `features` `[n, f]`."""
    labels = np.eye(CLASSES)[(features @ truth).argmax(1)]

    def answer(received: Model) -> Model:
        weights, bias = received
        for _ in range(STEPS):
            scores = features @ weights + bias
            chances = np.exp(scores - scores.max(1, keepdims=True))
            error = (chances / chances.sum(1, keepdims=True) - labels) / len(labels)
            weights, bias = weights - RATE * features.T @ error, bias - RATE * error.sum(0)
        return [weights, bias]

    return answer


def main() -> None:
    """Trains with the options of the command line."""
    parser = argparse.ArgumentParser(description="Federated averaging with canaries in it.")
    parser.add_argument("canaries", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--without", choices=["nothing", "noise", "clip"], default="nothing")
    chosen = parser.parse_args()
    train(chosen.canaries, chosen.releases, Pipeline(without=chosen.without))


if __name__ == "__main__":
    main()
