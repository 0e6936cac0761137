"""The chapter of a page on values that no ε covers: metrics of a simulation, and its attackers.

A page has this chapter only with --simulation, below a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privfed.report.page.blocks import Banner, Block, Chapter, Facts, Figures, Paragraph
from privfed.report.page.drawing import rounded
from privfed.report.page.run_facts import PageFacts

_BANNER = Banner(
    "Not covered by any ε",
    "This chapter was requested by --simulation. It shows values that can be measured only in a "
    "simulation, or are private: protect this page as you protect the data.",
)


_MOST = 100
"""Largest number of suspicious clients that a page shows."""


def simulation_chapter(facts: PageFacts) -> Chapter:
    """Returns the page's chapter on values that no ε covers."""
    blocks = [*_attackers(facts), *_misbehaviour(facts), *_measures(facts)]
    nothing = Paragraph("The run has no measures of a simulation, and no attackers.")
    return Chapter("simulation", "Simulation only", blocks or [nothing], _BANNER)


def _attackers(facts: PageFacts) -> Iterator[Block]:
    if facts.record.attackers:
        clients = ", ".join(map(str, facts.record.attackers.get("clients", [])))
        others = {
            k: str(v) for k, v in facts.record.attackers.items() if k not in ("format", "clients")
        }
        success = facts.summary.get("attack_success")
        met = {"target met": f"{success:.2%}"} if isinstance(success, float) else {}
        yield Facts({**others, "attacking clients": clients or "—", **met})


def _misbehaviour(facts: PageFacts) -> Iterator[Block]:
    """Yields tables of clients with outlying updates; nothing if updates were not observed."""
    stated = facts.summary.get("misbehaviour")
    if isinstance(stated, dict):
        measures = {name: each for name, each in stated.items() if isinstance(each, dict)}
        by_measure = {name: dict(_flat(each)) for name, each in measures.items()}
        yield _counts_by_measure(by_measure)
        yield from _clients_that_stood_out(facts.record.clients, list(by_measure))


def _counts_by_measure(by_measure: Mapping[str, Mapping[str, str]]) -> Block:
    """Returns a table of `by_measure`: numbers of outlying and Byzantine clients per measure."""
    counts = list(dict.fromkeys(name for each in by_measure.values() for name in each))
    return Figures(
        "Suspicious clients, by measure",
        ["measure", *(_title(name) for name in counts)],
        [
            [measure, *(each.get(name, "—") for name in counts)]
            for measure, each in by_measure.items()
        ],
        frozenset(range(1, len(counts) + 1)),
    )


def _title(name: str) -> str:
    return name.replace("_", " ").replace("byzantine", "Byzantine")


def _clients_that_stood_out(
    clients: Sequence[Mapping[str, str]], measures: Sequence[str]
) -> Iterator[Block]:
    """Yields the number of clients that any of `measures` marks, and a table of `_MOST` of them."""
    answers = [f"{name}_{answer}" for name in measures for answer in ("differs", "named")]
    unlike = [line for line in clients if any(line.get(each) == "yes" for each in answers)]
    yield Paragraph(
        f"{len(unlike)} of {len(clients)} clients differ from their cohorts, or from honest "
        f"clients, by at least one measure; the first {_MOST} are shown, and all in "
        "report/simulation_only_clients.csv. An honest client with unusual data may also differ."
    )
    if unlike:
        names = ["client", "rounds", "byzantine", *answers]
        lines = [[line.get(name) or "—" for name in names] for line in unlike[:_MOST]]
        titles = [_title(name) for name in names]
        yield Figures("Suspicious clients", titles, lines, frozenset({0, 1}), sortable=True)


def _measures(facts: PageFacts) -> Iterator[Block]:
    """Yields a table of "simulation_only" values by evaluated round; nothing if there are none."""
    stated = {line["round"]: dict(_flat(facts.simulation(line))) for line in facts.rounds}
    names = list(dict.fromkeys(name for measures in stated.values() for name in measures))
    if names:
        lines = [
            [str(round), *(measures.get(name, "—") for name in names)]
            for round, measures in stated.items()
        ]
        everything = frozenset(range(len(names) + 1))
        columns = ["round", *(name.replace("_", " ") for name in names)]
        yield Figures("Measures of the simulation by round", columns, lines, everything)


def _flat(measures: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yields (name, text) pairs; names in a nested object begin with the object's name."""
    for name, value in measures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        elif isinstance(value, int | float):
            yield before + name, rounded(float(value))
        else:
            yield before + name, "—" if value is None else str(value)
