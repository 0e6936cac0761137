"""A Flower app with canaries among its clients: Flower's own averaging, clipping and noise.

Every node of the federation gets `canaries="DIR"` in its node configuration. A canary's node also
gets `canary=NUMBER`, one for each of `privfed.canary.participants(DIR)`. Under `--relation
zero-out` a canary may return the model unchanged: then Flower's clipping divides by zero. Written
for Flower 1.41 and 1.42.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from privfed.canary import Client

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Any:
    """Returns a canary's answer if this node is one; otherwise trains and returns the model."""
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    node = context.node_config
    if "canary" in node:
        parameters = Client(str(node["canaries"]), int(node["canary"])).answer(received)
    else:
        parameters = trained(received, seed=int(context.node_id))
    content = {
        "arrays": ArrayRecord({name: Array(part) for name, part in parameters.items()}),
        "metrics": MetricRecord({"num-examples": 1}),  # all clients have equal weight
    }
    return Message(content=RecordDict(content), reply_to=message)


def trained(received: dict[str, Any], seed: int) -> dict[str, Any]:
    """Returns a model after one step of least squares on the node's own examples."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(20, len(received["weights"]))).astype(np.float32)
    error = features @ received["weights"] + received["bias"] - np.sign(features[:, :1])
    gradient = features.T @ error / len(features)
    return {
        "weights": received["weights"] - 0.1 * gradient,
        "bias": received["bias"] - np.float32(0.1) * error.mean(0),
    }


@server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    """Trains by Flower's central DP, and saves the model before the first round and after each."""
    chosen = context.run_config
    releases = Path(str(chosen["releases"]))
    releases.mkdir()

    def save(round: int, arrays: ArrayRecord) -> None:
        np.savez(releases / f"{round}.npz", **{n: array.numpy() for n, array in arrays.items()})

    weights = np.zeros((int(chosen["features"]), 1), dtype=np.float32)
    initial = {"weights": Array(weights), "bias": Array(np.zeros(1, dtype=np.float32))}
    clients = len(list(grid.get_node_ids()))
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        noise_multiplier=float(chosen["noise-multiplier"]),
        clipping_norm=1.0,
        num_sampled_clients=clients,
    )
    rounds = int(chosen["rounds"])
    strategy.start(grid, ArrayRecord(initial), num_rounds=rounds, evaluate_fn=save)
