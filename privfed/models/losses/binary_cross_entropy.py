"""Binary cross-entropy of two classes, scored by the area under the ROC curve."""

from __future__ import annotations

from privfed.core.deferred import F, Tensor, torch
from privfed.core.errors import Refused
from privfed.data.federation import Examples, Meaning
from privfed.models.loss import (
    ScoredLoss,
    class_probabilities,
    log_odds,
    refuse_labels_unless,
)


class BinaryCrossEntropy(ScoredLoss):
    """One output for two classes, the log-odds of class 1; scored by the area under the ROC curve.

    Accuracy is that of predicting class 1 from a probability of one half. No constant answer has an
    area other than 0.5.
    """

    @property
    def measure(self) -> str:
        return "auc"

    def minimiser(self, y: Tensor, width: int) -> Tensor:
        return log_odds(y.double().mean(0, keepdim=True))

    def width(self, examples: Examples) -> int:
        single = examples.y.dtype == torch.int64 and examples.y.dim() == 1
        refuse_labels_unless(
            single and examples.classes == 2, "binary_cross_entropy", "two classes", examples
        )
        return 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            outputs.squeeze(-1), y.to(outputs.dtype), reduction="none"
        )

    def scores(self, outputs: Tensor, y: Tensor, meaning: Meaning) -> Tensor:
        return torch.stack([outputs.squeeze(-1).double(), y.double()], 1)

    def measures(self, scores: Tensor) -> dict[str, float]:
        from sklearn.metrics import roc_auc_score

        score, y = scores.nan_to_num().cpu().unbind(1)
        if not 0 < y.mean() < 1:
            raise Refused(
                "the area under the ROC curve needs examples of both classes to score on, and "
                "these are all of one; take a larger test set, or model.loss = 'cross_entropy'"
            )
        auc = float(roc_auc_score(y.numpy(), score.numpy()))
        return {"auc": auc, "accuracy": self.client_measure(scores)[1]}

    def client_measure(self, scores: Tensor) -> tuple[str, float]:
        """The accuracy: most clients hold one class alone, and have no area under a curve."""
        score, y = scores.nan_to_num().unbind(1)
        return "accuracy", float(((score > 0) == (y > 0.5)).double().mean())

    def expectation(self, outputs: Tensor, meaning: Meaning) -> Tensor:
        log_odds = outputs.squeeze(-1)
        return torch.stack([(-log_odds).sigmoid(), log_odds.sigmoid()], -1)

    def predict(self, outputs: Tensor, meaning: Meaning) -> dict[str, Tensor]:
        probabilities = self.expectation(outputs, meaning)
        return {
            "prediction": (probabilities[:, 1] > 0.5).long(),
            **class_probabilities(probabilities, meaning),
        }
