"""Flower's simulation on a task: its FedAvg strategy, within its central DP if requested.

    python -m experiments.benchmarks.peers.flower_driver TASK.npz OUT.json --rounds 10 [--private]

It runs in an environment with flwr[simulation] and torch, and without privfed. Every client of the
population is a node of the simulation. The task determines the cohorts, so that all frameworks
train the same clients.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from experiments.benchmarks.peers import flower_client
from experiments.benchmarks.work.task import Task


class Chosen(FedAvg):  # type: ignore[misc]
    """FedAvg over the task's cohorts, with the start time of each round."""

    def __init__(self, task: Task) -> None:
        super().__init__(fraction_train=1.0, fraction_evaluate=0.0)
        self.task = task
        self.began: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        clients = self.task.cohorts[(server_round - 1) % len(self.task.cohorts)].tolist()
        while len(nodes := list(grid.get_node_ids())) < len(self.task.offsets) - 1:
            time.sleep(0.01)  # nodes are still registering
        self.began.append(time.perf_counter())
        for client in clients:
            settings = ConfigRecord({"client": client, "server-round": server_round})
            record = RecordDict({"arrays": arrays, "config": settings})
            yield Message(content=record, message_type=MessageType.TRAIN, dst_node_id=nodes[client])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--private", action="store_true")
    arguments = parser.parse_args()
    os.environ[flower_client.TASK] = str(arguments.task.resolve())
    os.environ[flower_client.THREADS] = str(arguments.threads)
    task = Task.load(arguments.task)
    chosen = Chosen(task)
    strategy: Any = chosen
    if arguments.private:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            chosen, task.noise_multiplier, task.clip, task.cohorts.shape[1]
        )
    trained: dict[str, Any] = {}
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def serve(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(task.module().state_dict())
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=arguments.rounds)
        chosen.began.append(time.perf_counter())
        trained["model"] = result.arrays.to_torch_state_dict()

    began = time.perf_counter()
    run_simulation(
        server,
        flower_client.app,
        num_supernodes=len(task.offsets) - 1,
        backend_config={"client_resources": {"num_cpus": arguments.threads, "num_gpus": 0.0}},
    )
    module = task.module()
    module.load_state_dict(trained["model"])
    seconds = [after - before for before, after in itertools.pairwise(chosen.began)]
    start = chosen.began[1] - began  # its worker processes start within the first round
    arguments.out.write_text(
        json.dumps({"seconds": seconds, "loss": task.loss(module), "start": start})
    )


if __name__ == "__main__":
    main()
