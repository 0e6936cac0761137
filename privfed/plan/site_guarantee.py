"""The guarantee for a site's own clients if the site limits the number of rounds it answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from accounting.guarantee import Guarantee, guarantee, stated
from privfed.core.errors import Refused
from privfed.plan.plan import Plan


@dataclass(frozen=True)
class SiteGuarantee:
    """The guarantee for the clients of a site that answers at most `answers` rounds.

    Attributes:
      answers: the largest number of rounds that the site answers, by sending a sum of rows.
      bound: the guarantee against the server with colluding sites.
      alone: the guarantee against all other parties, which trusts only this site; None if it is
        the same as `bound`, since the site adds all of the noise to its own sum.
    """

    answers: int
    bound: Guarantee
    alone: Guarantee | None

    def to_json(self) -> dict[str, Any]:
        """Returns the object under "site" that `privfed check --answers --json` prints."""
        return {"answers": self.answers, "guarantees": stated(self.bound, self.alone)}


def site_guarantee(plan: Plan, answers: int) -> SiteGuarantee:
    """Returns the guarantee for the clients of a site that answers at most `answers` rounds.

    A site charges the event of a round before it answers. The event depends only on agreed
    constants (rate, norms, share of noise, colluders, minimum of surviving sites), and not on data.
    An invitation that the site declines before sampling is not charged. The guarantee is therefore
    the composition of a *fixed* maximum of answers, which the site enforces, with all rounds of
    earlier runs (rules of proof, section 9.6). For clients at several sites, every round of the run
    counts, since other sites may have answered the rounds that this site did not.

    Args:
      plan: the plan of the run.
      answers: the largest number of rounds that the site answers.

    Raises:
      Refused: if sites are not the parties or there is no private mechanism, if `answers` is not
        between 1 and the number of rounds, or if clients at several sites are charged fewer than
        all rounds.
    """
    config = plan.config
    if not config.by_sites or not plan.mechanism.private:
        raise Refused(
            f"--answers is {answers}, the number of rounds that a site answers, but no site adds "
            'noise; set data.sites and secure.parties = "sites", with a secure.protocol or '
            'privacy.mechanism = "local_gaussian"'
        )
    rounds = config.run.rounds
    if not 1 <= answers <= rounds:
        raise Refused(f"--answers is {answers}; expected a number from 1 to run.rounds = {rounds}")
    if config.data.sites_per_client > 1 and answers != rounds:
        raise Refused(
            f"--answers is {answers}, but clients may be at {config.data.sites_per_client} sites "
            "(data.sites_per_client), and another site may have answered the rounds that this site "
            f"did not, so every round counts; expected run.rounds = {rounds}"
        )
    return SiteGuarantee(answers, _bound(plan, answers), plan.other_party(answers))


def _bound(plan: Plan, answers: int) -> Guarantee:
    """Returns the composition of `answers` rounds with the spending of earlier runs."""
    privacy, before = plan.config.privacy, plan.before
    spending = Counter(before.spending) + Counter(plan.spending_of_any(answers))
    spent = guarantee(spending, privacy.delta, privacy.accountant)
    return replace(spent, against=plan.config.against, uncovered=before.uncovered)
