"""A declaration as a run file: what was read off a public sample, and why each column is so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import tomli_w

from privfed.data.declaring.kinds import Days, Kind, LeftOut, Numbers, Values
from privfed.data.declaring.labels import Target
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.missing import NO_CATEGORY

_COMMENT = 34
"""Where comments begin, if the line is not longer."""


@dataclass(frozen=True)
class Declared:
    """What was read off a sample: each column's kind, the label, and how the file is written."""

    path: str
    client: str
    label: str
    target: Target
    kinds: Mapping[str, Kind]
    dialect: Dialect
    clients: int = 0
    """How many different clients the sample has."""

    def section(self) -> dict[str, Any]:
        """The keys of [data] that a table has."""
        dialect = self.dialect
        form = {"delimiter": dialect.delimiter, "encoding": dialect.encoding}
        form |= {"decimal": dialect.decimal}
        scalars = {"path": self.path, "client": self.client, "label": self.label, **form}
        tables = {name: dict(rows) for name, rows in self.tables().items()}
        return {**scalars, **self.target.declared, "missing_words": self.odd_words(), **tables}

    def tables(self) -> dict[str, list[tuple[str, Any]]]:
        """The subsections of [data], each a list of columns with what is declared of them."""
        found: dict[str, list[tuple[str, Any]]] = {}
        for name, column in self.kinds.items():
            key = self.key(name)
            match column:
                case Numbers():
                    found.setdefault("features", []).append((key, list(column.bounds)))
                case Days():
                    dates = {"first": column.first, "last": column.last, "format": column.format}
                    found.setdefault("dates", []).append((key, dates))
                case Values():
                    found.setdefault("categories", []).append((key, column.values))
            if (empty := _empty(column)) is not None:
                found.setdefault("missing", []).append((key, empty))
        order = ("features", "dates", "categories", "missing")
        return {name: found[name] for name in order if name in found}

    def key(self, name: str) -> str:
        """How a column is declared: a feature's name is a pattern, and has to mean it alone."""
        pattern, taken = escape(name), {*self.kinds, self.label, self.client}
        return pattern if isinstance(self.kinds[name], Numbers) and pattern not in taken else name

    def odd_words(self) -> list[str]:
        """The words that count as empty, whichever column they stand in."""
        mixed = [column for column in self.kinds.values() if isinstance(column, Numbers | Days)]
        return sorted({word for column in mixed for word in column.odd_words})


def _empty(column: Kind) -> float | str | None:
    """What an empty cell counts as; None where there is none."""
    if isinstance(column, Numbers | Days):
        return column.missing
    return NO_CATEGORY if isinstance(column, Values) and column.may_be_empty else None


def written(sample: Path, declared: Declared) -> str:
    """The run file: the section with a reason at each line, and what its user has to fill in."""
    lines = [
        f"# Read off {_plain(sample.name)}, a public sample. Check every bound and value before",
        "# you train: what private data hold beyond them is clipped, or counts as no category.",
        "# Leave out what is not known yet when the label is to be predicted.",
        *left_out(declared),
        "",
        "format = 1",
        "",
        *_data(declared),
        "",
        "[model]",
        f"loss = {_value(declared.target.loss)}",
        "",
        "[cohort]",
        _line("size", 0, "required: how many clients a round asks, expected"),
        "",
        "[privacy]",
        "epsilon = 4.0",
        _line("delta", 1e-4, "below 1 / clients"),
    ]
    return "\n".join(lines) + "\n"


def left_out(declared: Declared) -> list[str]:
    """Every column that a model will not see, and how to show it nevertheless."""
    lines = []
    for name, column in declared.kinds.items():
        if isinstance(column, LeftOut):
            anyway = f" (else, in features: {_value(list(column.bounds))})" if column.bounds else ""
            lines.append(f"#   {_plain(_key(name))}: {_plain(column.why)}{anyway}")
    return ["#", "# Left out:", *lines] if lines else []


def _data(declared: Declared) -> list[str]:
    dialect, label = declared.dialect, declared.target
    lines = ["[data]", 'source = "table"', _line("path", declared.path)]
    if declared.client:
        why = f"whose a row is: the unit of privacy; {declared.clients} in the sample"
        lines.append(_line("client", declared.client, why))
    else:
        lines.append(_line("partition", "iid", "rows are dealt to made-up clients: a simulation"))
    if dialect.delimiter != ",":
        lines.append(_line("delimiter", dialect.delimiter))
    if dialect.decimal != ".":
        lines.append(_line("decimal", dialect.decimal))
    if dialect.encoding != "utf-8":
        why = "the sample is not UTF-8, and can be read so: look at its accents"
        lines.append(_line("encoding", dialect.encoding, why))
    lines.append(_line("label", declared.label, label.why))
    lines += [_line(key, value) for key, value in label.declared.items()]
    if words := declared.odd_words():
        lines.append(_line("missing_words", words, "empty too, but where they are declared"))
    lines.append(_line("clients", 0, "required: about how many there are, a public constant"))
    if declared.client:
        lines.append(_line("holdout", "clients", 'or test_path = "a public table.csv"'))
        lines.append(_line("population", _people(declared.path)))
    for name, rows in declared.tables().items():
        lines += ["", f"[data.{name}]"]
        whys = (
            {} if name == "missing" else {declared.key(n): c.why for n, c in declared.kinds.items()}
        )
        lines += [_line(key, value, whys.get(key, "")) for key, value in rows]
    return lines


def _line(key: str, value: Any, why: str = "") -> str:
    line = f"{_key(key)} = {_value(value)}"
    return f"{line.ljust(_COMMENT)} # {_plain(why)}" if why else line


def _key(key: str) -> str:
    """As TOML writes it: quoted where it has to be."""
    return tomli_w.dumps({key: 0}).rsplit(" = ", 1)[0]


def _value(value: Any) -> str:
    """As TOML writes it, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return tomli_w.dumps({"key": value}).split(" = ", 1)[1].rstrip("\n")


def _plain(text: str) -> str:
    """What a comment may hold: one line, without what a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _people(path: str) -> str:
    """What to call the people of a table, for runs that count together."""
    return "".join(c for c in Path(path).stem if c.isalnum() or c in "-_ ") or "people"
