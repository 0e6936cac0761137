"""What a site's own clients are promised by the site's own count, from public facts alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from accounting.guarantee import Guarantee, guarantee, stated
from privfed.core.errors import Refused
from privfed.plan.plan import Plan


@dataclass(frozen=True)
class SiteGuarantee:
    """What holds for the clients of a site that answers at most `answers` rounds.

    `bound` is against the server with colluding sites, `alone` trusts nobody but the site itself;
    None where the site adds all of the noise to its own sum, so that the two are one.
    """

    answers: int
    bound: Guarantee
    alone: Guarantee | None

    def to_json(self) -> dict[str, Any]:
        """The object under "site" that `privfed check --answers --json` prints."""
        return {"answers": self.answers, "guarantees": stated(self.bound, self.alone)}


def site_guarantee(plan: Plan, answers: int) -> SiteGuarantee:
    """What `plan` promises the clients of a site that answers at most so many rounds.

    A site charges an answer before it leaves, whatever becomes of it: the event of one round, which
    follows from what all sites agreed on (rate, norms, share of noise, colluders, sites that have
    to stay), and from no data. An invitation that it declines before it draws coins is free. So
    what its clients are promised is the composition of a *fixed* maximum of answers, which the site
    enforces, over earlier runs too, all of whose rounds count (PRIVACY, section 9.6). Of clients at
    several sites every round of the run counts, as other sites may have answered those that this
    one did not.

    Raises `Refused` where sites are no parties, or for a number of answers that the run cannot ask.
    """
    config = plan.config
    if not config.by_sites or not plan.mechanism.private:
        raise Refused(
            "--answers counts the rounds that a site answers, and here no site adds noise; declare "
            "data.sites, and use secure.parties with a protocol, or privacy.mechanism = "
            '"local_gaussian"'
        )
    rounds = config.run.rounds
    if not 1 <= answers <= rounds:
        raise Refused(f"--answers is {answers}; expected from 1 to run.rounds = {rounds}")
    if config.data.sites_per_client > 1 and answers != rounds:
        raise Refused(
            f"--answers is {answers}, and clients may be at {config.data.sites_per_client} sites "
            "(data.sites_per_client): other sites may have answered the rounds that this one did "
            f"not, so that all count; expected run.rounds = {rounds}"
        )
    return SiteGuarantee(answers, _bound(plan, answers), plan.besides(answers))


def _bound(plan: Plan, answers: int) -> Guarantee:
    """The composition of `answers` rounds with all that earlier runs spent, as the budget's is."""
    privacy, before = plan.config.privacy, plan.before
    spending = Counter(before.spending) + Counter(plan.spending_of_any(answers))
    spent = guarantee(spending, privacy.delta, privacy.accountant)
    return replace(spent, against=plan.config.against, uncovered=before.uncovered)
