"""The console tables on uses of a trained model: evaluation, prediction and export."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from accounting.statement import epsilon_at
from privfed.core.text import ceiling, measure, size_of
from privfed.report.outcome import with_baseline
from privfed.report.tables import rows
from privfed.run.evaluation.evaluate_by_clients import ClientEvaluation
from privfed.trained.evaluate import Evaluation
from privfed.trained.export import Exported
from privfed.trained.personalise import CONFIDENCE, Personalised
from privfed.trained.predict import Predicted


def evaluation_table(evaluation: Evaluation, predictions: Path | None) -> Table:
    """Returns a table of each metric with its baseline, and of the scored data.

    `predictions` is the file to which predictions were written; None if there is none.
    """
    measures, constant = evaluation.measures, evaluation.constant
    pairs = {name: with_baseline(name, measures, constant) for name in measures}
    pairs["examples"] = f"{evaluation.examples}: {evaluation.data}"
    pairs["model"] = f"{evaluation.path}, after round {evaluation.round}"
    if evaluation.note:
        pairs["note"] = evaluation.note
    if predictions:
        pairs["predictions"] = str(predictions)
    return rows(pairs)


def clients_table(evaluation: ClientEvaluation) -> Table:
    """Returns a table of the metrics of evaluation by clients, with intervals, and of their ε."""
    pairs = {
        name: f"{measure(name, estimate.value)} ({measure(name, estimate.low)} to "
        f"{measure(name, estimate.high)} at {evaluation.confidence:.0%})"
        for name, estimate in evaluation.measures.items()
    }
    held = (
        "all their examples, on which they also trained"
        if evaluation.on_trained
        else "examples that they did not train on"
    )
    pairs["scored on"] = held
    pairs["ε"] = (
        "∞: this run has no privacy mechanism"
        if evaluation.alone == math.inf
        else f"{ceiling(evaluation.alone)} for this evaluation alone; the run has spent ε = "
        f"{epsilon_at(evaluation.epsilon, evaluation.delta)}"
    )
    whose = ", each client's own model" if evaluation.personal else ""
    pairs["model"] = f"{evaluation.path}{whose}, charged as round {evaluation.round}"
    if evaluation.lacks:
        pairs["note"] = evaluation.lacks
    return rows(pairs)


def personal_table(personalised: Personalised) -> Table:
    """Returns a table of the scores over clients before and after personalisation."""
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


def prediction_table(predicted: Predicted) -> Table:
    """Returns a table of the number of predictions, their metrics if rows had labels, and files."""
    pairs = {name: measure(name, value) for name, value in predicted.measures.items()}
    if predicted.unscored:
        pairs["score"] = f"none: {predicted.unscored}"
    labels = "with labels" if predicted.labelled else "without labels"
    pairs["rows"] = f"{predicted.rows}, {labels}"
    pairs["columns"] = ", ".join(predicted.table)
    pairs["model"] = f"{predicted.path}, after round {predicted.round}"
    pairs |= predicted.notes
    if predicted.out:
        pairs["predictions"] = str(predicted.out)
    return rows(pairs)


def export_table(exported: Exported) -> Table:
    """Returns a table of an exported file's inputs, outputs, check and guarantee."""
    facts = exported.facts
    pairs = {
        "file": f"{exported.to}, {size_of(exported.size)}: {exported.called}",
        "model": f"{exported.path}, after round {facts['round']}",
        **_inputs(facts),
        "output": _output(facts),
        "checked": (
            f"the predictions for {exported.checked} synthetic rows differ from the run's own "
            f"by at most {exported.difference:.1g}"
        ),
        "guarantee": _guarantee(facts),
        "provenance": f"run {facts['run']}, its population, "
        f"ledger head {facts['ledger_head'][:16]}…",
    }
    if facts["lacks"]:
        pairs["lacks"] = facts["lacks"]
    if facts["note"]:
        pairs["note"] = facts["note"]
    return rows(pairs)


def _inputs(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns table rows on the exported model's inputs, with the columns of each in order.

    Without declared preprocessing, a row states only the type and shape of the source's array.
    """
    preprocessing, columns = facts["preprocessing"], {"numbers": "", "categories": ""}
    if preprocessing:
        categories = (column["column"] for column in preprocessing["categories"])
        columns["numbers"] = ", ".join(map(_number, preprocessing["numbers"]))
        columns["categories"] = ", ".join(categories)
    return {
        given["name"]: f"{_shaped(given)}: {columns.get(given['name']) or 'as the source gives it'}"
        for given in facts["inputs"]
    }


def _number(declared: Mapping[str, Any]) -> str:
    """Formats a numeric column: its name or pattern, number of columns, and unit of dates."""
    times = f" x {declared['count']}" if declared["count"] > 1 else ""
    days = " (days since 1970-01-01, UTC)" if declared["days"] else ""
    return f"{declared['column']}{times}{days}"


def _output(facts: Mapping[str, Any]) -> str:
    """Formats the exported model's output, with the names of its labels if they have names."""
    names = [repr(name) if len(name) < 2 else name for name in facts["label"]["names"]]
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return f"{facts['output']['name']}, {_shaped(facts['output'])}" + (f": {shown}" * bool(names))


def _shaped(tensor: Mapping[str, Any]) -> str:
    """Formats a tensor's type and shape."""
    return f"{tensor['dtype']} [{', '.join(map(str, tensor['shape']))}]"


def _guarantee(facts: Mapping[str, Any]) -> str:
    """Formats the guarantee of the run that trained the model."""
    epsilon = facts["epsilon"]
    bound = epsilon_at(math.inf if epsilon == "inf" else epsilon, facts["delta"])
    return f"ε = {bound}: {facts['meaning']}"
