"""pfl-research on a task: its PyTorch model, federated averaging, simulated backend and central DP.

    python -m experiments.benchmarks.peers.pfl_driver TASK.npz OUT.json --rounds 10 [--private]

It runs in an environment with pfl and torch, and without privfed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

from experiments.benchmarks.work.task import Task, mean_loss


class Module(nn.Module):
    """A model in pfl's form: with a loss, and metrics that are used in the first round only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return mean_loss(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """The end time of each round."""

    def __init__(self) -> None:
        self.ended = [time.perf_counter()]

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self.ended.append(time.perf_counter())
        return False, Metrics()


def sampler(task: Task) -> Callable[[], int]:
    """Returns the clients of the task's own cohorts, one after the other."""
    clients = itertools.cycle(task.cohorts.ravel().tolist())
    return lambda: next(clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--private", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    task = Task.load(arguments.task)
    clients = [PyTorchTensorDataset(task.examples(k)) for k in range(len(task.offsets) - 1)]
    module = Module(task.module())
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    postprocessors: list[Any] = [WeightByUser()]
    if arguments.private:
        mechanism = GaussianMechanism(task.clip, task.noise_multiplier)
        postprocessors.append(CentrallyAppliedPrivacyMechanism(mechanism))
    data = FederatedDataset(lambda client: clients[client], sampler(task))
    backend = SimulatedBackend(data, data, postprocessors)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.rounds,
            evaluation_frequency=arguments.rounds + 1,
            train_cohort_size=task.cohorts.shape[1],
            val_cohort_size=None,
        ),
        backend=backend,
        model=PyTorchModel(module, torch.optim.SGD, optimizer),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = [after - before for before, after in itertools.pairwise(clock.ended)]
    arguments.out.write_text(json.dumps({"seconds": seconds, "loss": task.loss(module)}))


if __name__ == "__main__":
    main()
