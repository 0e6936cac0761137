"""The gain of fine-tuning without privacy: by Adam, over the text of all clients at once.

    python -m experiments.lora.ceiling
    python -m experiments.lora.ceiling --steps 1000 --set 'model.lora.rank=16' --methods LoRA

It runs in the folder of `experiments.lora.start`, and prints perplexities on held-out speakers. It
has no rounds, clipping or noise: an approximate upper bound for private tuning on as much text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from math import exp
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privfed.config.reading import load
from privfed.data.federation import Examples
from privfed.models.network import Network
from privfed.run.prepare import prepare

HERE = Path(__file__).parent
BATCH, EVERY, SCORED = 32, 50, 800
"""Windows in a step; steps between two scores; scored windows."""
METHODS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "full": ("model.frozen=[]", (1e-4, 3e-4, 1e-3)),
    "LoRA": ('model.lora={rank=4, targets=["blocks"]}', (1e-3, 3e-3, 1e-2)),
    "head": ('model.frozen=["characters", "places", "blocks", "last"]', (1e-3, 3e-3, 1e-2)),
}
"""Trained parameters, and candidate learning rates of Adam."""


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--steps", type=int, default=50)
    words.add_argument("--seed", type=int, default=500)
    words.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    words.add_argument("--set", action="append", default=[], help="a change to the run file")
    asked = words.parse_args()
    torch.set_num_threads(1)
    for method in asked.methods:
        change, rates = METHODS[method]
        network, clients, held_out = _prepared((change, *asked.set, f"run.seed={asked.seed}"))
        for rate in rates:
            for step, score in tuned(network, clients, held_out, rate, asked.steps):
                print(f"{method}, rate {rate:g}: {step} steps, perplexity {score:.4f}", flush=True)


def _prepared(changes: tuple[str, ...]) -> tuple[Network, Examples, Examples]:
    """Returns the network, the clients' text, and some of the held-out text."""
    setup = prepare(load(HERE / "run.toml", (*changes, "run.trainer=loop")))
    test = setup.federation.test
    some = np.linspace(0, len(test) - 1, min(SCORED, len(test))).astype(np.int64)
    return setup.network, setup.federation.examples, test.take(some)


def tuned(
    network: Network, clients: Examples, held_out: Examples, rate: float, steps: int
) -> Iterator[tuple[int, float]]:
    """Yields the perplexity on held-out text, before any step and after every `EVERY` steps."""
    params = network.initial_params.clone()
    optimizer = torch.optim.Adam([params], lr=rate)
    generator = torch.Generator().manual_seed(0)
    yield 0, perplexity(network, params, held_out)
    for step in range(1, steps + 1):
        rows = torch.randint(len(clients), (BATCH,), generator=generator)
        params.grad = network.gradient(params, clients.x[rows], clients.y[rows])
        optimizer.step()
        if step % EVERY == 0:
            yield step, perplexity(network, params, held_out)


def perplexity(network: Network, params: Tensor, examples: Examples) -> float:
    """Returns the perplexity per character over all `examples`."""
    return exp(network.evaluate(params, examples)["loss"])


if __name__ == "__main__":
    main()
