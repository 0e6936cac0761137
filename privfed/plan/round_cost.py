"""What one round of a run costs, as a function of its noise.

Planning, calibration, forecasts and views all ask here, so that they cannot disagree.
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
from privfed.sampling.cohort import Witness
from privfed.sampling.evaluation_rounds import over_larger_population
from privfed.sampling.site_coins import over_several_sites
from privfed.secure.aborts import probability, round_event, tells_who_was_drawn, with_aborts
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.plain_sum import PlainSum
from privfed.secure.summation import RowHiding, Summation

_NO_LENGTH = "shared noise depends on the length of a message, and none is given"


@dataclass(frozen=True)
class RoundCost:
    """A mechanism that knows all of its run's constants but the noise, over a rule of drawing.

    Each round makes `exchanges` releases of what `rule` sums over its one cohort, by `summation`
    within `limits`, and aborts with a probability of at most `aborts`.
    """

    mechanism: Mechanism
    witness: Witness
    rule: SumRule | RowRule = field(default_factory=Mean)
    exchanges: int = 1
    summation: Summation = field(default_factory=PlainSum)
    limits: Limits = UNLIMITED
    aborts: float = 0.0

    @property
    def telling_aborts(self) -> float:
        """The probability of an abort that may tell who was drawn: whether sites stay does not."""
        return 0.0 if self.limits.sites else self.aborts

    def event(self, noise: float | None) -> Event:
        """What a round is charged at the noise multiplier `noise`."""
        aborts = self.telling_aborts
        return round_event(self.mechanism.at(noise), self.witness, self.exchanges, aborts)

    def other(self, noise: float | None) -> Event | None:
        """What a round is charged against the party that the budget does not gate.

        None where there is one guarantee only: two are those of noise that clients share.
        """
        mechanism = self.mechanism.at(noise)
        if not shares_noise(mechanism):
            return None
        events = mechanism.events(self.witness, self.exchanges)
        return with_aborts(events[OTHER_PARTY[mechanism.against]], self.telling_aborts)

    def solve(
        self,
        rounds: int,
        epsilon: float,
        delta: float,
        accountant: str,
        prior: Spending | None = None,
        besides: Callable[[float], Spending] | None = None,
    ) -> float:
        """The noise multiplier with which `rounds` rounds after `prior` spend at most `epsilon`,
        together with what follows from it `besides`.

        An infinite epsilon needs none. Raises `AccountingError`.
        """
        if epsilon == math.inf:
            return 0.0
        return noise_multiplier(self.event, rounds, epsilon, delta, accountant, prior, besides)


def round_cost(config: Config, length: int = 0) -> RoundCost:
    """What a round of `config` costs, with messages of `length` numbers.

    Only noise that clients make up together depends on the length. Where aborts would tell who was
    drawn, secure sums begin with as small a cohort as makes them rare, unless a plan has solved for
    that before: a resume keeps it. Raises `Refused`.
    """
    rule = rule_of(config)
    drawn = config.sampler.witness(0, config.data.clients)
    larger = over_larger_population(drawn, config.audit.canaries)
    witness = over_several_sites(larger, config.data.sites_per_client)
    configured = replace(configured_limits(config), admitted=config.admitted)
    cost = _cost_within(configured, config, rule, witness, length)
    planned_before = config.noise_multiplier is not None
    protocol = config.row_hiding
    if planned_before or protocol is None or not cost.telling_aborts:
        return cost
    if not tells_who_was_drawn(cost.event(1.0)):
        return cost
    epsilon = _epsilon_of_all_rounds(config, cost)
    admitting = limits_of_rare_aborts(
        config, protocol, configured, witness, cost.exchanges, epsilon
    )
    return _cost_within(admitting, config, rule, witness, length)


def _epsilon_of_all_rounds(config: Config, cost: RoundCost) -> float:
    """The budget, or what noise that is fixed spends without aborts; infinite where none holds."""
    privacy = config.privacy
    if privacy.epsilon is not None:
        return privacy.epsilon
    event = replace(cost, aborts=0.0).event(privacy.noise_multiplier)
    try:
        return guarantee({event: config.run.rounds}, privacy.delta, privacy.accountant).epsilon
    except AccountingError:
        return math.inf


def _cost_within(
    limits: Limits, config: Config, rule: SumRule | RowRule, witness: Witness, length: int
) -> RoundCost:
    """The cost of a round whose sums keep `limits`."""
    mechanism, dropout = config.mechanism, config.cohort.dropout
    if mechanism.private:
        parts = config.data.sites_per_client
        mechanism = mechanism.in_parts(parts).resolved(_setting(config, limits, length))
    releases = releases_per_round(config.messages(), rule)
    summation = config.protocol.over(limits)
    if limits.sites:
        aborts = min(1.0, releases * summation.stops(limits.sites, dropout))
    else:
        clients, canaries = config.data.clients, config.audit.canaries
        aborts = probability(summation, config.sampler, clients, releases, dropout, canaries)
    return RoundCost(mechanism, witness, rule, releases, summation, limits, aborts)


def _setting(config: Config, limits: Limits, length: int) -> Setting:
    """The public constants that a mechanism may depend on."""
    protocol = config.row_hiding
    expected, canaries = config.sampler.size, _canaries_expected(config)
    setting = Setting(
        cohort=CohortSize(expected, limits.capacity, canaries, config.hostile),
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
    """How many canaries at most are expected in a cohort, beside those who are declared."""
    sampler, clients = config.sampler, config.data.clients
    if sampler.witness(0, clients).shares_places:
        return 0
    return math.ceil(config.audit.canaries * sampler.size / clients - 1e-9)


def _setting_of_sites(setting: Setting, config: Config, limits: Limits) -> Setting:
    """The same where sites add the noise: against whoever sees all that colluding sites see.

    What is drawn is rows: of each client's, as many as there are sites at which it may have some.
    """
    protocol = config.row_hiding
    noise = SiteNoise(limits.sites, limits.minimum, limits.colluders)
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


def _refuse_no_honest_noise(protocol: RowHiding, limits: Limits) -> None:
    """Raises `Refused` where all noise that is counted may be left out, or known to colluders."""
    if protocol.honest(limits) <= 0.0:
        raise Refused(
            f"as few as {_clients(protocol.sharing(limits))} may make up the noise of a sum, but "
            f"{_clients(limits.hostile)} of a cohort may be hostile, and colluders may know "
            f"{min(protocol.colluding(limits), 1.0):.0%} of it: all whose noise is counted might "
            "add none; lower aggregation.byzantine, attack.fraction or secure.colluders, or raise "
            "secure.minimum (or secure.threshold, of masks); or lower privacy.tolerance"
        )


def _clients(count: int) -> str:
    """So many clients, in words."""
    return "1 client" if count == 1 else f"{count} clients"
