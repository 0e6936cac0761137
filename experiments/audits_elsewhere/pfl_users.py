"""Canaries as users of pfl-research: its own backend, clipping and noise, run in NumPy.

    privfed canary new canaries --count 100 --dimension 5000 --relation zero-out
    python -m experiments.audits_elsewhere.pfl_users canaries models
    privfed canary judge canaries --releases models --claimed-epsilon 0.5 --delta 1e-5 --gaussian

pfl's users send differences rather than models: a canary's is `Client.update`. It runs in an
environment with pfl, and with privfed on its path; written for pfl 0.6.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedNNAlgorithm, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

from privfed.canary import Client, participants

PEOPLE, FEATURES, CLIP = 60, 5000, 1.0


class Linear(Model):  # type: ignore[misc, unused-ignore]
    """A linear model: its `weights` `[d]`."""

    def __init__(self) -> None:
        self.weights = np.zeros(FEATURES)

    def apply_model_update(self, statistics: Any) -> tuple[Linear, Any]:
        self.weights = self.weights + statistics["weights"]
        return self, Metrics()


class Averaging(FederatedNNAlgorithm):  # type: ignore[misc, unused-ignore]
    """Federated averaging over a fixed number of clients, in which canaries are users, too."""

    def train_one_user(self, *_: Any) -> Any:
        raise NotImplementedError  # the backend calls simulate_one_user only

    def simulate_one_user(
        self, model: Linear, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Any]:
        if canary := user_dataset.metadata.get("canary"):
            difference = canary.update
        else:
            (features,) = user_dataset.raw_data
            error = features @ model.weights - np.sign(features[:, 0])
            difference = -0.1 * features.T @ error / len(features)
        return MappedVectorStatistics({"weights": difference}), Metrics()

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Linear, statistics: Any
    ) -> tuple[Any, Any]:
        statistics.reweight(statistics.weight / PEOPLE)  # a constant, and no count
        updated: tuple[Any, Any] = model.apply_model_update(statistics)
        return updated


class Saving(TrainingProcessCallback):  # type: ignore[misc, unused-ignore]
    """Saves every released model, the initial one as number 0."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def on_train_begin(self, *, model: Linear) -> Any:
        np.save(self._folder / "0.npy", model.weights)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Linear, *, central_iteration: int
    ) -> tuple[bool, Any]:
        np.save(self._folder / f"{central_iteration + 1}.npy", model.weights)
        return False, Metrics()


def train(canaries: Path, releases: Path, rounds: int, noise_multiplier: float) -> None:
    """Trains over clients and canaries, with full participation in every round."""
    rng = np.random.default_rng(0)
    users = [Dataset((rng.normal(size=(20, FEATURES)),)) for _ in range(PEOPLE)]
    users += [
        Dataset((np.empty((1, 0)),), metadata={"canary": Client(canaries, number)})
        for number in participants(canaries)
    ]
    turns = itertools.cycle(range(len(users)))
    data = FederatedDataset(lambda user: users[user], lambda: next(turns))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, noise_multiplier))
    Averaging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=len(users),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(data, data, [mechanism]),
        model=Linear(),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None
        ),
        callbacks=[Saving(releases)],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Trains with the options of the command line."""
    parser = argparse.ArgumentParser(description="pfl-research with canaries among its users.")
    parser.add_argument("canaries", type=Path)
    parser.add_argument("releases", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--noise-multiplier", type=float, default=14.1)
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
