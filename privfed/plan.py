"""What a configuration means before it runs: its event, its noise, and what all rounds will cost.

`train`'s header, the ledger's terms and `calibrate` all come from here, so they cannot disagree.
What has no proof is refused here, before any client trains, with what would work.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.calibration import noise_multiplier
from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import Guarantee, guarantee, refuse_unaccountable
from accounting.ledger import BudgetChange
from defenses.types import SumRule
from privfed.aggregation import rule_of
from privfed.attackers import voids
from privfed.cohort import Witness
from privfed.config import Config
from privfed.counted import Priors, other_guarantee
from privfed.errors import Refused
from privfed.privacy.mechanism import OTHER, Mechanism, Setting
from privfed.refusals import limits, refusals
from privfed.round import exchanges
from privfed.secure.aborts import charged, probability, refuse_aborts, with_aborts
from privfed.secure.plain import PlainSum
from privfed.secure.summation import Summation
from privfed.size import message_length


@dataclass(frozen=True)
class Plan:
    """A configuration with its noise solved for, and its cost over all rounds.

    `guarantee` covers `prior` too: what earlier runs over the same population spent.
    """

    config: Config
    mechanism: Mechanism
    event: Event
    guarantee: Guarantee
    noise_multiplier: float | None
    by_examples: bool
    prior: Spending = field(default_factory=dict, hash=False)
    prior_examples: Spending = field(default_factory=dict, hash=False)
    summation: Summation = field(default_factory=PlainSum)
    aborts: float = 0.0
    """At least the probability that a round's secure sums abort."""
    other: Event | None = None
    """Distributed noise has two guarantees: the event of the one that the budget does not gate."""
    before: Priors = field(default_factory=Priors, hash=False)
    """What counts before this run."""
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
        own = Counter({dp.event(self.config.client.epochs): rounds})
        bound = guarantee(Counter(self.prior_examples) + own, dp.delta)
        return replace(bound, uncovered=self.before.uncovered)

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
        if self.config.names["partition"] != "natural" and self.config.parts["source"].found:
            return "simulation: examples of real clients were dealt to made-up ones"
        if self.config.data.holdout == "examples":
            return "simulation: scored on examples of clients that train"
        return None


def plan(
    config: Config,
    prior: Spending | None = None,
    prior_examples: Spending | None = None,
    length: int | None = None,
    before: Priors | None = None,
) -> Plan:
    """Solve for the noise and refuse what has no proof. Raises `Refused`, with every reason.

    `prior` and `prior_examples` are by default what the runs `before` this one spent.

    Distributed noise depends on the `length` of a message: without it, the model is built for it.
    """
    mechanism, sampler = config.parts["mechanism"], config.parts["sampler"]
    if reasons := list(refusals(config)):
        raise Refused("\n".join(reasons))
    counted = before or Priors()
    earlier = dict(prior or counted.spending)
    rule = rule_of(config)
    releases = exchanges(config.parts["objective"], rule)
    if mechanism.private:
        mechanism = mechanism.resolved(_setting(config, length))
    witness = sampler.witness(0, config.data.clients)
    summation = config.parts["protocol"].over(limits(config))
    aborts = probability(summation, sampler, config.data.clients, releases, config.dropout)
    privacy, rounds = config.privacy, config.run.rounds
    noise: float | None = None
    try:
        bare = charged(at_noise(mechanism, 1.0), witness, releases, aborts)
        refuse_aborts(aborts, bare.slack * rounds, privacy.delta)
        if mechanism.private:
            noise = privacy.noise_multiplier
            if noise is None:
                noise = config.noise_multiplier
            if noise is None and privacy.epsilon is not None:
                noise = solve(
                    mechanism,
                    witness,
                    releases,
                    rounds,
                    privacy.epsilon,
                    privacy.delta,
                    privacy.accountant,
                    earlier,
                    aborts,
                )
            mechanism = at_noise(mechanism, noise)
            mechanism.noise_on_update(sampler.size)  # refuses a split that leaves nothing
        _refuse_range(config, mechanism)
        event = charged(mechanism, witness, releases, aborts)
        refuse_unaccountable(event, privacy.accountant)
        total = Counter(earlier) + Counter({event: rounds})
        spent = guarantee(total, privacy.delta, privacy.accountant)
        _refuse_nothing_left(total, spent, privacy.accountant)
        spent = replace(spent, uncovered=counted.uncovered)
        if mechanism.trust == "sum":
            spent = replace(spent, against=privacy.against)
    except AccountingError as error:
        coarse = mechanism.trust == "sum"
        hint = "; or raise secure.bits, as rounding alone makes rows longer" if coarse else ""
        raise Refused(f"privacy: {error}{hint}") from error
    weights = config.aggregation.weights
    alike = mechanism.private or config.parts["objective"].keeps > 0
    alike = alike or config.parts["client_mechanism"].private
    alike = alike or rule.robust or not isinstance(rule, SumRule)
    by_examples = not alike and weights != "uniform" and not config.aggregation.silo_weights
    resolved = replace(config, noise_multiplier=noise)
    return Plan(
        resolved,
        mechanism,
        event,
        spent,
        noise,
        by_examples,
        earlier,
        dict(prior_examples or counted.examples),
        summation,
        aborts,
        _other(mechanism, witness, releases, aborts),
        counted,
    )


def _refuse_range(config: Config, mechanism: Any) -> None:
    """Where clients' own noise would leave the range of a secure sum."""
    protocol, noise = config.parts["protocol"], getattr(mechanism, "noise_multiplier", None)
    if config.names["protocol"] == "none" or mechanism.trust != "client" or not noise:
        return
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
            "secure.threshold, secure.minimum or cohort.dropout, or use cohort.sampler = "
            '"full" or "cyclic"'
        )


def _other(mechanism: Any, witness: Witness, releases: int, aborts: float) -> Event | None:
    """The event of the guarantee that is not gated, for distributed noise."""
    if mechanism.trust != "sum":
        return None
    events = mechanism.events(witness, releases)
    return with_aborts(events[OTHER[mechanism.against]], aborts)


def _setting(config: Config, length: int | None) -> Setting:
    """The public constants that a mechanism may depend on."""
    protocol, bounds = config.parts["protocol"], limits(config)
    setting = Setting(
        size=config.parts["sampler"].size,
        capacity=bounds.capacity,
        minimum=bounds.minimum,
        length=length or 0,
        against=config.privacy.against,
    )
    if config.parts["mechanism"].trust != "sum":
        return setting
    setting = replace(
        setting,
        honest=protocol.honest(bounds),
        added=protocol.added(bounds),
        bits=protocol.bits,
        length=message_length(config) if length is None else length,
        fewest=protocol.fewest(bounds),
    )
    if setting.honest <= 0.0:
        raise Refused(
            f"as few as {setting.fewest} clients may make up the noise of a sum, but "
            f"{bounds.hostile} clients of a cohort may be hostile, and colluders may know "
            f"{min(protocol.colluding(bounds), 1.0):.0%} of it: all whose noise is counted might "
            "add none; lower aggregation.byzantine, attack.fraction or secure.colluders, or raise "
            "secure.minimum (or secure.threshold, of masks)"
        )
    return setting


def at_noise(mechanism: Any, noise: float | None) -> Any:
    """`mechanism` with its noise multiplier; as it is, where it has none."""
    return mechanism.at(noise)


def solve(
    mechanism: Any,
    witness: Witness,
    releases: int,
    rounds: int,
    epsilon: float,
    delta: float,
    accountant: str,
    prior: Spending | None = None,
    aborts: float = 0.0,
) -> float:
    """The noise multiplier with which `rounds` rounds of `mechanism` spend at most `epsilon`.

    Each round makes `releases` releases over its one cohort, and aborts with a probability of at
    most `aborts`; `prior` was spent before.

    An infinite epsilon needs none. Raises `AccountingError`.
    """
    if epsilon == math.inf:
        return 0.0

    def event(z: float) -> Event:
        return charged(at_noise(mechanism, z), witness, releases, aborts)

    return noise_multiplier(event, rounds, epsilon, delta, accountant, prior)
