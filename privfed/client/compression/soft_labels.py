"""Soft labels on public examples in place of a model update, and distillation on the server.

Clients and server hold the same m public, unlabelled examples. A client's row has m * k numbers, k
the number of classes: the predictions of its trained model for the public examples minus those of
the server's model (minus its probabilities, if clients send votes). The server adds the released
average to its own predictions, and trains its model to reproduce the result (distillation).

Sources: Li & Wang 2019, "FedMD: heterogenous federated learning via model distillation" (clients'
own models, average predictions); Lin, Kong, Stich & Jaggi 2020, "Ensemble distillation for robust
model fusion in federated learning" (FedDF: distillation into the server's model, from which clients
train); Papernot, Song, Mironov, Raghunathan, Talwar & Erlingsson 2018, "Scalable private learning
with PATE" (votes). These papers send predictions, not differences; FedDF sends models to the
server, which computes their predictions.

*Releases*: the noised sum of the clipped rows `[m * k]`. The server's predictions are functions of
earlier releases, and distillation is post-processing.

*Sensitivity*: the clipping norm, as for any row. Two vectors of probabilities differ by at most
sqrt(2) in L2 norm, so a row of probabilities or votes has norm at most sqrt(2 m) before clipping: a
larger clipping norm only adds noise, and is refused.

Unit of privacy, adjacency relation, sampling and event are those of a round with whole updates. The
guarantee requires that public examples belong to no client.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import ClassVar, Literal

from pydantic import Field

from privfed.client.compression.compression import Compression, Sending, Space, Student
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory
from privfed.core.deferred import F, Tensor, torch
from privfed.core.vector import Shapes

LABELS = "compression_labels"
"""Name of the server's predictions for the public examples, `[m k]`, in broadcasts."""


class SoftLabels(Compression):
    """Predictions of each client's model for public examples, distilled on the server.

    A client sends `examples` * `classes` numbers, whatever the size of its model. Rows are summed,
    clipped and noised like updates: secure sums, sites and rules on rows are supported. With
    `models` or `keep_models`, clients train models of their own, which need not have the
    architecture of the server's (FedMD); they then receive predictions only, and not the server's
    model.
    """

    linear: ClassVar[bool] = False
    fresh: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True
    keeping: ClassVar[str] = "keep_models"

    examples: int = Field(ge=1, le=1_000_000, examples=[8])
    """Number m of public test examples that clients label; they are not used for evaluation."""
    classes: int = Field(ge=2, le=100_000, examples=[3])
    """Number k of classes."""
    sends: Literal["logits", "probabilities", "votes"] = "logits"
    """The prediction for an example. "logits": logits minus their mean over classes, without a norm
    bound other than the clipping norm. "probabilities": a distribution over classes. "votes": 1 for
    the most probable class, else 0."""
    distil_steps: int = Field(100, ge=1, le=1_000_000)
    """Number of steps of a distillation."""
    distil_batch: int = Field(64, ge=1)
    """Number of public examples in a step of a distillation."""
    distil_lr: float = Field(0.003, gt=0)
    """Learning rate of a distillation (Adam)."""
    models: list[str] = Field([], max_length=64)
    """Architectures of clients' own models, by name, with the default values of their keys. Client
    i, or each client of site i, has entry i modulo their number. Empty: the server's
    architecture."""
    keep_models: bool = False
    """Whether clients keep their own model between rounds; requires data.setting = "cross_silo".
    Otherwise clients with their own architecture start each round from public initial parameters.
    """

    @property
    def summable(self) -> bool:
        return True

    @property
    def public(self) -> int:
        return self.examples

    @property
    def architectures(self) -> list[str]:
        return self.models

    @property
    def trains_own_models(self) -> bool:
        return bool(self.models) or self.keep_models

    @property
    def keeps(self) -> int:
        """Number of vectors that a client keeps between rounds: its own model, or none."""
        return int(self.keep_models)

    @property
    def norm_bound(self) -> float:
        return math.inf if self.sends == "logits" else math.sqrt(2 * self.examples)

    def length(self, shapes: Shapes) -> int:
        return self.examples * self.classes

    def received(self, shapes: Shapes) -> int:
        return self.length(shapes)

    def exchanges_before(
        self, sending: Sending, memory: Memory
    ) -> Generator[Exchange, Tensor, Broadcast]:
        """Returns the server's predictions, which clients subtract from theirs."""
        yield from ()
        outputs = _student(sending.space).outputs(sending.broadcast["params"][None])
        return {LABELS: self._reference(outputs).flatten()}

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        models = sending.broadcast["params"] + updates
        return self.rows(_student(sending.space).outputs(models), sending.broadcast), None

    def rows(self, outputs: Tensor, broadcast: Broadcast) -> Tensor:
        """Returns the rows `[c, m k]` of clients.

        Args:
          outputs: outputs of their models for the public examples, shape [c, m, k].
          broadcast: released values by name.
        """
        if self.sends == "votes":
            predicted = F.one_hot(outputs.argmax(-1), outputs.shape[-1]).to(outputs)
        else:
            predicted = self._reference(outputs)
        return predicted.flatten(1) - broadcast[LABELS]

    def targets(self, broadcast: Broadcast, released: Tensor | None = None) -> Tensor:
        """Returns the distributions `[m, k]` that a model is distilled from.

        Args:
          broadcast: released values by name, with the server's predictions.
          released: the released average of rows, shape [m k]; None for the server's predictions.
        """
        predictions = broadcast[LABELS] if released is None else broadcast[LABELS] + released
        predictions = predictions.view(-1, self.classes)
        if self.sends == "logits":
            return predictions.softmax(-1)
        return nearest_distributions(predictions)

    def distilled(self, student: Student, models: Tensor, targets: Tensor) -> Tensor:
        """Returns models `[c, d]`, distilled from `targets` `[m, k]` on the public examples.

        Batches cycle through the examples in one public random order.
        """
        size = min(self.distil_batch, self.examples)
        order = torch.randperm(self.examples, generator=torch.Generator().manual_seed(0))
        steps = torch.arange(self.distil_steps * size) % self.examples
        batches = order[steps].view(self.distil_steps, size).to(models.device)
        return student.distilled(models, targets, batches, self.distil_lr)

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        params, student = sending.broadcast["params"], _student(sending.space)
        targets = self.targets(sending.broadcast, released)
        return self.distilled(student, params[None], targets)[0] - params, memory

    def _reference(self, outputs: Tensor) -> Tensor:
        """Returns the predictions `[c, m, k]` that follow from outputs, without votes."""
        if self.sends == "logits":
            return outputs - outputs.mean(-1, keepdim=True)
        return outputs.softmax(-1)


def nearest_distributions(rows: Tensor) -> Tensor:
    """Returns the probability distributions `[m, k]` nearest to `rows` `[m, k]` in L2 norm.

    Source: Duchi, Shalev-Shwartz, Singer & Chandra 2008, "Efficient projections onto the l1-ball",
    figure 1.
    """
    ordered = rows.sort(dim=-1, descending=True).values
    over = ordered.cumsum(-1) - 1.0
    counts = torch.arange(1, rows.shape[-1] + 1).to(rows)
    support = (ordered * counts > over).sum(-1, keepdim=True)
    return (rows - over.gather(-1, support - 1) / support).clamp(min=0.0)


def _student(space: Space) -> Student:
    """Returns the model on public examples. Raises `ValueError` if the space has none."""
    if space.student is None:
        raise ValueError("soft labels need the server's model and public examples")
    return space.student
