"""An answer of `privfed calibrate`: a complete question, and its guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting.guarantee import Guarantee, large_delta
from privfed.plan.calibration.as_run import solved_config_of
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.round_cost import RoundCost
from privfed.privacy.shared_noise import shares_noise
from privfed.secure.encoded_sum import EncodedSummation


@dataclass(frozen=True)
class CalibrationAnswer:
    """A result of `privfed calibrate`: a question whose missing number is solved for.

    Attributes:
      question: the question, with the number that was solved for.
      solved: name of that number.
      bound: the guarantee over all rounds.
      cost: the cost of a round.
      other_party: the guarantee of distributed noise against the other party, which the budget does
        not limit; None if there is none.
    """

    question: CalibrationQuestion
    solved: str
    bound: Guarantee
    cost: RoundCost
    other_party: Guarantee | None = None

    @property
    def colluders(self) -> int | None:
        """Largest number of colluding clients if pairs of clients share noise; else None."""
        if not self.question.mechanism_class.joint:
            return None
        return solved_config_of(self.question).colluding

    def to_json(self) -> Mapping[str, Any]:
        """Returns the object that `privfed calibrate --json` prints."""
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
            **self._solved_for_run(),
            **self._party(),
            "solved": self.solved,
            **({"warning": self.warning} if self.warning else {}),
            **self.sum_json(),
        }

    @property
    def warning(self) -> str:
        """The warning that delta is at least 1 / population; empty if not, or without one."""
        return large_delta(self.question.delta, self.question.population or 0)

    def _party(self) -> dict[str, Any]:
        """Returns the adversary of epsilon if pairs of clients share noise; else empty."""
        count = self.colluders
        return {} if count is None else {"against": "clients", "colluders": count}

    def _solved_for_run(self) -> dict[str, Any]:
        """Returns those of the numbers of slots, groups, bands and buffers that are not None."""
        names = ("slots", "groups", "bands", "buffers")
        given = {name: getattr(self.question, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def sum_json(self) -> Mapping[str, Any]:
        """Returns the figures of sites and secure sums for JSON; empty without both.

        For a secure sum, they include the abort probability and the smallest admitted cohort; for
        distributed noise, its adversary, the second guarantee and the grid.
        """
        question = self.question
        facts = self._site_facts()
        if question.secured:
            facts |= {"aborts": self.cost.aborts, "admitted": self.cost.limits.admitted}
        mechanism = self.cost.mechanism.at(question.noise_multiplier)
        if not shares_noise(mechanism):
            return facts
        grid, party = mechanism.grid(), "site" if question.by_sites else "client"
        honest = {} if question.by_sites else {"honest": mechanism.honest}
        return {
            **facts,
            **honest,
            "against": mechanism.against,
            "other_party": self._other_party(),
            "step": grid.step,
            "share_std": grid.share * grid.step,
            "encoded": grid.l2 * grid.step / mechanism.clip,
            "wraps": grid.wraps,
            f"bytes_per_{party}": grid.length * (question.bits or 0) / 8,
            "clip": mechanism.clip,
        }

    def _site_facts(self) -> dict[str, Any]:
        """Returns the numbers of sites, survivors, colluders and counted sites, and all noise.

        Only the number of sites if sites are not the parties; empty without sites.
        """
        limits = self.cost.limits
        if not self.question.by_sites:
            return {"sites": self.question.sites} if self.question.sites else {}
        facts: dict[str, Any] = {"sites": limits.sites}
        summation = self.cost.summation
        if isinstance(summation, EncodedSummation):
            facts |= {"minimum": limits.minimum, "colluders": limits.colluders}
            facts |= {"counted": summation.protocol.site_noise(limits).counted}
        mechanism = self.cost.mechanism.at(self.question.noise_multiplier)
        if mechanism.trust != "server":
            facts["noise_of_all_sites"] = mechanism.noise_on_update(limits.sites)
        return facts

    def _other_party(self) -> Mapping[str, Any] | None:
        """Returns the adversary and the epsilon of the second guarantee; None if there is none."""
        if self.other_party is None:
            return None
        return {"against": self.other_party.against, "epsilon": self.other_party.epsilon}
