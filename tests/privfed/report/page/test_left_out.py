"""The chapter on who was proved to lie: what it says of a draw by clients, and of sites."""

from types import SimpleNamespace

import pytest
from small import small

from privfed.plan.plan import plan
from privfed.report.page.left_out import left_out_chapters
from privfed.secure.summation import Culprit

SHARED = (
    *("secure.protocol=masks", "secure.simulate=arithmetic", "privacy.mechanism=skellam"),
    *("secure.colluders=0.3", "privacy.delta=0.05"),
)
CLIENTS = ("cohort.sampler=full", "cohort.size=0")
SITES = ("data.sites=5",)
CULPRITS = (Culprit(3, 1, 0, "wrong share"), Culprit(1, 2, 0, "wrong dealing"))
DRAWN = "Sampling: excluded clients are still sampled"
NAMED = SimpleNamespace(culprits=CULPRITS)
TELLS = "It reveals that a Byzantine client was sampled in that round."
ASKED = (
    "Sampling: an excluded site takes part in no later round. Whether a site takes part reveals "
    "nothing about the sampling of clients, so no abort is charged for it."
)


@pytest.mark.parametrize(
    ("keys", "party", "says", "never", "holds"),
    [
        (CLIENTS, "client", (DRAWN, TELLS), ASKED, "none of a cohort's clients is Byzantine"),
        (SITES, "site", (ASKED,), TELLS, "at most 2 of the sites are Byzantine"),
    ],
    ids=["clients", "sites"],
)
def test_it_is_about_those_who_take_part_in_the_sum(keys, party, says, never, holds):
    planned = plan(small(*SHARED, *keys), length=21)
    facts = SimpleNamespace(record=NAMED, plan=planned, config=planned.config)
    (chapter,) = left_out_chapters(facts)
    opening, table, points, _ = chapter.blocks
    assert opening.text.endswith(f"excluded from all later rounds: 2 {party}s.")
    assert table.columns[0] == party
    assert [line[:2] for line in table.lines] == [["3", "1"], ["1", "2"]]
    text = " ".join(points.items)
    assert all(words in text for words in says)
    assert never not in text
    assert f"ε holds only if {holds}" in text


def test_without_its_parts_a_run_has_no_sites_to_speak_of():
    (chapter,) = left_out_chapters(SimpleNamespace(record=NAMED, plan=None, config=None))
    assert DRAWN in " ".join(chapter.blocks[2].items)
    assert left_out_chapters(SimpleNamespace(record=SimpleNamespace(culprits=()))) == []
