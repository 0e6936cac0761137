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
    """FedRS: softmax cross-entropy, with the logits of classes without examples times alpha.

    The factor also scales down the gradient that pushes away the weights of a missing class. A
    client sends d numbers and is sent d. Its counts enter only its own gradient, so a round is
    charged as FedAvg's.
    """

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(0.5, ge=0, le=1)
    """Factor of the logits of missing classes; 1 is FedAvg."""

    def losses(self, batch: Batch) -> Tensor:
        if batch.counts is None:
            raise ValueError("FedRS needs labels that are classes")
        factors = torch.where(batch.counts > 0, 1.0, self.alpha)
        return batch.loss.losses(batch.outputs * factors, batch.y)


_ABSENT = 1e-8
"""Count of a class without examples at a client, as in the authors' code."""


class FedLc(Objective):
    """FedLC: the softmax cross-entropy of logits minus tau n_c^(-1/4), n_c examples of class c.

    Rare classes need a larger margin, and classes without examples nearly vanish from the softmax,
    so that local steps do not unlearn them. A client sends d numbers and is sent d. Its counts
    enter only its own gradient, so a round is charged as FedAvg's.
    """

    needs_classes: ClassVar[bool] = True

    tau: float = Field(1.0, ge=0)
    """Scale of the margins; 0 is FedAvg."""

    def losses(self, batch: Batch) -> Tensor:
        if batch.counts is None:
            raise ValueError("FedLC needs labels that are classes")
        margins = self.tau * batch.counts.clamp(min=_ABSENT).pow(-0.25)
        return batch.loss.losses(batch.outputs - margins, batch.y)
