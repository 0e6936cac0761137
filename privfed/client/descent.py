"""The loss that a client minimises in its local steps, and the direction of each step."""

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
      y: The labels `[B, *positions]` or `[B, width]`; a position without a label has
        `NO_LABEL`, -1. Stacked batches may end in repeated examples of the same batch, whose losses
        have weight zero.
      counts: The number of the client's examples in each class `[classes]`; None if labels are not
        classes.
      features: The representations `[B, h]`: the inputs of the model's last layer with parameters,
        flattened; None unless `LocalLoss.reads_features`.
      others: The representations `[m, B, h]` of the same examples under the m models that
        `LocalLoss.contrasts` returns, without gradients; None if it returns none.
    """

    loss: Loss
    outputs: Tensor
    y: Tensor
    counts: Tensor | None = None
    features: Tensor | None = None
    others: Tensor | None = None


class LocalLoss(Part):
    """The loss that a client minimises: the mean of `losses` over its examples.

    The default is the run's loss. A client's loss is a function of released values, its own
    examples and its own state, so it costs no privacy beyond the message, which is clipped.
    """

    reads_features: ClassVar[bool] = False
    """Whether `losses` reads representations (`Batch.features`)."""
    needs_classes: ClassVar[bool] = False
    """Whether `losses` reads outputs as class logits; any other `model.loss` is then refused."""

    @property
    def changes_loss(self) -> bool:
        """Whether the loss of local steps differs from the run's loss.

        True if `losses` is overridden, which then yields the gradients of local steps. Outside of
        local steps (`anchored` "all", `measures`, exchanges with the task "gradient"), gradients
        and losses are those of the run's loss.
        """
        return type(self).losses is not LocalLoss.losses

    def losses(self, batch: Batch) -> Tensor:
        """Returns the losses `[B]` of the examples of one client's batch.

        If models are stacked, it is computed under `torch.func.vmap` over clients: no branches on
        values, no in-place changes.
        """
        return batch.loss.losses(batch.outputs, batch.y)

    def contrasts(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        """Returns m other models of each client, `[c, m, d]`, for `Batch.others`; None for none."""
        return None

    def client_losses(self, loss: Loss, tensors: Mapping[str, Tensor]) -> Tensor:
        """Returns the losses `[c, B]` of c clients' batches.

        Args:
          loss: the loss of the run.
          tensors: the other fields of `Batch` by name, each stacked over clients in dimension 0.
        """
        over_clients = torch.func.vmap(lambda fields: self.losses(Batch(loss, **fields)))
        stacked: Tensor = over_clients(dict(tensors))
        return stacked


@dataclass(frozen=True)
class LocalStep:
    """The inputs of the next local step of c clients.

    A step moves a model by `-lr` times its direction.

    Attributes:
      w: Models, shape `[c, d]`.
      grad: Gradients of the mean loss of each client's batch at `w`, shape `[c, d]`.
      anchor: Gradients of the same batches at the objective's `anchor`, shape `[c, d]`; None
        unless `anchored` is "batch".
      state: Client states, shape `[c, k]`, as in `Objective`; if `anchored` is "all", gradients of
        all examples at the initial models instead, shape `[c, d]`.
      carried: Vectors carried between steps, shape `[c, j]`, as in `Objective`.
      number: Number of earlier steps of the round.
      epoch: Number of completed epochs, shape `[c]`.
      steps: Total steps of each client in the round, shape `[c]`.
      lr: Learning rate.
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
    """A client's local steps: their origin, the vectors carried between them, and their directions.

    Hooks process c clients at once. Their arguments are `broadcast`, released values by name; w
    `[c, d]`, the models; `state` `[c, k]`, the values that clients keep between rounds, or None;
    and `carried` `[c, j]`, the vectors that they keep between the steps of one round, or None.
    """

    anchored: ClassVar[Anchor] = ""
    """The second gradient that a client computes. "all": the gradient of all its examples at its
    `origin`, passed as `state`, in place of a state that the client keeps. "batch": the gradient of
    each step's batch at the client's `anchor`. "": none.
    """
    _called_if: ClassVar[Mapping[str, str]] = {"anchor": "anchored"}

    def origin(self, broadcast: Broadcast, state: Tensor | None, measured: Tensor | None) -> Tensor:
        """Returns the initial models `[c, d]`, or `[d]` if all clients share one.

        The default is the broadcast model. `measured` `[c, b]` are the clients' mean losses at the
        b broadcast models; None unless `measures` is "loss".
        """
        return broadcast["params"]

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor | None:
        """Returns the initial carried vectors, `[c, j]`, or `[j]` for all; None to carry none."""
        return None

    def anchor(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, carried: Tensor | None
    ) -> Tensor:
        """Returns the models at which the second gradients of batches are computed.

        The shape is [c, d], or [d] if all clients share one. Used only if `anchored` is "batch".
        """
        return broadcast["params"]

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        """Returns the direction `[c, d]` of a step, and the new carried vectors as new tensors.

        A direction of 0 leaves a parameter unchanged: an objective may so train a part of the
        model, or train it only in some epochs (`step.epoch`). Values returned for clients with an
        empty batch are ignored.

        Args:
          step: the inputs of the step.
          broadcast: released values by name.
        """
        state = step.state if step.anchor is None else step.anchor
        return self.direction(step.grad, step.w, broadcast, state), step.carried

    def direction(
        self, grad: Tensor, w: Tensor, broadcast: Broadcast, state: Tensor | None
    ) -> Tensor:
        """Returns the corrected gradient `[c, d]`, which is the direction of the default `along`.

        With `anchored` "batch", `state` is the batch's gradient at the anchor; with "all", the
        gradient of all examples at the origin.

        Args:
          grad: gradients of each client's batch, shape [c, d].
          w: models, shape [c, d].
          broadcast: released values by name.
          state: client states, shape [c, k], or the second gradient, shape [c, d]; or None.
        """
        return grad
