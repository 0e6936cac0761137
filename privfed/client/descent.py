"""What a client minimises in its local steps, and how it descends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from privfed.client.exchange import Broadcast
from privfed.core.deferred import Tensor, torch
from privfed.core.parts import Part
from privfed.models.loss import Loss

Anchor = Literal["", "all", "batch"]


@dataclass(frozen=True)
class Batch:
    """A batch of one client, for which a `LocalLoss` computes losses.

    Attributes:
        loss: The run's loss (`model.loss`).
        outputs: The outputs `[B, *positions, width]` of the client's model.
        y: The labels `[B, *positions]` or `[B, width]`; a position without one has `NO_LABEL`, -1.
            Stacked batches may end in repeated examples of the same batch, whose losses have weight
            zero.
        counts: How many of all the client's examples have each class `[classes]`; None where labels
            are no classes.
        features: The representations `[B, h]`: the inputs of the model's last layer with
            parameters, flattened; None unless `reads_features`.
        others: The representations `[m, B, h]` of the same examples under the models of
            `contrasts`, without gradients; None where there are none.
    """

    loss: Loss
    outputs: Tensor
    y: Tensor
    counts: Tensor | None = None
    features: Tensor | None = None
    others: Tensor | None = None


class LocalLoss(Part):
    """What a client minimises: the mean of `losses` over its examples.

    By default that is the run's loss. Whatever a client minimises follows from released values, its
    own examples and its own state, so it costs nothing beyond the message, which is clipped.
    """

    reads_features: ClassVar[bool] = False
    """Whether `losses` reads representations (`Batch.features`)."""
    needs_classes: ClassVar[bool] = False
    """Whether `losses` reads outputs as logits of classes: other losses are refused."""

    @property
    def changes_loss(self) -> bool:
        """Whether the loss is another one than the run's: gradients are then those of `losses`.

        Gradients and losses that are computed outside of local steps (`anchored` "all", `measures`,
        exchanges of gradients) are those of the run's loss.
        """
        return type(self).losses is not LocalLoss.losses

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of each example of one client's batch `[B]`.

        It is computed under `torch.func.vmap` over clients where models are stacked: no branches on
        values, no changes in place.
        """
        return batch.loss.losses(batch.outputs, batch.y)

    def contrasts(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        """Return other models `[c, m, d]` whose representations `losses` reads; None: none."""
        return None

    def client_losses(self, loss: Loss, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return `losses` `[c, B]` of c clients, whose `Batch` fields `tensors` holds, stacked."""
        over_clients = torch.func.vmap(lambda fields: self.losses(Batch(loss, **fields)))
        stacked: Tensor = over_clients(dict(tensors))
        return stacked


@dataclass(frozen=True)
class LocalStep:
    """A step of c clients, before it is taken.

    `w` `[c, d]` are their models, `grad` `[c, d]` the gradients there of the mean loss of a batch
    each, and `anchor` `[c, d]` those of the same batches at the objective's `anchor`, where it has
    one. `state` `[c, k]` and `carried` `[c, j]` are as in `Objective`. `number` steps came before
    it, and `epoch` `[c]` epochs were over, both counted from 0; each client takes `steps` `[c]` in
    all. A step moves a model by `-lr` times its direction.
    """

    w: Tensor
    grad: Tensor
    anchor: Tensor | None
    state: Tensor | None
    carried: Tensor | None
    number: int
    epoch: Tensor
    steps: Tensor
    lr: float


class Correction(Part):
    """How a client descends: where it begins, what it carries from step to step, its directions.

    c clients at once: w `[c, d]` are their models, `state` `[c, k]` what each keeps from round to
    round, `carried` `[c, j]` what each has from step to step of one round; or None.
    """

    anchored: ClassVar[Anchor] = ""
    """Which second gradient a client computes: of all its examples at its `origin` ("all"), which
    is then its `state`, so not with `keeps`; of each step's batch at its `anchor` ("batch"); or
    none.
    """

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        """Return where clients begin `[c, d]`, or `[d]` where all do alike: the broadcast model.

        `measured` `[c, b]` are their losses, where the objective `measures` these.
        """
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        """Return what clients carry before the first step `[c, j]`, or `[j]`; None: nothing."""
        return None

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        """Return where an `anchored` "batch" has its second gradient, `[c, d]` or `[d]`."""
        return broadcast["params"]

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        """Return the direction `[c, d]` of a step, and what is carried after it, not in place.

        A coordinate whose direction is 0 stays: so a part of a model is trained alone, for as many
        epochs as `step.epoch` says. Clients whose batch is empty neither move nor change what they
        carry, whatever is returned for them.
        """
        state = step.state if step.anchor is None else step.anchor
        return self.direction(step.grad, step.w, broadcast, state), step.carried

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        """Return the corrected gradient `[c, d]` to descend along: the short form of `along`.

        Under `anchored` "batch", `state` is the gradient at the anchor.
        """
        return grad
