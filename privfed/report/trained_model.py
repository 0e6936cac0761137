"""What people see of a trained model's use: what was predicted, and what was exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from privfed.report.tables import rows
from privfed.trained.export import Exported
from privfed.trained.predict import Predicted
from privfed.words import ceiling, measure, size_of


def prediction_table(predicted: Predicted) -> Table:
    pairs = {name: measure(name, value) for name, value in predicted.measures.items()}
    if predicted.unscored:
        pairs["score"] = f"none: {predicted.unscored}"
    labels = "with labels" if predicted.labelled else "without labels"
    pairs["rows"] = f"{predicted.rows}, {labels}"
    pairs["columns"] = ", ".join(predicted.table)
    pairs["model"] = f"{predicted.path}, after round {predicted.round}"
    for number, note in enumerate(predicted.notes):
        pairs["note" if not number else "order"] = note
    if predicted.out:
        pairs["predictions"] = str(predicted.out)
    return rows(pairs)


def export_table(exported: Exported) -> Table:
    facts = exported.facts
    pairs = {
        "file": f"{exported.to}, {size_of(exported.size)}: {exported.called}",
        "model": f"{exported.path}, after round {facts['round']}",
        **_inputs(facts),
        "output": _output(facts),
        "checked": (
            f"{exported.checked} made-up rows give the run's own predictions, at most "
            f"{exported.difference:.1g} off"
        ),
        "guarantee": _guarantee(facts),
        "carries": f"run {facts['run']}, its population, ledger head {facts['ledger_head'][:16]}…",
    }
    if facts["note"]:
        pairs["note"] = facts["note"]
    return rows(pairs)


def _inputs(facts: Mapping[str, Any]) -> dict[str, str]:
    """Each input, and the columns that it holds, in order."""
    how, held = facts["preprocessing"], {"numbers": "", "categories": ""}
    if how:
        named = (each["column"] for each in how["categories"])
        held["numbers"] = ", ".join(map(_number, how["numbers"]))
        held["categories"] = ", ".join(named)
    return {
        each["name"]: f"{_shaped(each)}: {held.get(each['name']) or 'as the source gives it'}"
        for each in facts["inputs"]
    }


def _number(declared: Mapping[str, Any]) -> str:
    """A column of numbers; of a pattern, how many; of dates, what is counted."""
    times = f" x {declared['count']}" if declared["count"] > 1 else ""
    days = " (days since 1970-01-01, UTC)" if declared["days"] else ""
    return f"{declared['column']}{times}{days}"


def _output(facts: Mapping[str, Any]) -> str:
    names = [repr(name) if len(name) < 2 else name for name in facts["label"]["names"]]
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return f"{facts['output']['name']}, {_shaped(facts['output'])}" + (f": {shown}" * bool(names))


def _shaped(what: Mapping[str, Any]) -> str:
    return f"{what['dtype']} [{', '.join(map(str, what['shape']))}]"


def _guarantee(facts: Mapping[str, Any]) -> str:
    epsilon = facts["epsilon"]
    bound = "∞" if epsilon == "inf" else ceiling(epsilon)
    return f"ε = {bound} at δ = {facts['delta']:g}: {facts['meaning']}"
