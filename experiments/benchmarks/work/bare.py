"""The reference: federated averaging in bare PyTorch, one client after another.

It has no framework, no ledger and no durable storage, only a module, its gradients, plain SGD
steps, clipping and noise.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from experiments.benchmarks.work.task import Task, mean_loss


class BareLoop:
    """Rounds of `task`; with `private`, updates are clipped and their sum gets Gaussian noise."""

    def __init__(self, task: Task, private: bool, threads: int) -> None:
        self.task, self.threads = task, threads
        self.clip = task.clip if private else math.inf
        self.noise = task.noise_multiplier * task.clip if private else 0.0
        self.module = task.module()
        self.clients = [task.examples(client) for client in range(len(task.offsets) - 1)]
        self.params: list[Tensor] = list(self.module.parameters())
        self.model = [p.detach().clone() for p in self.params]
        self.round = 0

    def go(self, rounds: int = 1) -> list[float]:
        """Runs `rounds` more rounds, and returns their seconds."""
        torch.set_num_threads(self.threads)
        taken = []
        for _ in range(rounds):
            began = time.perf_counter()
            self._round(self.task.cohorts[self.round % len(self.task.cohorts)].tolist())
            self.round += 1
            taken.append(time.perf_counter() - began)
        return taken

    def loss(self) -> float:
        self._load(self.model)
        return self.task.loss(self.module)

    def _round(self, cohort: list[int]) -> None:
        total = [torch.zeros_like(p) for p in self.model]
        for client in cohort:
            self._load(self.model)
            self._train(*self.clients[client])
            with torch.no_grad():
                update = [mine - start for mine, start in zip(self.params, self.model, strict=True)]
                if self.clip < math.inf:
                    norm = torch.stack(torch._foreach_norm(update)).norm().item()
                    torch._foreach_mul_(update, min(1.0, self.clip / max(norm, 1e-12)))
                torch._foreach_add_(total, update)
        for part, change in zip(self.model, total, strict=True):
            if self.noise:
                change.add_(torch.randn_like(change), alpha=self.noise)
            part.add_(change, alpha=1 / len(cohort))

    def _train(self, x: Tensor, y: Tensor) -> None:
        for batch in torch.split(torch.randperm(len(y)), self.task.batch_size):
            loss = mean_loss(self.module(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, self.params)
            with torch.no_grad():
                torch._foreach_add_(self.params, gradients, alpha=-self.task.lr)

    @torch.no_grad()
    def _load(self, model: list[Tensor]) -> None:
        torch._foreach_copy_(self.params, model)
