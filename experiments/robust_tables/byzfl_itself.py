"""ByzFL's own code (0.0.11) on the images of `byzfl.toml`, assigned to the same workers.

`python -m experiments.robust_tables.byzfl_itself FOLDER`, with ByzFL installed and MNIST in FOLDER,
writes byzfl_itself.csv: its README example, step by step, for each seed.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from experiments.robust_tables.images import Assigned
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.data.federation import Examples

HERE = Path(__file__).parent
SEEDS, CLASSES = (0, 1, 2), 10
SGD = {
    "optimizer_name": "SGD",
    "optimizer_params": {},
    "learning_rate": 0.1,
    "weight_decay": 0.0001,
    "milestones": [1000],
    "learning_rate_decay": 0.25,
}


def main() -> None:
    rows = [(seed, *scored) for seed in SEEDS for scored in example(sys.argv[1], seed)]
    with (HERE / "byzfl_itself.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("seed", "round", "accuracy"))
        out.writerows(rows)


def example(folder: str, seed: int) -> Iterator[tuple[int, float]]:
    """Yields the scored steps of the README's example, and their accuracy."""
    config = load(HERE / "byzfl.run.toml", [f"data.path={folder}", f"run.seed={seed}"])
    client, every = config.client, config.run.evaluate_every
    source, streams = config.source, Streams(seed, simulated=True)
    if not isinstance(source, Assigned):
        raise TypeError("the run file names another source")
    torch.manual_seed(seed)
    same: dict[str, Any] = {"device": "cpu", "model_name": "cnn_mnist"}
    workers = [
        _part("client").Client(
            {
                **same,
                **SGD,
                "loss_name": "NLLLoss",
                "LabelFlipping": False,
                "training_dataloader": loader,
                "momentum": 0.9,
                "nb_labels": CLASSES,
                "store_per_client_metrics": False,
            }
        )
        for loader in _loaders(source, config.data.clients, streams, client.batch_size)
    ]
    test = source.load_test(config.data.clients, streams)
    if test is None:
        raise TypeError("there are no images to test on")
    before = [{"name": "Clipping", "parameters": {"c": 2.0}}, _of_one("NNM")]
    server = _part("server").Server(
        {
            **same,
            **SGD,
            "test_loader": DataLoader(_tensors(test), batch_size=500),
            "aggregator_info": _of_one("TrMean"),
            "pre_agg_list": before,
        }
    )
    attack = _part("byzantine_client").ByzantineClient(
        {"name": "InnerProductManipulation", "f": 1, "parameters": {"tau": 3.0}}
    )
    for step in range(config.run.rounds + 1):
        if step % every == 0:
            yield step, server.compute_test_accuracy()
        model = server.get_dict_parameters()
        for worker in workers:
            worker.set_model_state(model)
            worker.compute_gradients()
        honest = [worker.get_flat_gradients_with_momentum() for worker in workers]
        server.update_model_with_gradients(honest + attack.apply_attack(honest))


def _of_one(name: str) -> dict[str, Any]:
    """Returns the configuration of a part of ByzFL for one Byzantine worker."""
    return {"name": name, "parameters": {"f": 1}}


def _loaders(
    source: Assigned, clients: int, streams: Streams, batch_size: int
) -> Iterator[DataLoader[Any]]:
    """Yields the images of each honest worker."""
    assigned = source.load(clients, streams)
    if assigned.owners is None:
        raise TypeError("nobody knows whose an image is")
    for worker in np.flatnonzero(~source.byzantine_workers(clients, streams)):
        mine = assigned.take(np.flatnonzero(assigned.owners == worker))
        yield DataLoader(_tensors(mine), batch_size=batch_size, shuffle=True)


def _tensors(examples: Examples) -> TensorDataset:
    return TensorDataset(examples.x[torch.arange(len(examples))], examples.y)


def _part(module: str) -> Any:
    """Returns a module of ByzFL's simulation, without its benchmark, which imports torchvision."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("ByzFL is not installed")
        package = types.ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.fed_framework.{module}")


if __name__ == "__main__":
    main()
