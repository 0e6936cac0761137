"""What one round of a run costs, as a function of its noise.

Planning, calibration, forecasts and views all ask here, so that they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from accounting.calibration import noise_multiplier
from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import guarantee
from defenses.mean import Mean
from defenses.types import RowRule, SumRule
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.plan.rule import rule_of
from privfed.plan.sum_limits import admitting, limits
from privfed.privacy.mechanism import Mechanism, Setting
from privfed.privacy.shared_noise import OTHER_PARTY, shares_noise
from privfed.round.algorithm import exchanges
from privfed.sampling.cohort import Witness
from privfed.secure.aborts import probability, round_event, tells_who_was_drawn, with_aborts
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Summation


@dataclass(frozen=True)
class RoundCost:
    """A mechanism that knows all of its run's constants but the noise, over a rule of drawing.

    Each round makes `exchanges` releases of what `rule` sums over its one cohort, by `summation` within `limits`, and
    aborts with a probability of at most `aborts`.
    """

    mechanism: Mechanism
    witness: Witness
    rule: SumRule | RowRule = field(default_factory=Mean)
    exchanges: int = 1
    summation: Summation = field(default_factory=PlainSum)
    limits: Limits = UNLIMITED
    aborts: float = 0.0

    def event(self, noise: float | None) -> Event:
        """What a round is charged at this noise multiplier."""
        return round_event(self.mechanism.at(noise), self.witness, self.exchanges, self.aborts)

    def other(self, noise: float | None) -> Event | None:
        """The event of the guarantee that is not gated; None where there is one guarantee only."""
        shared = self.mechanism.at(noise)
        if not shares_noise(shared):
            return None
        events = shared.events(self.witness, self.exchanges)
        return with_aborts(events[OTHER_PARTY[shared.against]], self.aborts)

    def solve(
        self,
        rounds: int,
        epsilon: float,
        delta: float,
        accountant: str,
        prior: Spending | None = None,
    ) -> float:
        """The noise multiplier with which `rounds` rounds after `prior` spend at most `epsilon`.

        An infinite epsilon needs none. Raises `AccountingError`.
        """
        if epsilon == math.inf:
            return 0.0
        return noise_multiplier(self.event, rounds, epsilon, delta, accountant, prior)


def round_cost(config: Config, length: int = 0) -> RoundCost:
    """What a round of `config` costs, with messages of `length` numbers. Raises `Refused`.

    Only noise that clients make up together depends on the length.
    """
    rule = rule_of(config)
    witness = config.sampler.witness(0, config.data.clients)
    configured = replace(limits(config), admitted=config.admitted)
    cost = _within(configured, config, rule, witness, length)
    solved = config.noise_multiplier is not None  # and so was this; a resume keeps both
    protocol = config.row_hiding
    if solved or protocol is None or not cost.aborts or not tells_who_was_drawn(cost.event(1.0)):
        return cost
    epsilon = _spent(config, cost)
    admitted = admitting(config, protocol, configured, witness, cost.exchanges, epsilon)
    return _within(admitted, config, rule, witness, length)


def _spent(config: Config, cost: RoundCost) -> float:
    """The epsilon of all rounds: the budget, or what noise that is fixed spends without aborts."""
    privacy = config.privacy
    if privacy.epsilon is not None:
        return privacy.epsilon
    event = replace(cost, aborts=0.0).event(privacy.noise_multiplier)
    try:
        return guarantee({event: config.run.rounds}, privacy.delta, privacy.accountant).epsilon
    except AccountingError:
        return math.inf


def _within(
    bounds: Limits, config: Config, rule: SumRule | RowRule, witness: Witness, length: int
) -> RoundCost:
    mechanism, sampler = config.mechanism, config.sampler
    if mechanism.private:
        mechanism = mechanism.resolved(_setting(config, bounds, length))
    releases = exchanges(config.objective, rule)
    summation = config.protocol.over(bounds)
    aborts = probability(summation, sampler, config.data.clients, releases, config.dropout)
    return RoundCost(mechanism, witness, rule, releases, summation, bounds, aborts)


def _setting(config: Config, bounds: Limits, length: int) -> Setting:
    """The public constants that a mechanism may depend on."""
    protocol = config.row_hiding
    setting = Setting(
        size=config.sampler.size,
        capacity=bounds.capacity,
        minimum=bounds.minimum,
        length=length,
        against=config.privacy.against,
    )
    if not config.shared_noise or protocol is None:
        return setting
    if not length:
        raise ValueError("shared noise depends on the length of a message, and none is given")
    setting = replace(
        setting,
        honest=protocol.honest(bounds),
        added=protocol.added(bounds),
        bits=protocol.bits,
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
