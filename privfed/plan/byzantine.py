"""Consequences for a run and its guarantees when secure sums identify Byzantine parties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accounting.events import Event
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from privfed.core.errors import ByzantineProved
from privfed.plan.plan import Plan
from privfed.privacy.shared_noise import PARTY_WORDS, shares_noise
from privfed.sampling.cohort import draws_of
from privfed.secure.aborts import reveals_cohort
from privfed.secure.summation import Culprit

COUNTS_ON_OTHERS = frozenset({"server", "readers", "sites"})
"""Adversaries against which ε of shared noise depends on the noise of other parties of a sum."""


@dataclass(frozen=True)
class ByzantineLimit:
    """The limit, set by `key`, that at most `most` `parties` (clients or sites) are Byzantine."""

    most: int
    parties: str
    key: str

    def __str__(self) -> str:
        most = f"at most {self.most}" if self.most else "none"
        where = "a cohort's" if self.parties == "clients" else "the"
        verb = "are" if self.most > 1 else "is"
        return f"{most} of {where} {self.parties} {verb} Byzantine ({self.key})"


def byzantine_limit(plan: Plan) -> ByzantineLimit | None:
    """Returns the limit on Byzantine parties on which guarantees depend; None if there is none.

    If the parties of a sum contribute shares of its noise, the shares of Byzantine parties may be
    missing and are not counted (rules of proof, sections 5 and 9.1). Noise of the server or a key
    holder, and of each client on its own row, does not depend on other parties. A number of clients
    refers to one cohort. Most samplers keep no record of which clients were sampled together, so
    all culprits of a run count against the limit: before they were identified, they may have been
    in one cohort, and each may have left out its noise.
    """
    if not shares_noise(plan.mechanism) or not plan.noise_multiplier:
        return None
    limits = plan.cost.limits
    if limits.sites:
        return ByzantineLimit(limits.colluders, "sites", "secure.colluders")
    return ByzantineLimit(limits.byzantine, "clients", "aggregation.byzantine")


def refuse_more_culprits(plan: Plan, round: int, culprits: int) -> None:
    """Raises `ByzantineProved` before a round whose charge would not hold with these culprits.

    Args:
      plan: the plan of the run.
      round: the next round.
      culprits: the number of parties proved to be Byzantine.
    """
    refuse_uncharged_aborts(plan, culprits, (plan.event_in(round), plan.other_in(round)))
    limit = byzantine_limit(plan)
    if limit and culprits > limit.most:
        raise ByzantineProved(
            f"{_proved(culprits, limit.parties)} (excluded.jsonl), but epsilon holds only if "
            f"{limit}: a Byzantine party may have left out its share of the noise. No further "
            "round is charged. Begin a new run without these parties, or with "
            f"{_raised(limit, culprits)}"
        )


def refuse_uncharged_aborts(plan: Plan, culprits: int, events: Iterable[Event | None]) -> None:
    """Raises `ByzantineProved` if excluded `culprits` make aborts reveal who was sampled.

    Aborts are charged for clients that drop out independently at random. An excluded client is
    missing whenever it is sampled, so sums abort more often than the `events`, of a round of the
    plan, are charged for.
    """
    if culprits and _telling(plan, events):
        raise ByzantineProved(
            "clients proved to be Byzantine in secure sums, and excluded since "
            f"(excluded.jsonl): {culprits}. Without them sums abort more often than was "
            "charged, which reveals who was sampled, but epsilon requires that the cohort stays "
            "secret. The guarantee of the last checkpoint's model holds; begin a new run "
            "without these clients, or with a sampler without a secret cohort: cohort.sampler = "
            f"{draws_of(Gaussian, Separated)}"
        )


def _raised(limit: ByzantineLimit, culprits: int) -> str:
    """Advice on allowing this number of Byzantine parties in a new run."""
    if limit.parties == "sites":
        return f"{limit.key} raised to {culprits} of all sites, or more"
    return f"{limit.key} = {culprits} or more, whose noise is then not counted"


def lost_claims(plan: Plan, culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """Returns sentences about the guarantees of the plan that do not hold with these `culprits`."""
    limit = byzantine_limit(plan)
    if limit is None or len(culprits) <= limit.most:
        return ()
    proved = f"it needs that {limit}, but {_proved(len(culprits), limit.parties)}"
    if limit.parties == "sites":
        return (
            f"ε against {PARTY_WORDS['sites']} does not hold as it is stated: {proved}. ε "
            f"against {PARTY_WORDS['others']} does not depend on other parties' noise, and "
            "holds.",
        )
    return (
        f"Neither ε, against {PARTY_WORDS['server']} or against {PARTY_WORDS['readers']}, holds "
        f"as it is stated: {proved}.",
    )


def _proved(culprits: int, parties: str) -> str:
    """States the number of parties proved to be Byzantine."""
    named = f"{culprits} {parties} were" if culprits != 1 else f"one of the {parties} was"
    return f"{named} proved to be Byzantine in secure sums"


def exclusion_text(plan: Plan) -> str:
    """Describes the consequence of a proved Byzantine party; empty if proof is impossible.

    That is the case if no party sends a message of its own, or the protocol identifies none.
    """
    protocol, limits = plan.config.row_hiding, plan.cost.limits
    if protocol is None or limits.arithmetic or not protocol.names_culprits:
        return ""
    party = "site" if limits.sites else "client"
    if rests_on_a_secret_draw(plan):
        return (
            f"a {party} that is proved to be Byzantine in a sum stops the run: ε requires a "
            f"secret cohort, but without this {party} sums abort more often than is charged"
        )
    limit = byzantine_limit(plan)
    if limit and not limit.most:
        return (
            f"a {party} that is proved to be Byzantine in a sum stops the run: ε holds only if "
            f"{limit}"
        )
    left_out = (
        f"a {party} that is proved to be Byzantine in a sum is excluded from all later rounds"
    )
    if limit:
        return (
            f"{left_out}; with more than {limit.most} the run stops, because ε holds only if "
            f"{limit}"
        )
    return f"{left_out}, and the run goes on"


def rests_on_a_secret_draw(plan: Plan) -> bool:
    """Whether an ε of the plan needs secret sampling that a client's absence reveals."""
    plans = filter(None, (plan, plan.evaluation))
    return _telling(plan, (event for each in plans for event in (each.event, each.other)))


def _telling(plan: Plan, events: Iterable[Event | None]) -> bool:
    """Whether dropouts reveal who was sampled, while one of `events` needs that to be secret.

    Dropouts of sites do not depend on the sampling of clients.
    """
    if plan.cost.limits.sites:
        return False
    return any(map(reveals_cohort, filter(None, events)))
