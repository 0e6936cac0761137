"""The plan of a run: its event, its noise, and the cost of all rounds.

`check`, `train`, ledger and `calibrate` use this plan. Configurations without a proof are refused.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import Guarantee, guarantee, refuse_unaccountable, unbounded
from accounting.ledger import BudgetChange
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import Unprotected
from privfed.client.compression.compressed import ShapesByName
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.plan.assumed import Assumed
from privfed.plan.composed_guarantees import examples_guarantee, other_guarantee
from privfed.plan.evaluation_cost import EvaluationCost, as_evaluation, evaluation_cost
from privfed.plan.prior_spending import NOTHING, Priors
from privfed.plan.refusals import refusals
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.plan.rule import weighs_by_examples
from privfed.plan.solved_parts import solved_noise, spending_of, training_rounds, with_solved_parts
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.shared_noise import OTHER_PARTY, shares_noise
from privfed.round.algorithm import Algorithm
from privfed.sampling.cohort import draws_of
from privfed.sampling.site_delays import SiteDelays
from privfed.secure.aborts import refuse_aborts, refuse_sites_that_stop
from privfed.secure.encoded_sum import SecureProtocol

_UNCOVERED = "measures that epsilon does not cover were written"
ON_TRAINED = "simulation: scored on examples of clients that train"
"""The note of a run whose data.holdout is "examples"."""


@dataclass(frozen=True)
class Plan:
    """A configuration whose noise was solved for, with its cost over all rounds.

    `cost`, `mechanism`, `event` (the charge of a round) and `noise_multiplier` are of training
    rounds. `guarantee` holds over all rounds and over the earlier runs in `before`.
    """

    config: Config
    cost: RoundCost
    mechanism: Mechanism
    event: Event
    guarantee: Guarantee
    noise_multiplier: float | None
    by_examples: bool
    other: Event | None = None
    """Charge of a round against the party other than `privacy.against`; None if there is none."""
    evaluation: Plan | None = None
    """The plan of the rounds in which clients evaluate; None if clients do not evaluate."""
    evaluation_cost: EvaluationCost | None = None
    """The cost of evaluation rounds as a function of the noise of training."""
    before: Priors = field(default_factory=Priors, hash=False)
    budgets: tuple[BudgetChange, ...] = ()
    """The changes of the budget since the run began."""

    @property
    def budget(self) -> float | None:
        """The epsilon that the run must not exceed; None if there is no noise or no budget."""
        return self.config.privacy.epsilon if self.mechanism.private else None

    def algorithm(self, evaluates: bool = False, shapes: ShapesByName | None = None) -> Algorithm:
        """Returns the algorithm of this plan's rounds, in which clients evaluate if `evaluates`."""
        config = self.config
        return Algorithm(
            objective=config.messages(shapes),
            server=config.optimizer,
            rule=self.cost.rule,
            mechanism=self.mechanism,
            sampler=config.sampler,
            summation=self.cost.summation,
            clients=config.data.clients,
            byzantine=config.aggregation.byzantine,
            schedule=config.server_schedule,
            client_schedule=config.client_schedule,
            dropout=config.cohort.dropout,
            aborts=self.cost.revealing_aborts,
            evaluates=evaluates,
            evaluation_rounds=config.evaluation_rounds,
            sites=self.cost.limits.sites,
            sites_per_client=config.data.sites_per_client,
            canaries=config.audit.canaries,
            site_delays=SiteDelays(tuple(config.data.site_delays)),
        )

    @property
    def training_rounds(self) -> int:
        """The number of rounds that train."""
        return training_rounds(self.config)

    def spending(self, rounds: int) -> Spending:
        """Returns the charges of the first `rounds` rounds, training and evaluation alike."""
        return self._charged(rounds, self.event, self.evaluation.event if self.evaluation else None)

    @property
    def spent(self) -> Spending:
        """The charges of all rounds; for a candidate of private tuning, only the choice's own."""
        return spending_of(self.config, self.spending(self.config.run.rounds))

    def spending_of_any(self, rounds: int) -> Spending:
        """Returns charges that bound those of any `rounds` rounds chosen from the run's rounds."""
        most = self.spending(self.config.run.rounds)
        return {event: min(rounds, count) for event, count in most.items()}

    def _charged(self, rounds: int, training: Event, evaluating: Event | None) -> Spending:
        """Returns the counts of training and of evaluation events in the first `rounds` rounds."""
        count = self.config.evaluation_rounds.among(rounds)
        charged = Counter({training: rounds - count})
        return charged + Counter({evaluating: count}) if evaluating else charged

    def event_in(self, round: int) -> Event:
        """Returns the charge of `round`."""
        return self._of_kind(round).event

    def other_in(self, round: int) -> Event | None:
        """Returns the charge of `round` against the other party; None without such a guarantee."""
        return self._of_kind(round).other

    def _of_kind(self, round: int) -> Plan:
        """Returns the plan for the kind of `round`: training, or evaluation."""
        if self.evaluation and round in self.config.evaluation_rounds:
            return self.evaluation
        return self

    def examples(self, rounds: int) -> Guarantee | None:
        """Returns the guarantee of `rounds` rounds for a silo's example; None without DP-SGD."""
        dp = self.config.example_privacy
        if dp is None:
            return None
        spending, before = {dp.event(self.config.client.epochs): rounds}, self.before
        return examples_guarantee(spending, before.runs, dp.delta, before.uncovered)

    def other_party(self, rounds: int) -> Guarantee | None:
        """Returns the guarantee of `rounds` rounds against the other party; None if none exists."""
        if self.other is None:
            return None
        against, delta = OTHER_PARTY[self.config.against], self.config.privacy.delta
        evaluating = self.evaluation.other if self.evaluation else None
        spending = self._charged(rounds, self.other, evaluating)
        before, clients = self.before, self.config.data.clients
        return other_guarantee(spending, against, before.runs, delta, before.uncovered, clients)

    def further_guarantees(self, rounds: int) -> tuple[Guarantee | None, Guarantee | None]:
        """Returns the results of `examples` and `other_party`, which the budget does not limit."""
        return self.examples(rounds), self.other_party(rounds)

    @property
    def assumed(self) -> Assumed:
        """The adversary that the guarantee holds against, as the ledger states it."""
        costs = [each.cost for each in (self, self.evaluation) if each is not None]
        return Assumed.of(self.config, [(cost.limits, cost.revealing_aborts) for cost in costs])

    @property
    def void(self) -> str | None:
        """The reason why charges give no guarantee (rules of proof, section 7); None otherwise."""
        return "void (the attacker read raw updates)" if self.config.attackers_see_rows else None

    @property
    def simulation(self) -> str | None:
        """The reason why this run is a simulation, so epsilon is nominal; None for a real run."""
        attack, name = self.config.attackers, self.config.names["attack"]
        if not self.config.has_attackers:
            return self._simulated
        also = (self._simulated or "").removeprefix("simulation: ")
        how = name if self.config.attack.acts else "by false reports"
        attacked = f"simulation: {attack.fraction:.0%} of the clients attack ({how})"
        return f"{attacked}; {also}" if also else attacked

    @property
    def _simulated(self) -> str | None:
        """The reason other than attackers why this run is a simulation; None if there is none."""
        config, run = self.config, self.config.run
        measured = run.simulation_metrics or run.client_measures
        if run.randomness == "seeded":
            seeded = f"simulation: noise and cohorts follow from the seed {run.seed}"
            return f"{seeded}; {_UNCOVERED}" if measured else seeded
        if measured:
            return f"simulation: {_UNCOVERED}"
        if self.config.secure.simulate == "arithmetic":
            return "simulation: no cryptography ran in the secure sums"
        if self.config.source.holds_real_clients and not self.config.real_clients:
            return "simulation: examples of real clients were partitioned among synthetic ones"
        known = config.site_column or config.at_remote_sites
        if config.by_sites and config.source.holds_real_clients and not known:
            return "simulation: real clients were assigned to synthetic sites"
        return ON_TRAINED if config.data.holdout == "examples" else None


def refuse(config: Config) -> None:
    """Raises `Refused`, with all reasons, if rounds have no privacy proof or are impossible."""
    reasons = list(refusals(config))
    if not reasons and config.evaluation_rounds.every:
        reasons = [f"rounds that evaluate: {reason}" for reason in refusals(as_evaluation(config))]
    if reasons:
        raise Refused("\n".join(reasons))


def plan(config: Config, before: Priors = NOTHING, length: int = 0, measures: int = 0) -> Plan:
    """Returns the plan of a run, as `solve_plan`, after the checks of `refuse`; both may refuse."""
    refuse(config)
    return solve_plan(config, before, length, measures)


def solve_plan(
    config: Config, before: Priors = NOTHING, length: int = 0, measures: int = 0
) -> Plan:
    """Returns the plan of a configuration that `refuse` accepted, with the noise solved for.

    Args:
      config: the run.
      before: the earlier runs, whose spending counts.
      length: number of entries of a client's message; distributed noise needs it.
      measures: number of entries of a client's row of metrics; distributed noise needs it.

    Raises:
      Refused: if no noise is within the budget, or aborts of secure sums would be too frequent.
    """
    config = with_solved_parts(config, before.spending)
    cost, privacy = round_cost(config, length), config.privacy
    evaluations = evaluation_cost(config, measures)
    with _accounted(cost):
        noise = _noise(config, cost, evaluations, before.spending)
        planned = _of_cost(config, cost, noise, before)
        if evaluations:
            evaluating = _of_cost(
                evaluations.config, evaluations.cost, evaluations.noise(noise), before
            )
            solved = replace(planned.config, evaluation_admitted=evaluations.cost.limits.admitted)
            planned = replace(
                planned, config=solved, evaluation=evaluating, evaluation_cost=evaluations
            )
        spending = Counter(before.spending) + Counter(planned.spent)
        promised = guarantee(spending, privacy.delta, privacy.accountant)
        if not _resumes_budgeted_run(config):
            _refuse_nothing_left(spending, promised, privacy.accountant)
    return replace(
        planned,
        guarantee=replace(
            promised,
            uncovered=before.uncovered,
            against=config.against,
            clients=config.data.clients,
        ),
    )


def _of_cost(config: Config, cost: RoundCost, noise: float | None, before: Priors) -> Plan:
    """Returns the plan of rounds with noise multiplier `noise`; its guarantee is a placeholder."""
    mechanism, event = cost.mechanism.at(noise), cost.event(noise)
    _refuse_unsound(config, mechanism, event)
    refuse_unaccountable(event, config.privacy.accountant)
    return Plan(
        config=replace(config, noise_multiplier=noise, admitted=cost.limits.admitted),
        cost=cost,
        mechanism=mechanism,
        event=event,
        guarantee=unbounded({event: 1}, config.privacy.delta, "these rounds are part of a run"),
        noise_multiplier=noise,
        by_examples=weighs_by_examples(config, cost.rule),
        other=cost.other(noise),
        before=before,
    )


def _resumes_budgeted_run(config: Config) -> bool:
    """Whether the run has a budget and was planned before, so that its noise is already solved."""
    return config.noise_multiplier is not None and config.privacy.epsilon is not None


def _noise(
    config: Config, cost: RoundCost, evaluations: EvaluationCost | None, earlier: Spending
) -> float | None:
    """Returns the noise multiplier: configured, else first planned, else solved; None for none."""
    privacy, rounds = config.privacy, config.run.rounds
    if not _resumes_budgeted_run(config):
        if cost.limits.sites:
            refuse_sites_that_stop(cost.aborts)
        else:
            drawn = f"{config.sampler.size} expected among {config.data.clients} clients"
            slack = cost.event(1.0).slack * rounds
            refuse_aborts(cost.aborts, cost.partial, slack, privacy.delta, drawn)
    if not cost.mechanism.private:
        return None
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if config.noise_multiplier is not None or privacy.epsilon is None:
        return config.noise_multiplier
    return solved_noise(config, cost, evaluations, earlier)


@contextlib.contextmanager
def _accounted(cost: RoundCost) -> Iterator[None]:
    """Returns a context manager that re-raises `AccountingError` as `Refused`."""
    try:
        yield
    except AccountingError as error:
        coarse = shares_noise(cost.mechanism)
        hint = "; or raise secure.bits, since rounding lengthens rows" if coarse else ""
        raise Refused(f"privacy: {error}{hint}") from error


def _refuse_unsound(config: Config, mechanism: Mechanism, event: Event) -> None:
    """Raises `Refused` if noise cannot be added, or a mechanism without it claims protection."""
    if mechanism.private:
        mechanism.noise_on_update(config.sampler.size)  # raises if it cannot be added
    elif not isinstance(event.release, Unprotected):
        raise Refused(
            f"privacy.mechanism is {config.names['mechanism']!r}, which declares private = False, "
            "but its event is not Unprotected; declare private = True, or return Unprotected"
        )
    if config.row_hiding and mechanism.trust == "client":
        _refuse_range(config.row_hiding, mechanism)


def _refuse_range(protocol: SecureProtocol, mechanism: Mechanism) -> None:
    """Raises `Refused` if a client's noise would exceed the range of a secure sum."""
    std = mechanism.noise_on_update(1) * mechanism.clip
    if std and mechanism.clip + 40 * std > protocol.range:
        raise Refused(
            f"secure.range is {protocol.range:g}, but each client adds noise with a standard "
            f"deviation of {std:g}; expected at least clip + 40 standard deviations: raise "
            "secure.range and secure.bits, or lower privacy.clip"
        )


def _refuse_nothing_left(total: Spending, spent: Guarantee, accountant: str) -> None:
    """Raises `Refused` if epsilon is infinite only because aborts or inexact noise use up delta."""
    if spent.epsilon < math.inf or not any(event.slack for event in total):
        return
    without = Counter({replace(event, slack=0.0): count for event, count in total.items()})
    if guarantee(without, spent.delta, accountant).epsilon < math.inf:
        raise Refused(
            f"privacy.delta is {spent.delta:g}, but visible aborts of secure sums, or the inexact "
            "sampling of noise, use it up, so no finite epsilon was found; raise the noise or "
            "cohort.size, lower secure.admitted, secure.threshold, secure.minimum or "
            f"cohort.dropout, or use cohort.sampler = {draws_of(Gaussian, Separated)}"
        )
