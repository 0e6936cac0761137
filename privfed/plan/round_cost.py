"""The cost of one round of a run, as a function of its noise.

Planning, calibration, forecasts and reports all use this cost, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from accounting.calibration import noise_multiplier
from accounting.errors import AccountingError
from accounting.events import Event, Spending
from accounting.guarantee import guarantee
from defenses.by_sums.mean import Mean
from defenses.types import RowRule, SumRule
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.plan.rule import rule_of
from privfed.plan.sum_limits import configured_limits, limits_of_rare_aborts
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.setting import ClientShares, CohortSize, Setting, SiteNoise
from privfed.privacy.shared_noise import OTHER_PARTY, shares_noise
from privfed.round.algorithm import releases_per_round
from privfed.sampling.cohort import Witness, over_larger_population, over_several_sites
from privfed.secure.aborts import probability, reveals_cohort, round_event, with_aborts
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import Summation

_NO_LENGTH = "distributed noise depends on the length of a message, but no length is given"


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round as a function of its noise.

    Attributes:
      mechanism: the mechanism, with all constants of the run except the noise.
      witness: the sampling rule.
      rule: the aggregation rule, whose sums are released.
      exchanges: number of releases over one cohort.
      summation: the plain or secure sum that adds rows.
      limits: the size limits of sums.
      aborts: upper bound on the probability that a round aborts.
      partial: upper bound on the probability that a round aborts or that a sum lacks a part of the
        cohort; 0 if sums leave out no part.
    """

    mechanism: Mechanism
    witness: Witness
    rule: SumRule | RowRule = field(default_factory=Mean)
    exchanges: int = 1
    summation: Summation = field(default_factory=PlainSum)
    limits: Limits = UNLIMITED
    aborts: float = 0.0
    partial: float = 0.0

    @property
    def revealing_aborts(self) -> float:
        """Probability of an abort, or of a partial sum, that may reveal who was sampled.

        It is 0 if sites are the parties.
        """
        return 0.0 if self.limits.sites else max(self.aborts, self.partial)

    @property
    def without_aborts(self) -> RoundCost:
        """The cost of a round without aborts and partial sums."""
        return replace(self, aborts=0.0, partial=0.0)

    def event(self, noise: float | None) -> Event:
        """Returns the charge of a round; `noise` is None for a mechanism without noise."""
        aborts = self.revealing_aborts
        return round_event(self.mechanism.at(noise), self.witness, self.exchanges, aborts)

    def other(self, noise: float | None) -> Event | None:
        """Returns the charge of a round against the party other than `privacy.against`.

        None unless noise is distributed: only then are there two guarantees.
        """
        mechanism = self.mechanism.at(noise)
        if not shares_noise(mechanism):
            return None
        events = mechanism.events(self.witness, self.exchanges)
        return with_aborts(events[OTHER_PARTY[mechanism.against]], self.revealing_aborts)

    def solve(
        self,
        rounds: int,
        epsilon: float,
        delta: float,
        accountant: str,
        prior: Spending | None = None,
        extra_spending: Callable[[float], Spending] | None = None,
    ) -> float:
        """Returns the smallest noise multiplier at which all charges stay within the budget.

        Args:
          rounds: the number of rounds.
          epsilon: the budget; if it is infinite, the result is 0.
          delta: the delta of the budget.
          accountant: the accountant to use.
          prior: charges before these rounds.
          extra_spending: further charges as a function of the noise multiplier.

        Raises:
          AccountingError: if no noise is enough.
        """
        if epsilon == math.inf:
            return 0.0
        return noise_multiplier(
            self.event, rounds, epsilon, delta, accountant, prior, extra_spending
        )


def round_cost(config: Config, length: int = 0) -> RoundCost:
    """Returns the cost of a round.

    If aborts would reveal who was sampled, the smallest admitted cohort of secure sums is chosen so
    that aborts are rare. A resumed run keeps the size that its first plan chose.

    Args:
      config: the run.
      length: number of entries of a message; needed only for distributed noise.

    Raises:
      Refused: if the rule, the sampling or the secure sum is not possible.
      ValueError: if distributed noise lacks a length.
    """
    rule = rule_of(config)
    drawn = config.sampler.witness(0, config.data.clients)
    larger = over_larger_population(drawn, config.audit.canaries)
    witness = over_several_sites(larger, config.data.sites_per_client)
    configured = replace(configured_limits(config), admitted=config.admitted)
    cost = _cost_within(configured, config, rule, witness, length)
    planned_before = config.noise_multiplier is not None
    protocol = config.row_hiding
    if planned_before or protocol is None or not cost.revealing_aborts:
        return cost
    if not reveals_cohort(cost.event(1.0)):
        return cost
    epsilon = _epsilon_of_all_rounds(config, cost)
    admitting = limits_of_rare_aborts(
        config, protocol, configured, witness, cost.exchanges, epsilon
    )
    return _cost_within(admitting, config, rule, witness, length)


def _epsilon_of_all_rounds(config: Config, cost: RoundCost) -> float:
    """Returns the budget, or else the epsilon of all rounds at configured noise, without aborts.

    The result is infinite if the noise has no bound.
    """
    privacy = config.privacy
    if privacy.epsilon is not None:
        return privacy.epsilon
    event = cost.without_aborts.event(privacy.noise_multiplier)
    try:
        return guarantee({event: config.run.rounds}, privacy.delta, privacy.accountant).epsilon
    except AccountingError:
        return math.inf


def _cost_within(
    limits: Limits, config: Config, rule: SumRule | RowRule, witness: Witness, length: int
) -> RoundCost:
    """Returns the cost of a round whose sums are within `limits`."""
    mechanism, dropout = config.mechanism, config.cohort.dropout
    if mechanism.private:
        parts = config.data.sites_per_client
        mechanism = mechanism.in_parts(parts).resolved(_setting(config, limits, length))
    releases = releases_per_round(config.messages(), rule)
    summation = config.protocol.over(limits)
    if limits.sites:
        aborts = min(1.0, releases * summation.abort_probability(limits.sites, dropout))
        return RoundCost(mechanism, witness, rule, releases, summation, limits, aborts)
    cohorts = (config.sampler, config.data.clients, releases, dropout, config.audit.canaries)
    aborts = probability(summation, *cohorts)
    partial = probability(summation, *cohorts, partial=True)
    return RoundCost(mechanism, witness, rule, releases, summation, limits, aborts, partial)


def _setting(config: Config, limits: Limits, length: int) -> Setting:
    """Returns the public constants that a mechanism may depend on."""
    protocol = config.row_hiding
    expected, canaries = config.sampler.size, _canaries_expected(config)
    setting = Setting(
        cohort=CohortSize(expected, limits.capacity, canaries, config.byzantine),
        noise=ClientShares(limits.minimum),
        length=length,
        against=config.against or config.privacy.against,
    )
    if limits.sites:
        return _setting_of_sites(setting, config, limits)
    if not config.shared_noise or protocol is None:
        return setting
    if not length:
        raise ValueError(_NO_LENGTH)
    _refuse_no_honest_noise(protocol, limits)
    honest, added = protocol.honest(limits), protocol.added(limits)
    noise = ClientShares(limits.minimum, protocol.sharing(limits), honest, added)
    return replace(setting, noise=noise, bits=protocol.bits)


def _canaries_expected(config: Config) -> int:
    """Returns an upper bound on the expected number of canaries in a cohort."""
    sampler, clients = config.sampler, config.data.clients
    if sampler.witness(0, clients).shares_places:
        return 0
    return math.ceil(config.audit.canaries * sampler.size / clients - 1e-9)


def _setting_of_sites(setting: Setting, config: Config, limits: Limits) -> Setting:
    """Returns the constants for noise that sites add.

    The adversary sees all data of colluding sites. Sizes count rows, of which a client may have one
    at each of its sites.
    """
    protocol = config.row_hiding
    alone = SiteNoise(limits.sites, limits.minimum, limits.colluders)
    noise = protocol.site_noise(limits) if protocol else alone
    if config.shared_noise and not setting.length:
        raise ValueError(_NO_LENGTH)
    parts, cohort = config.data.sites_per_client, setting.cohort
    rows = replace(
        cohort,
        expected=cohort.expected * parts,
        canaries=cohort.canaries * parts,
        largest=config.sampler.capacity() or limits.most_rows,
    )
    return replace(setting, cohort=rows, noise=noise, bits=protocol.bits if protocol else 0)


def _refuse_no_honest_noise(protocol: SecureProtocol, limits: Limits) -> None:
    """Raises `Refused` if Byzantine clients and colluders may leave out or know all the noise."""
    if protocol.honest(limits) <= 0.0:
        raise Refused(
            f"as few as {_clients(protocol.sharing(limits))} may add the noise of a sum, but "
            f"{_clients(limits.byzantine)} of a cohort may be Byzantine, and colluders may know "
            f"{min(protocol.colluding(limits), 1.0):.0%} of the noise, so no secret noise may "
            "remain; lower aggregation.byzantine, attack.fraction, secure.colluders or "
            "privacy.tolerance, or raise secure.minimum (or, for masks, secure.threshold)"
        )


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"
