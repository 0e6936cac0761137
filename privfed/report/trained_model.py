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
    """What a model says of a table: its scores where labels are there, and where answers went."""
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
    """What a file takes and gives, how it was checked, and what it guarantees."""
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
    if facts["lacks"]:
        pairs["lacks"] = facts["lacks"]
    if facts["note"]:
        pairs["note"] = facts["note"]
    return rows(pairs)


def _inputs(facts: Mapping[str, Any]) -> dict[str, str]:
    """Each input, and the columns that it holds, in order."""
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
    """A column of numbers: how many a pattern stands for, and what is counted of dates."""
    times = f" x {declared['count']}" if declared["count"] > 1 else ""
    days = " (days since 1970-01-01, UTC)" if declared["days"] else ""
    return f"{declared['column']}{times}{days}"


def _output(facts: Mapping[str, Any]) -> str:
    """The output, and which labels it is about."""
    names = [repr(name) if len(name) < 2 else name for name in facts["label"]["names"]]
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return f"{facts['output']['name']}, {_shaped(facts['output'])}" + (f": {shown}" * bool(names))


def _shaped(tensor: Mapping[str, Any]) -> str:
    """A tensor's type and shape."""
    return f"{tensor['dtype']} [{', '.join(map(str, tensor['shape']))}]"


def _guarantee(facts: Mapping[str, Any]) -> str:
    """The guarantee of the run that trained the model."""
    epsilon = facts["epsilon"]
    bound = "∞" if epsilon == "inf" else ceiling(epsilon)
    return f"ε = {bound} at δ = {facts['delta']:g}: {facts['meaning']}"
