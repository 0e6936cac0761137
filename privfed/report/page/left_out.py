"""The chapter of a page on parties proved Byzantine in secure sums, and their effect on ε."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privfed.plan.byzantine import byzantine_limit, rests_on_a_secret_draw
from privfed.plan.plan import Plan
from privfed.report.page.blocks import BulletList, Chapter, Figures, Paragraph
from privfed.report.page.run_facts import PageFacts
from privfed.report.tables import counted
from privfed.secure.summation import Culprit, Reason

_HOW: dict[Reason, str] = {
    "wrong share": "revealed a share different from the one that it acknowledged",
    "wrong dealing": "sent shares that do not restore the secret that it committed to",
    "garbled shares": "sent shares that their holders could not use",
}
_READ_ON = (
    "More: docs/explanation/secure_sums.md, “Clients that want a sum to fail”; how to check a "
    "proof: docs/how-to/secure_sums.md."
)


def left_out_chapters(facts: PageFacts) -> list[Chapter]:
    """Returns a chapter on excluded parties; an empty list if no party was proved Byzantine."""
    if not facts.record.culprits:
        return []
    sites = facts.config is not None and facts.config.by_sites
    party = "site" if sites else "client"
    return [
        Chapter(
            "left-out",
            "Excluded from secure sums",
            [
                Paragraph(
                    "Proved to be Byzantine in secure sums, and excluded from all later rounds: "
                    f"{counted(len(facts.record.culprits), party)}."
                ),
                _table(facts.record.culprits, party),
                BulletList(
                    [*_draw(sites), *_noise(facts.plan), *_complaints(facts.record.culprits)]
                ),
                Paragraph(_READ_ON),
            ],
        )
    ]


def _table(culprits: Sequence[Culprit], party: str) -> Figures:
    """Returns a table of the parties proved Byzantine, in the order of their identification."""
    lines = [
        [str(each.client), str(each.round), str(each.exchange), _HOW[each.reason], _proof(each)]
        for each in culprits
    ]
    columns = [party, "round", "exchange", "violation", "by"]
    return Figures(
        ("Byzantine parties, by round and violation"), columns, lines, frozenset({0, 1, 2})
    )


def _proof(culprit: Culprit) -> str:
    """Describes the evidence against a party."""
    if culprit.complaints:
        return f"complaints of {culprit.complaints} holders"
    return "a proof: messages that it signed"


def _draw(sites: bool) -> Iterator[str]:
    """Yields sentences on the effect that excluding parties has on sampling.

    `sites`: whether the excluded parties are sites; otherwise they are clients.
    """
    if sites:
        yield (
            "Sampling: an excluded site takes part in no later round. Whether a site takes part "
            "reveals nothing about the sampling of clients, so no abort is charged for it."
        )
        return
    yield (
        "Sampling: excluded clients are still sampled, but treated as dropouts before they "
        "share keys. The sampling rate, the population, the divisor and the sampling of all "
        "other clients are unchanged."
    )
    yield (
        "The list depends only on the messages of Byzantine clients: no honest client's data, "
        "noise or sampling changes a line of it. It reveals that a Byzantine client was sampled "
        "in that round."
    )


def _noise(plan: Plan | None) -> Iterator[str]:
    """Yields sentences on the effect of exclusion on ε; nothing if the run's plan is not known."""
    if plan is None:
        return
    if rests_on_a_secret_draw(plan):
        yield (
            "ε requires that the sampled cohort stays secret. Without the excluded clients, sums "
            "abort more often than is charged, which reveals who was sampled: so no further round "
            "is charged after a client was excluded. Against adversaries who collude with a client "
            "of the cohort, ε does not hold, with or without this list."
        )
    elif not plan.mechanism.private:
        yield "No ε is claimed."
    limit = byzantine_limit(plan)
    if limit:
        yield f"ε holds only if {limit}: the noise of Byzantine parties may be missing."
    elif plan.mechanism.private:
        yield "ε does not depend on the noise of Byzantine parties."


def _complaints(culprits: Sequence[Culprit]) -> Iterator[str]:
    """Yields a caveat if complaints identified a culprit: they are weaker evidence than a proof."""
    if any(each.complaints for each in culprits):
        yield (
            "Complaints identify a Byzantine client only if there are no more Byzantine clients "
            "than are assumed (secure.colluders and aggregation.byzantine) and the server follows "
            "the protocol; they prove nothing to third parties."
        )
