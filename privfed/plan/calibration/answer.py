"""An answer of `privfed calibrate`: a question with nothing missing, and what it guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting.guarantee import Guarantee
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.round_cost import RoundCost
from privfed.privacy.shared_noise import shares_noise


@dataclass(frozen=True)
class CalibrationAnswer:
    """The `question`, with a number for what was `solved`; `bound` is over all of its rounds."""

    question: CalibrationQuestion
    solved: str
    bound: Guarantee
    cost: RoundCost

    def to_json(self) -> Mapping[str, Any]:
        """What `privfed calibrate --json` prints."""
        question, witness = self.question, self.cost.witness
        return {
            "epsilon": self.bound.epsilon,
            "accountants": self.bound.by_accountant,
            "accountant": question.accountant,
            "noise_multiplier": question.noise_multiplier,
            "sampling_rate": witness.rate,
            "rounds": question.rounds,
            "delta": question.delta,
            "relation": self.bound.relation,
            "sampler": question.sampler,
            "unit": self.bound.unit,
            "mechanism": question.mechanism,
            "population": question.population,
            "cohort": question.cohort,
            "separation": witness.separation,
            "solved": self.solved,
            **self.sum_json(),
        }

    def sum_json(self) -> Mapping[str, Any]:
        """How likely a secure sum aborts; of shared noise, its grid and a client's part too."""
        question = self.question
        if not question.secured:
            return {}
        facts = {"aborts": self.cost.aborts, "admitted": self.cost.limits.admitted}
        mechanism = self.cost.mechanism.at(question.noise_multiplier)
        if not shares_noise(mechanism):
            return facts
        grid = mechanism.grid()
        return {
            **facts,
            "honest": mechanism.honest,
            "step": grid.step,
            "share_deviation": grid.share * grid.step,
            "encoded": grid.l2 * grid.step / mechanism.clip,
            "wraps": grid.wraps,
            "bytes_per_client": grid.length * (question.bits or 0) / 8,
            "clip": mechanism.clip,
        }
