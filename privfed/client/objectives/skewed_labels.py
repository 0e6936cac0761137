"""Losses for skewed labels: FedLC and FedRS.

FedLC: logits calibrated by a client's label counts (Zhang, Li, Li, Xu, Wu, Ding & Wu 2022,
"Federated learning with label distribution skew via logits calibration", section 4).

FedRS: a restricted softmax for classes without examples (Li & Zhan 2021, "FedRS: federated learning
with restricted softmax for label distribution non-IID data", section 4.2).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Batch
from privfed.client.objective import Objective
from privfed.core.deferred import Tensor, torch


class FedRs(Objective):
    """FedRS: softmax cross-entropy; logits of classes without examples are multiplied by alpha.

    The factor also reduces the gradient by which a client changes the weights of classes without
    examples. A client sends d numbers and receives d. Its label counts affect only its own
    gradient, so a round is charged like FedAvg's.
    """

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(0.5, ge=0, le=1)
    """Factor of the logits of classes without examples; 1 is FedAvg."""

    def losses(self, batch: Batch) -> Tensor:
        if batch.counts is None:
            raise ValueError("FedRS needs labels that are classes; use another client.objective")
        factors = torch.where(batch.counts > 0, 1.0, self.alpha)
        return batch.loss.losses(batch.outputs * factors, batch.y)


_ABSENT = 1e-8
"""Count of a class without examples at a client, as in the authors' code."""


class FedLc(Objective):
    """FedLC: softmax cross-entropy of logits minus tau n_c^(-1/4), with n_c examples of class c.

    Rare classes get a larger margin. Classes without examples have almost no weight in the softmax,
    so local steps do not unlearn them. A client sends d numbers and receives d. Its label counts
    affect only its own gradient, so a round is charged like FedAvg's.
    """

    needs_classes: ClassVar[bool] = True

    tau: float = Field(1.0, ge=0)
    """Scale of the margins; 0 is FedAvg."""

    def losses(self, batch: Batch) -> Tensor:
        if batch.counts is None:
            raise ValueError("FedLC needs labels that are classes; use another client.objective")
        margins = self.tau * batch.counts.clamp(min=_ABSENT).pow(-0.25)
        return batch.loss.losses(batch.outputs - margins, batch.y)
