"""Consequences for a run and its guarantees when secure sums identify Byzantine parties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accounting.events import Event
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from privfed.core.errors import TooManyByzantine
from privfed.plan.plan import Plan
from privfed.privacy.shared_noise import PARTY_WORDS, shares_noise
from privfed.sampling.cohort import draws_of
from privfed.secure.aborts import reveals_cohort
from privfed.secure.summation import Culprit

COUNTS_ON_OTHERS = frozenset({"server", "readers", "sites"})
"""Adversaries against which the ε of distributed noise depends on the noise of other parties."""


@dataclass(frozen=True)
class ByzantineLimit:
    """A condition of guarantees: at most `most` parties are Byzantine.

    `parties` is "clients" (of a cohort) or "sites", and `key` is the run file's key for `most`.
    """

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

    If the parties of a sum add shares of its noise, Byzantine parties may leave out their shares,
    which are therefore not counted (rules of proof, sections 5 and 9.1). There is no limit if the
    server or a key holder adds the noise, or each client adds all noise of its own row.

    A limit on clients refers to one cohort. Most samplers do not record which clients were sampled
    together. All Byzantine clients of a run therefore count against the limit: they may have been
    in one cohort before they were identified.
    """
    if not shares_noise(plan.mechanism) or not plan.noise_multiplier:
        return None
    limits = plan.cost.limits
    if limits.sites:
        return ByzantineLimit(limits.colluders, "sites", "secure.colluders")
    return ByzantineLimit(limits.byzantine, "clients", "aggregation.byzantine")


def refuse_more_culprits(plan: Plan, round: int, culprits: int) -> None:
    """Checks that the charge of the next round holds, given the parties proved to be Byzantine.

    Args:
      plan: the plan of the run.
      round: the number of the next round, from 1.
      culprits: the number of parties proved to be Byzantine.

    Raises:
      TooManyByzantine: if there are more than the guarantee tolerates, or if their absence causes
        uncharged aborts, which reveal who was sampled.
    """
    refuse_uncharged_aborts(plan, culprits, (plan.event_in(round), plan.other_in(round)))
    limit = byzantine_limit(plan)
    if limit and culprits > limit.most:
        raise TooManyByzantine(
            f"{_proved(culprits, limit.parties)} (excluded.jsonl), but epsilon holds only if "
            f"{limit}: a Byzantine party may have left out its share of the noise. No further "
            "round is charged. Begin a new run without these parties, or with "
            f"{_raised(limit, culprits)}"
        )


def refuse_uncharged_aborts(plan: Plan, culprits: int, events: Iterable[Event | None]) -> None:
    """Checks that aborts of secure sums are charged, given the excluded clients.

    Aborts are charged for clients that drop out independently at random. An excluded client is
    missing whenever it is sampled, so sums abort more often than is charged. Nothing is checked if
    sites are the parties.

    Args:
      plan: the plan of the run.
      culprits: the number of excluded parties.
      events: the charges of a round; None for a guarantee that the run does not have.

    Raises:
      TooManyByzantine: if there are excluded clients, and an event requires a secret cohort.
    """
    if culprits and _aborts_reveal_cohort(plan, events):
        raise TooManyByzantine(
            f"the number of clients that were proved to be Byzantine in secure sums is {culprits} "
            "(excluded.jsonl), but without them sums abort more often than was charged, which "
            "reveals who was sampled, and epsilon requires that the cohort stays secret. The "
            "guarantee of the last checkpoint's model holds; begin a new run without these "
            "clients, or with a sampler without a secret cohort: cohort.sampler = "
            f"{draws_of(Gaussian, Separated)}"
        )


def _raised(limit: ByzantineLimit, culprits: int) -> str:
    """Returns the key and value, as text, that allow this number of Byzantine parties."""
    if limit.parties == "sites":
        return f"{limit.key} raised to {culprits} sites or more"
    return f"{limit.key} = {culprits} or more, whose noise is then not counted"


def lost_claims(plan: Plan, culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """Returns one sentence for each guarantee that does not hold with these `culprits`.

    The tuple is empty if all guarantees of the plan hold.
    """
    limit = byzantine_limit(plan)
    if limit is None or len(culprits) <= limit.most:
        return ()
    proved = f"it needs that {limit}, but {_proved(len(culprits), limit.parties)}"
    if limit.parties == "sites":
        return (
            f"ε against {PARTY_WORDS['sites']} does not hold: {proved}. ε against "
            f"{PARTY_WORDS['others']} holds, since it does not depend on other parties' noise.",
        )
    return (
        f"Neither ε against {PARTY_WORDS['server']} nor ε against {PARTY_WORDS['readers']} holds: "
        f"{proved}.",
    )


def _proved(culprits: int, parties: str) -> str:
    """Returns a text with the number of parties proved to be Byzantine."""
    named = f"{culprits} {parties} were" if culprits != 1 else f"one of the {parties} was"
    return f"{named} proved to be Byzantine in secure sums"


def exclusion_text(plan: Plan) -> str:
    """Returns a text on the consequence of a party that is proved to be Byzantine.

    The text is empty if this cannot happen: the run has no secure sum, simulates only the
    arithmetic of its sums, or has a protocol that identifies no party.
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
    """Whether an ε of training or evaluation requires a secret cohort, which dropouts reveal."""
    plans = filter(None, (plan, plan.evaluation))
    return _aborts_reveal_cohort(
        plan, (event for each in plans for event in (each.event, each.other))
    )


def _aborts_reveal_cohort(plan: Plan, events: Iterable[Event | None]) -> bool:
    """Whether one of `events` that is not None requires a secret cohort, which dropouts reveal.

    False if sites are the parties: dropouts then do not depend on the sampling of clients.
    """
    if plan.cost.limits.sites:
        return False
    return any(map(reveals_cohort, filter(None, events)))
