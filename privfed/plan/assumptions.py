"""Composition of runs whose epsilons assume different adversaries.

The epsilon of a run that counts an earlier run holds for both. The charges of the earlier run are
therefore recomputed for the adversary of the later run (`privfed.plan.assumed`); if no bound is
known, the earlier run is refused. `ASSUMPTIONS` declares every assumption of a stated epsilon,
including assumptions that other modules compare, and those in which runs may differ freely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from accounting.events import ZERO_OUT, Event, Spending
from accounting.noises import DiscreteGaussians, Gaussian, Noise, Skellam
from accounting.releases import PoissonSampled, SeveralSites, Unprotected
from privfed.plan.assumed import OWN_SITE, Assumed, most
from privfed.privacy.counted_noise import CountedNoise

_EXACT = 1e-9
"""Subtracted before `ceil` and added before `floor`, against the rounding error of a product."""


class Incomposable(Exception):
    """Raised if no bound is known for an earlier run's charges under a later run's assumptions."""


def charged_against(
    spending: Spending, against: str | None, assumed: Assumed, now: Assumed
) -> Spending:
    """Returns charges recomputed under the assumptions of a later run.

    Args:
      spending: events of an earlier run, in the form that `accounting.events.summable` returns.
      against: the party that the events are charged against; None: all untrusted parties.
      assumed: the assumptions of the earlier run.
      now: the assumptions of the later run, which counts the earlier one.

    Returns:
      Events that bound the privacy loss of the earlier run against the adversary of `now`.

    Raises:
      Incomposable: if no bound is known.
    """
    for assumption in COMPARED:
        spending = assumption.charged(spending, against, assumed, now)
    return spending


def _trusted_as_well(
    spending: Spending, against: str | None, assumed: Assumed, now: Assumed
) -> Spending:
    """Returns `spending`.

    Raises `Incomposable` if the earlier run trusts or relies on a party that the later run does
    not.
    """
    if more := sorted({*assumed.trusts} - {*now.trusts}):
        mend = "privacy.mechanism and secure.protocol"
        if more == [OWN_SITE] and now.sites_per_client is None:
            mend = "data.sites"
        raise Incomposable(
            f"the earlier run trusts {' and '.join(more)}, but this run does not; use its {mend} "
            "in this run, or leave the earlier run out"
        )
    if more := sorted({*assumed.trusted_parties} - {*now.trusted_parties}):
        raise Incomposable(
            f"the earlier run relies on {' and on '.join(more)}, but this run does not; set "
            "secure.threat and secure.protocol as there, or leave the earlier run out"
        )
    return spending


def _against_as_many(
    spending: Spending, against: str | None, assumed: Assumed, now: Assumed
) -> Spending:
    """Returns the charges with only the noise that counts against the adversary of the later run.

    They are unchanged if the later run has no more colluders or Byzantine clients, or if the
    earlier run's guarantee depends on no other party's noise.

    Raises `Incomposable` if no noise remains, or no bound is known.
    """
    if against is None or not assumed.noise:
        return spending
    ratio = min(_ratio(noise, against, assumed, now) for noise in assumed.noise)
    if ratio == 1.0:
        return spending
    aborts = min(noise.aborts for noise in assumed.noise)
    charged: Counter[Event] = Counter()
    for event, count in spending.items():
        less = _with_less_noise(event, ratio, aborts if against == "readers" else None)
        charged[less] += count
    return charged


def _ratio(noise: CountedNoise, against: str, assumed: Assumed, now: Assumed) -> float:
    """Returns the fraction of the counted noise variance that counts against `now`'s adversary.

    The fraction is 1 if `now` has no more colluders and Byzantine clients than `assumed`. Raises
    `Incomposable` if nothing remains, or if the secure sums tolerate fewer colluders.
    """
    before = (assumed.colluders or 0, assumed.byzantine or 0)
    more = most(assumed.colluders, now.colluders) or 0
    byzantine = max(before[1], now.byzantine_of(noise.size))
    if (more, byzantine) == before:
        return 1.0
    if against not in ("readers", "others") and more > noise.colluders_tolerated:
        raise Incomposable(
            f"secure.colluders is {more:.4g} in this run, but the earlier run's secure sums hide "
            f"rows only if at most {noise.colluders_tolerated:.4g} collude; lower secure.colluders"
        )
    part = noise.part(against, more, byzantine)
    if part <= 0:
        raise Incomposable(
            f"secure.colluders (privacy.colluders) is {more:.4g} and aggregation.byzantine allows "
            f"{byzantine} Byzantine clients, but then no honest noise remains in the earlier run's "
            "smallest sums; lower one of these keys"
        )
    return part / noise.part(against, *before)


def _with_less_noise(event: Event, ratio: float, aborts: float | None) -> Event:
    """Returns the event with the variance of its noise multiplied by `ratio`.

    `aborts` is the slack (delta) charged for aborts that readers of the releases see; None unless
    the event is against these readers. Against them, sampling does not amplify privacy if there are
    Byzantine clients, because the noise reveals the number of survivors. The event then has no
    amplification, and aborts cost nothing.
    """
    match event.release:
        case Unprotected():
            return event
        case Gaussian() | Skellam() | DiscreteGaussians() as noise:
            return replace(event, release=_less(noise, ratio))
        case PoissonSampled(of=of) as drawn if not isinstance(of, Unprotected):
            if aborts is not None:
                slack = max(0.0, event.slack - aborts)
                return replace(event, release=_less(of, ratio), relation=ZERO_OUT, slack=slack)
            return replace(event, release=replace(drawn, of=_less(of, ratio)))
    raise Incomposable(
        f"the earlier run's rounds ({event.release.kind}) were charged for fewer colluding or "
        "Byzantine parties than this run declares, but no bound is known for more; lower "
        "secure.colluders and aggregation.byzantine in this run"
    )


def _less(noise: Noise, ratio: float) -> Noise:
    match noise:
        case Gaussian(noise_multiplier=z):
            return Gaussian(z * math.sqrt(ratio))
        case Skellam(variance=variance):
            return replace(noise, variance=variance * ratio)
        case DiscreteGaussians(clients=clients) if clients * ratio >= 1:
            return replace(noise, clients=math.floor(clients * ratio + _EXACT))
    raise Incomposable(
        "none of the earlier run's discrete Gaussian noise counts under this run's assumptions; "
        "lower secure.colluders and aggregation.byzantine in this run"
    )


def _at_as_many_sites(
    spending: Spending, against: str | None, assumed: Assumed, now: Assumed
) -> Spending:
    """Returns the charges for a client with rows at more sites than the earlier run declared.

    In the earlier run each row's norm is at most C / s, for s declared sites. With rows at s' > s
    sites, only the event for s' such rows holds (rules of proof, section 9.4).
    """
    sites, most = assumed.sites_per_client, now.sites_per_client
    if sites is None or (most is not None and most <= sites):
        return spending
    if most is None:
        raise Incomposable(
            f"the earlier run's epsilon covers clients with rows at {sites} sites at most "
            "(data.sites_per_client), but this run declares no sites; also set data.sites and "
            "data.sites_per_client in this run"
        )
    by_itself = against is None and assumed.trusts == (OWN_SITE,)
    charged: Counter[Event] = Counter()
    for event, count in spending.items():
        at_more, times = _at_more_sites(event, sites, most, by_itself)
        charged[at_more] += math.ceil(count * times - _EXACT)
    return charged


def _at_more_sites(event: Event, sites: int, most: int, by_itself: bool) -> tuple[Event, float]:
    """Returns the event for a client at `most` sites instead of `sites`.

    Also returns a factor for the number of events: if each site adds noise to its own sum
    (`by_itself`), each site of a client is a separate event.
    """
    factor = most / sites
    match event.release:
        case Unprotected():
            return event, 1.0
        case PoissonSampled(of=Skellam(variance=variance) as noise) as drawn:
            split = replace(drawn, of=replace(noise, variance=variance / factor))
            return replace(event, release=split), factor
        case PoissonSampled(of=Gaussian()) if by_itself:
            return event, factor
        case PoissonSampled(rate=rate, of=Gaussian() as noise):
            return replace(event, release=SeveralSites(rate, most, noise)), 1.0
        case SeveralSites() as drawn:
            return replace(event, release=replace(drawn, sites=most)), 1.0
    raise Incomposable(
        f"the earlier run declares data.sites_per_client = {sites}, but this run {most}, and no "
        f"bound is known for a client at more than {sites} sites in rounds of the earlier kind "
        f"({event.release.kind}); declare {sites} here if no client has rows at more sites"
    )


Charged = Callable[[Spending, str | None, Assumed, Assumed], Spending]


def _unchanged(spending: Spending, against: str | None, assumed: Assumed, now: Assumed) -> Spending:
    return spending


@dataclass(frozen=True)
class Assumption:
    """An assumption of a stated epsilon, and the rule for composing two runs that differ in it.

    Attributes:
      name: name of the assumption.
      keys: keys of run files or ledgers that determine it.
      differing: text on the treatment of two runs that differ in it.
      charged: recomputes an earlier run's spending for the later run's assumption, or raises
        `Incomposable`.
    """

    name: str
    keys: str
    differing: str
    charged: Charged = _unchanged


ASSUMPTIONS = (
    Assumption(
        "unit of privacy",
        "unit (client, or example of a silo)",
        "refused: an epsilon about clients and one about examples are never composed",
    ),
    Assumption(
        "adjacency relation",
        "relation, by cohort.sampler and privacy.mechanism",
        "refused",
    ),
    Assumption(
        "population",
        "the source with its client column; simulated: all of [data] and run.seed",
        "refused, unless data.population names one population for both",
    ),
    Assumption(
        "public clients",
        'data.holdout = "clients"',
        "refused if the guarantee of one run covers a client that the other declared public",
    ),
    Assumption(
        "party",
        "privacy.against, secure.parties",
        "charged against the later run's party if the earlier ledger states that charge, else "
        "refused",
    ),
    Assumption(
        "trusted parties",
        "privacy.mechanism, secure.protocol, secure.threat, secure.parties",
        "refused if the earlier run trusts, or relies on, a party that the later run does not",
        _trusted_as_well,
    ),
    Assumption(
        "colluding and Byzantine parties",
        "secure.colluders, privacy.colluders, aggregation.byzantine, attack.fraction; parties "
        "proved to be Byzantine",
        "the earlier run is charged for the larger number in either run if its noise and its "
        "protocol allow that to be computed, else refused; secure.colluders is a fraction of each "
        "cohort of any size",
        _against_as_many,
    ),
    Assumption(
        "sites per client",
        "data.sites_per_client",
        "the earlier run is charged for a client at the larger number of sites if its sampler "
        "allows that to be computed, else refused",
        _at_as_many_sites,
    ),
    Assumption(
        "simulation",
        "note (by run.randomness, secure.simulate, attack.fraction, …)",
        "a simulation is refused as an earlier run of a real run; a joint audit is marked",
    ),
    Assumption("void guarantee", "guarantee (by attack.name)", "refused"),
    Assumption(
        "starting model",
        "model.init",
        "refused unless the run that trained it is counted, or is declared disjoint; it is then "
        "stated that the model is not covered",
    ),
    Assumption(
        "later charges of a counted run",
        "the head of the counted ledger",
        "refused if a counted run was charged since it was counted",
    ),
    Assumption(
        "dropout and survivors",
        "cohort.dropout, secure.minimum, privacy.tolerance",
        "may differ: each run's sums abort below its own minimum, and each is charged for its own "
        "aborts",
    ),
    Assumption(
        "sites",
        "data.sites",
        "may differ: each run is charged for the larger number of colluding sites",
    ),
    Assumption(
        "declared population size, sampling",
        "data.clients, [cohort]",
        "may differ: each run's events contain its own sampling rate, and its sampler refuses a "
        "population for which it has no proof",
    ),
    Assumption(
        "groups of clients",
        "cohort.groups, cohort.slots",
        "may differ: in each run, the charges hold for a client of any group",
    ),
    Assumption(
        "weights",
        "[aggregation]",
        "may differ: weights are public constants, and the events are those of weighted rows",
    ),
    Assumption(
        "rows per client",
        "--rows-per-client of privfed describe",
        "may differ: a client enforces the bound of each release before it sends",
    ),
    Assumption(
        "independent noise",
        "run.randomness",
        "always holds: each run's noise derives from the operating system's random numbers; runs "
        "with a seed are simulations",
    ),
)
"""Every assumption of a stated epsilon."""
COMPARED = tuple(each for each in ASSUMPTIONS if each.charged is not _unchanged)
"""The assumptions whose differences change an earlier run's charges."""
