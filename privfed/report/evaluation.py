"""What people see of a model that was scored, or fitted to each client."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.table import Table

from privfed.report.outcome import beside_constant
from privfed.report.tables import rows
from privfed.run.evaluation.evaluate_by_clients import ClientEvaluation
from privfed.trained.evaluate import Evaluation
from privfed.trained.personal_scores import CONFIDENCE, Personalised
from privfed.words import ceiling, measure


def evaluation_table(evaluation: Evaluation, predictions: Path | None) -> Table:
    """Each measure beside a constant answer's, on what, and where `predictions` were written."""
    measures, constant = evaluation.measures, evaluation.constant
    pairs = {name: beside_constant(name, measures, constant) for name in measures}
    pairs["examples"] = f"{evaluation.examples}: {evaluation.data}"
    pairs["model"] = f"{evaluation.path}, after round {evaluation.round}"
    if evaluation.note:
        pairs["note"] = evaluation.note
    if predictions:
        pairs["predictions"] = str(predictions)
    return rows(pairs)


def clients_table(evaluation: ClientEvaluation) -> Table:
    """What clients measured, each with its interval, and what it cost."""
    pairs = {
        name: f"{measure(name, estimate.value)} ({measure(name, estimate.low)} to "
        f"{measure(name, estimate.high)} at {evaluation.confidence:.0%})"
        for name, estimate in evaluation.measures.items()
    }
    held = (
        "all their examples, which they trained on"
        if evaluation.on_trained
        else "examples that they did not train on"
    )
    pairs["scored on"] = held
    pairs["ε"] = (
        f"{ceiling(evaluation.alone)} for this alone; the run has spent "
        f"{ceiling(evaluation.epsilon)} at δ = {evaluation.delta:g}"
    )
    whose = ", each client's own model" if evaluation.personal else ""
    pairs["model"] = f"{evaluation.path}{whose}, charged as round {evaluation.round}"
    if evaluation.lacks:
        pairs["note"] = evaluation.lacks
    return rows(pairs)


def personal_table(personalised: Personalised) -> Table:
    """What models of their own are worth to clients."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    over_clients = f"{personalised.measure} over {personalised.clients} clients"
    for name in (over_clients, "before", "after"):
        table.add_column(name)
    for statistic, before in personalised.before.items():
        after = personalised.after[statistic]
        table.add_row(statistic.replace("_", " "), f"{before:.4f}", f"{after:.4f}")
    intervals = personalised.intervals
    if intervals:
        change = personalised.after["mean"] - personalised.before["mean"]
        table.add_row(
            f"mean, {CONFIDENCE:.0%}", *(_span(intervals[x]) for x in ("before", "after"))
        )
        table.add_row("change", "", f"{change:+.4f} ({_span(intervals['change'])})")
    gained = f" ({_span(intervals['improved'])})" if intervals else ""
    table.add_row("improved", "", f"{100 * personalised.improved:.0f}% of clients{gained}")
    for number, line in enumerate(textwrap.wrap(personalised.note, 60)):
        table.add_row("" if number else "note", "", line)
    return table


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"
