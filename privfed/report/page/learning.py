"""The chapter of a page on results: metrics by round with the baseline, and aborted rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from privfed.report.outcome import with_baseline
from privfed.report.page.blocks import Block, Chapter, Facts, Figures, Paragraph, Picture
from privfed.report.page.drawing import Axes, Line, lines_picture
from privfed.report.page.run_facts import PageFacts
from privfed.report.plan_training import objective_rows
from privfed.run.evaluation.charged_measures import PREFIX


def learning_chapter(facts: PageFacts) -> Chapter:
    """Returns the page's chapter with the results of the run, and a picture of each metric."""
    blocks: list[Block] = [Facts(_rows(facts)) if facts.summary else Paragraph(_NOT_ENDED)]
    blocks += [picture for name in facts.measures if (picture := _picture(name, facts))]
    worst = [name for name in facts.group_measures if name.startswith("worst_group_")]
    blocks += [picture for name in worst if (picture := _picture(name, facts))]
    blocks += [picture for name in _charged(facts) if (picture := _clients_picture(name, facts))]
    if facts.record.aborts:
        blocks.append(_aborts(facts.record.aborts))
    return Chapter("learning", "Results", blocks)


_NOT_ENDED = "The run has not ended: these are its metrics up to now."


def _rows(facts: PageFacts) -> dict[str, str]:
    summary = facts.summary
    constant: Mapping[str, float] = summary.get("constant") or {}
    named = (*facts.measures, *facts.group_measures)
    measures = {name: summary[name] for name in named if name in summary}
    scores = {name: with_baseline(name, measures, constant) for name in measures}
    rounds = f"{summary.get('rounds')} changed the model, {summary.get('charges')} were charged"
    if summary.get("evaluations"):
        rounds += f", {summary['evaluations']} evaluated by clients"
    if summary.get("aborted"):
        rounds += f", {summary['aborted']} aborted"
    if summary.get("stopped_at_budget"):
        rounds += "; stopped at the budget"
    if summary.get("stopped_early"):
        rounds += "; stopped early"
    scored = {"scored on": _scored_on(summary), **_of_what_is_shared(facts)}
    about = objective_rows(facts.config) if facts.config else {}
    return {**scores, **scored, "rounds": rounds, **about, **_warning(summary)}


def _of_what_is_shared(facts: PageFacts) -> dict[str, str]:
    """Returns a table row that names the evaluated model; empty unless clients keep a part."""
    if not (facts.config and facts.config.start.local):
        return {}
    return {"model": "the shared part, with the initial local part of a new client"}


def _scored_on(summary: Mapping[str, Any]) -> str:
    if summary.get("public_clients"):
        return f"{summary.get('test_examples')} examples of clients declared public"
    if summary.get("test_shared"):
        return f"{summary.get('test_examples')} examples of clients that train: a simulation"
    return f"{summary.get('test_examples')} public test examples"


def _warning(summary: Mapping[str, Any]) -> dict[str, str]:
    return {"warning": summary["not_learned"]} if summary.get("not_learned") else {}


def _picture(name: str, facts: PageFacts) -> Picture | None:
    """Draws a metric by round, with the baseline."""
    constant = (facts.summary.get("constant") or {}).get(name)
    points = [(line["round"], line[name]) for line in facts.rounds if _is_number(line.get(name))]
    level = None if constant is None else ("baseline", float(constant))
    title = f"{name.capitalize()} by round"
    place = [*facts.measures, *facts.group_measures].index(name)
    return lines_picture(
        f"measure-{place}", title, Axes("round", name, level=level), [Line(name, points)]
    )


def _charged(facts: PageFacts) -> list[str]:
    """Returns the names of the metrics of evaluation by clients: those with an interval."""
    named = (key for line in facts.rounds for key in line if f"{key}_low" in line)
    return list(dict.fromkeys(named))


def _clients_picture(name: str, facts: PageFacts) -> Picture | None:
    """Draws a metric of evaluation by clients, with the ends of its interval."""
    labels = {name: "estimate", f"{name}_low": "low", f"{name}_high": "high"}
    lines = [
        Line(label, [(line["round"], line[key]) for line in facts.rounds if key in line])
        for key, label in labels.items()
    ]
    title = name.removeprefix(PREFIX)
    return lines_picture(
        f"clients-{_charged(facts).index(name)}",
        f"{title.capitalize()} by round, from charged evaluations by clients",
        Axes("round", title),
        lines,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _aborts(aborts: Mapping[int, str]) -> Figures:
    """Returns the table of rounds whose secure sum aborted, by reason."""
    counts = Counter(aborts.values())
    rounds = {why: [str(r) for r, reason in aborts.items() if reason == why] for why in counts}
    lines = [[why, str(count), ", ".join(rounds[why])] for why, count in counts.most_common()]
    return Figures(
        "Aborted rounds, which were charged", ["reason", "count", "rounds"], lines, frozenset({1})
    )
