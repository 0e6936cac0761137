"""FedRS: a restricted softmax for classes that a client lacks (Li & Zhan 2021, "FedRS: federated
learning with restricted softmax for label distribution non-IID data", section 4.2).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.client.descent import Batch
from privfed.client.objective import Objective
from privfed.core.deferred import Tensor, torch


class FedRs(Objective):
    """FedRS: the softmax cross-entropy of logits, those of classes without examples times alpha.

    What pushes the weights of a lacking class away is scaled down with its logit. A client sends d
    numbers and is sent d. Its counts enter its own gradient alone, so a round is charged as
    FedAvg's.
    """

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(0.5, ge=0, le=1)
    """The factor of logits of lacking classes; 1 is FedAvg."""

    def losses(self, batch: Batch) -> Tensor:
        if batch.counts is None:
            raise ValueError("FedRS needs labels that are classes")
        factors = torch.where(batch.counts > 0, 1.0, self.alpha)
        return batch.loss.losses(batch.outputs * factors, batch.y)
