"""The parties that secure sums proved to be Byzantine, and the effect on sampling and on ε."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privfed.plan.liars import hostile_limit, rests_on_a_secret_draw
from privfed.plan.plan import Plan
from privfed.report.page.blocks import BulletList, Chapter, Figures, Paragraph
from privfed.report.page.run_facts import PageFacts
from privfed.report.tables import counted
from privfed.secure.summation import Culprit, Reason

_HOW: dict[Reason, str] = {
    "wrong share": "told another share than it had acknowledged",
    "wrong dealing": "dealt shares that do not give what it had committed to",
    "garbled shares": "dealt what holders of its shares could not use",
}
_READ_ON = (
    "More: docs/explanation/secure_sums.md, “Clients that want a sum to fail”; how to check a "
    "proof: docs/how-to/secure_sums.md."
)


def left_out_chapters(facts: PageFacts) -> list[Chapter]:
    """Returns a chapter if a party was proved to be Byzantine; otherwise an empty list."""
    if not facts.record.culprits:
        return []
    sites = facts.config is not None and facts.config.by_sites
    party = "site" if sites else "client"
    return [
        Chapter(
            "left-out",
            "Left out of secure sums",
            [
                Paragraph(
                    "Proved to lie in secure sums, and left out of all rounds since: "
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
    """One line for each party, in the order of the list."""
    lines = [
        [str(each.client), str(each.round), str(each.exchange), _HOW[each.reason], _proof(each)]
        for each in culprits
    ]
    columns = [party, "round", "exchange", "what it did", "by"]
    return Figures("Who lied, in which round and how", columns, lines, frozenset({0, 1, 2}))


def _proof(culprit: Culprit) -> str:
    """The evidence against a party."""
    if culprit.complaints:
        return f"complaints of {culprit.complaints} holders"
    return "a proof: messages that it signed"


def _draw(sites: bool) -> Iterator[str]:
    """The effect of exclusion on sampling: none for all other clients."""
    if sites:
        yield (
            "Sampling: a site that is left out is asked in no later round. Whether a site stays "
            "tells of nobody's coins, so that no abort is charged for it."
        )
        return
    yield (
        "Sampling: who is left out is drawn as ever, and counts as one that drops out before it "
        "shares. Draw, rate, population, divisor and all others' coins are as they were."
    )
    yield (
        "The list follows from what liars sent alone: no honest client's data, noise or coin moves "
        "a line of it. It tells that a liar was drawn in that round."
    )


def _noise(plan: Plan | None) -> Iterator[str]:
    """The effect of exclusion on ε."""
    if plan is None:
        return
    if rests_on_a_secret_draw(plan):
        yield (
            "ε rests on a secret draw. Without who is left out sums abort more often than is "
            "charged, which would tell of it: no such round is charged after a liar was named. "
            "Against who works with a client of the cohort, ε does not hold, list or no list."
        )
    elif not plan.mechanism.private:
        yield "No ε is claimed."
    limit = hostile_limit(plan)
    if limit:
        yield f"ε holds while {limit}: liars' part of the noise may be missing."
    elif plan.mechanism.private:
        yield "ε counts on no noise of theirs."


def _complaints(culprits: Sequence[Culprit]) -> Iterator[str]:
    """The caveat that complaints are weaker than a proof."""
    if any(each.complaints for each in culprits):
        yield (
            "Complaints name who lied while no more lie than are counted on (secure.colluders and "
            "aggregation.byzantine), and the server follows the protocol; to others they prove "
            "nothing."
        )
