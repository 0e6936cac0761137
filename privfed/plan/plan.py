"""What a configuration means before it runs: its event, its noise, and what all rounds will cost.

`train`'s header, the ledger's terms and `calibrate` all come from here, so they cannot disagree.
What has no proof is refused here, before any client trains, with what would work.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import Guarantee, guarantee, refuse_unaccountable
from accounting.ledger import BudgetChange
from accounting.releases import Unprotected
from defenses.types import SumRule
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.local.byzantine import voids
from privfed.plan.prior_spending import NOTHING, Priors, examples_guarantee, other_guarantee
from privfed.plan.refusals import refusals
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.plan.rule import rule_of
from privfed.privacy.mechanism import OTHER, Mechanism
from privfed.secure.aborts import refuse_aborts


@dataclass(frozen=True)
class Plan:
    """A configuration with its noise solved for, and its cost over all rounds.

    `guarantee` covers what counts `before` it too: earlier runs over the same population.
    """

    config: Config
    cost: RoundCost
    mechanism: Mechanism
    event: Event
    guarantee: Guarantee
    noise_multiplier: float | None
    by_examples: bool
    other: Event | None = None
    """Distributed noise has two guarantees: the event of the one that the budget does not gate."""
    before: Priors = field(default_factory=Priors, hash=False)
    budgets: tuple[BudgetChange, ...] = ()
    """How the budget changed since the run began."""

    @property
    def budget(self) -> float | None:
        """The epsilon that the gate holds, None where noise was fixed instead or there is none."""
        return self.config.privacy.epsilon if self.mechanism.private else None

    def examples(self, rounds: int) -> Guarantee | None:
        """For one example of a silo that took part in all of `rounds`; None without DP-SGD."""
        dp = self.config.parts["client_mechanism"]
        if not dp.private:
            return None
        own, before = {dp.event(self.config.client.epochs): rounds}, self.before
        return examples_guarantee(own, before.runs, dp.delta, before.uncovered)

    def besides(self, rounds: int) -> Guarantee | None:
        """The guarantee that the budget does not gate, over earlier runs too; None with one."""
        if self.other is None:
            return None
        against, delta = OTHER[self.config.privacy.against], self.config.privacy.delta
        own, before = {self.other: rounds}, self.before
        return other_guarantee(own, against, before.runs, delta, before.uncovered)

    def also(self, rounds: int) -> tuple[Guarantee | None, Guarantee | None]:
        """All that is guaranteed beside the headline."""
        return self.examples(rounds), self.besides(rounds)

    @property
    def void(self) -> str | None:
        """Why nothing is guaranteed, whatever was charged (PRIVACY, section 7)."""
        return "void (the attacker read raw updates)" if voids(self.config) else None

    @property
    def simulation(self) -> str | None:
        """Why this run's epsilon is nominal: it is a simulation, and must say so everywhere."""
        attack, name = self.config.attack, self.config.names["attack"]
        if not self.config.attacked:
            return self._simulated
        also = (self._simulated or "").removeprefix("simulation: ")
        attacked = f"simulation: {attack.fraction:.0%} of the clients attack ({name})"
        return f"{attacked}; {also}" if also else attacked

    @property
    def _simulated(self) -> str | None:
        """Beside attackers."""
        run = self.config.run
        if run.randomness == "seeded":
            return f"simulation: noise and cohorts follow from the seed {run.seed}"
        if run.simulation_metrics or run.client_measures:
            return "simulation: measures that epsilon does not cover were written"
        if self.config.secure.simulate == "arithmetic":
            return "simulation: no cryptography ran in the secure sums"
        if self.config.parts["source"].found and not self.config.real_clients:
            return "simulation: examples of real clients were dealt to made-up ones"
        if self.config.data.holdout == "examples":
            return "simulation: scored on examples of clients that train"
        return None


def plan(config: Config, before: Priors = NOTHING, length: int | None = None) -> Plan:
    """Solve for the noise and refuse what has no proof. Raises `Refused`, with every reason.

    What the runs `before` this one spent counts. Distributed noise depends on the `length` of a
    message: without it, the model is built for it.
    """
    if reasons := list(refusals(config)):
        raise Refused("\n".join(reasons))
    earlier = before.spending
    privacy, rounds = config.privacy, config.run.rounds
    cost = round_cost(config, length)
    # A run that goes on stops at its budget, however many rounds are asked for.
    gated = config.noise_multiplier is not None and privacy.epsilon is not None
    noise: float | None = None
    try:
        if not gated:
            refuse_aborts(cost.aborts, cost.event(1.0).slack * rounds, privacy.delta)
        if cost.mechanism.private:
            noise = privacy.noise_multiplier
            if noise is None:
                noise = config.noise_multiplier
            if noise is None and privacy.epsilon is not None:
                noise = cost.solve(
                    rounds, privacy.epsilon, privacy.delta, privacy.accountant, earlier
                )
        mechanism = cost.mechanism.at(noise)
        if mechanism.private:
            mechanism.noise_on_update(config.parts["sampler"].size)  # refuses a split in vain
        _refuse_range(config, mechanism)
        event = cost.event(noise)
        if not mechanism.private and not isinstance(event.release, Unprotected):
            raise Refused(
                f"privacy.mechanism = {config.names['mechanism']!r} declares that it is not "
                "private, and its event promises something; declare private = True, or release "
                "Unprotected"
            )
        refuse_unaccountable(event, privacy.accountant)
        total = Counter(earlier) + Counter({event: rounds})
        spent = guarantee(total, privacy.delta, privacy.accountant)
        if not gated:
            _refuse_nothing_left(total, spent, privacy.accountant)
        spent = replace(spent, uncovered=before.uncovered)
        if mechanism.trust == "sum":
            spent = replace(spent, against=privacy.against)
    except AccountingError as error:
        coarse = cost.mechanism.trust == "sum"
        hint = "; or raise secure.bits, as rounding alone makes rows longer" if coarse else ""
        raise Refused(f"privacy: {error}{hint}") from error
    rule, weights = rule_of(config), config.aggregation.weights
    alike = mechanism.private or config.parts["objective"].keeps > 0
    alike = alike or config.parts["client_mechanism"].private
    alike = alike or rule.robust or not isinstance(rule, SumRule)
    by_examples = not alike and weights != "uniform" and not config.aggregation.silo_weights
    resolved = replace(config, noise_multiplier=noise, admitted=cost.limits.admitted)
    return Plan(
        resolved,
        cost,
        mechanism,
        event,
        spent,
        noise,
        by_examples,
        cost.other(noise),
        before,
    )


def _refuse_range(config: Config, mechanism: Any) -> None:
    """Where clients' own noise would leave the range of a secure sum."""
    protocol = config.parts["protocol"]
    if not config.secured or mechanism.trust != "client" or not mechanism.noise_multiplier:
        return
    noise = mechanism.noise_multiplier
    if mechanism.clip * (1 + 40 * noise) > protocol.range:
        raise Refused(
            f"secure.range is {protocol.range:g}, but clients' own noise has a deviation of "
            f"{noise * mechanism.clip:g}; expected at least 40 times that: raise secure.range and "
            "secure.bits, or lower privacy.clip"
        )


def _refuse_nothing_left(total: Spending, spent: Guarantee, accountant: str) -> None:
    """Where visible aborts, at the epsilon that is spent, leave nothing of delta for the noise."""
    if spent.epsilon < math.inf or not any(event.slack for event in total):
        return
    without = Counter({replace(event, slack=0.0): count for event, count in total.items()})
    if guarantee(without, spent.delta, accountant).epsilon < math.inf:
        raise Refused(
            "visible aborts of secure sums, or the sampler of noise, leave nothing of "
            "privacy.delta at this much epsilon: raise the noise or cohort.size, lower "
            "secure.admitted, secure.threshold, secure.minimum or cohort.dropout, or use "
            'cohort.sampler = "full" or "cyclic"'
        )
