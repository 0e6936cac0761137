"""A Flower client that trains on the examples of the client named in the message.

It is a separate module, so that Flower's worker processes import it rather than receive it by
value.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from experiments.benchmarks.work.task import Task, mean_loss

TASK, THREADS = "PRIVFED_BENCHMARK_TASK", "PRIVFED_BENCHMARK_THREADS"
"""Environment variables that worker processes inherit."""
app = ClientApp()


@cache
def task() -> Task:
    torch.set_num_threads(int(os.environ[THREADS]))
    return Task.load(Path(os.environ[TASK]))


@cache
def model() -> nn.Module:
    return task().module()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Any:
    """Runs one epoch of SGD from the received model."""
    work, module = task(), model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
    x, y = work.examples(int(message.content["config"]["client"]))
    for batch in torch.split(torch.randperm(len(y)), work.batch_size):
        optimizer.zero_grad()
        mean_loss(module(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)
