"""The declaration inferred from a public sample, and its text as a run file with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from privfed.core.errors import Refused
from privfed.data.declaring.columns import (
    MOST_CATEGORIES,
    CategoryColumn,
    ColumnKind,
    DateColumn,
    LeftOutColumn,
    NumericColumn,
    rounded_range,
)
from privfed.data.tables.cells import Words
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.missing import NO_CATEGORY

_MOST_CLASSES = 1000


@dataclass(frozen=True)
class LabelKind:
    """A label's declaration: key of [data] -> value, the name of a loss for it, and the reason."""

    declared: dict[str, Any]
    loss: str
    why: str


def label_kind(column: np.ndarray | Words | str, where: str) -> LabelKind:
    """Infers a label's declaration: classes for words and for integers 0 to 19, else a number.

    Args:
      column: the label's column: numbers `[N]`, words, or the name of another type.
      where: the beginning of messages, which names the table.

    Raises:
      Refused: for arrays or another type, an empty cell, or no finite number; or if all words are
        equal, more than 1000 are different, or over 20 rows all have different words.
    """
    if isinstance(column, str) or (isinstance(column, np.ndarray) and column.ndim > 1):
        raise Refused(
            f"{where}: the label is neither one number nor one word per row; name another column"
        )
    if isinstance(column, Words):
        return _classes_by_name(column, where)
    numbers = column.astype(np.float64)
    _refuse_empty(np.isnan(numbers), where)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        raise Refused(f"{where}: the label holds no finite number; name another column")
    integral = len(finite) == len(numbers) and (numbers == np.floor(numbers)).all()
    if integral and numbers.min() >= 0 and numbers.max() < MOST_CATEGORIES:
        classes = max(int(numbers.max()) + 1, 2)
        return LabelKind(
            {"classes": classes},
            _classification_loss(classes),
            f"integers, 0 to {classes - 1}",
        )
    low, high = rounded_range(finite)
    why = f"numbers from {finite.min():g} to {finite.max():g}, to predict; clipped to the bounds"
    return LabelKind({"label_bounds": [low, high]}, "squared_error", why)


def _classes_by_name(words: Words, where: str) -> LabelKind:
    _refuse_empty(words.codes < 0, where)
    values = sorted(words.values)
    if len(values) < 2:
        raise Refused(
            f"{where}: the label is the same in every row, so there is nothing to learn; name "
            "another column"
        )
    if len(values) > _MOST_CLASSES or len(values) == len(words.codes) > MOST_CATEGORIES:
        raise Refused(
            f"{where}: the label has {len(values)} different words in {len(words.codes)} rows, "
            "which are too many classes; name a column of classes or of numbers"
        )
    return LabelKind(
        {"labels": values}, _classification_loss(len(values)), f"{len(values)} classes by name"
    )


def _refuse_empty(empty: np.ndarray, where: str) -> None:
    if empty.any():
        raise Refused(
            f"{where}, row {int(empty.argmax()) + 1}: the label is empty; leave out rows without "
            f"a label ({int(empty.sum())} of {len(empty)})"
        )


def _classification_loss(classes: int) -> str:
    return "binary_cross_entropy" if classes == 2 else "cross_entropy"


_COMMENT = 34
"""Column in which comments begin, unless the line is longer."""


@dataclass(frozen=True)
class SampleSites:
    """The sites in a public sample of a table.

    Attributes:
      column: name of the sites' column.
      count: number of sites in the sample.
      per_client: largest number of sites of one client in the sample.
    """

    column: str
    count: int
    per_client: int


@dataclass(frozen=True)
class Declaration:
    """The declaration of a table: every column's declaration, the label, and the file's dialect."""

    path: str
    client: str
    label: str
    label_kind: LabelKind
    kinds: Mapping[str, ColumnKind]
    dialect: Dialect
    clients: int = 0
    """Number of distinct clients in the sample."""
    sites: SampleSites | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    """Values of [data] from statistics that were released privately; empty for a sample."""

    def section(self) -> dict[str, Any]:
        """Returns the section [data] of a run file, by key."""
        dialect = self.dialect
        form = {"delimiter": dialect.delimiter, "encoding": dialect.encoding}
        form |= {"decimal": dialect.decimal}
        site = {"site": self.sites.column} if self.sites else {}
        scalars = {"path": self.path, "client": self.client, **site, "label": self.label, **form}
        tables = {name: dict(rows) for name, rows in self.tables().items()}
        return {
            **scalars,
            **self.label_kind.declared,
            "missing_words": self.missing_words(),
            **tables,
        }

    def tables(self) -> dict[str, list[tuple[str, Any]]]:
        """Returns subsection of [data] -> pairs (column's key, value), without empty ones."""
        tables: dict[str, list[tuple[str, Any]]] = {}
        for name, column in self.kinds.items():
            key = self.key(name)
            match column:
                case NumericColumn():
                    tables.setdefault("features", []).append((key, list(column.bounds)))
                case DateColumn():
                    dates = {"first": column.first, "last": column.last, "format": column.format}
                    tables.setdefault("dates", []).append((key, dates))
                case CategoryColumn():
                    tables.setdefault("categories", []).append((key, column.values))
            if (empty := _empty(column)) is not None:
                tables.setdefault("missing", []).append((key, empty))
        order = ("features", "dates", "categories", "missing")
        return {name: tables[name] for name in order if name in tables}

    def key(self, name: str) -> str:
        """Returns the key of column `name`: for numbers, `name` as an escaped pattern; else `name`.

        It is `name` also if another column has that pattern as its name.
        """
        pattern = escape(name)
        alone = isinstance(self.kinds[name], NumericColumn) and pattern not in self._taken
        return pattern if alone else name

    @cached_property
    def _taken(self) -> frozenset[str]:
        site = {self.sites.column} if self.sites else set()
        return frozenset({*self.kinds, self.label, self.client, *site})

    def missing_words(self) -> list[str]:
        """Returns the words that count as empty cells in some column, sorted."""
        mixed = [
            column
            for column in self.kinds.values()
            if isinstance(column, NumericColumn | DateColumn)
        ]
        return sorted({word for column in mixed for word in column.missing_words})


def _empty(column: ColumnKind) -> float | str | None:
    """Returns the replacement of an empty cell of `column`; None if the declaration has none."""
    if isinstance(column, NumericColumn | DateColumn):
        return column.missing
    return NO_CATEGORY if isinstance(column, CategoryColumn) and column.may_be_empty else None


def run_file(sample: str, declared: Declaration) -> str:
    """Returns a run file: [data] with reasons, and placeholders; a comment names the `sample`."""
    lines = [
        f"# Inferred from {_plain(sample)}, a public sample. Check every bound and value before",
        "# you train: private values beyond them are clipped, or count as no category.",
        "# Leave out columns that are unknown when the label is to be predicted.",
    ]
    return declared_run(lines, declared, {})


def declared_run(
    header: Sequence[str], declared: Declaration, before: Mapping[str, Mapping[str, Any]]
) -> str:
    """Returns the text of a run file: [data] as declared, and placeholders to fill in.

    Args:
      header: comments at the top of the file.
      declared: the declaration.
      before: known values of [run], [cohort], [privacy] and [secure], by section and key.
    """
    known = declared.known.get("clients")
    known_clients = f", out of {known}" if known else ""
    lines = [
        *header,
        *left_out_comments(declared),
        "",
        "format = 1",
        *_section("run", before.get("run", {})),
        "",
        *_data_section(declared),
        "",
        "[model]",
        f"loss = {_value(declared.label_kind.loss)}",
        "",
        "[cohort]",
        *(
            [_line(key, value) for key, value in before.get("cohort", {}).items()]
            or [_line("size", 0, f"required: expected clients per round{known_clients}")]
        ),
        *_section("privacy", {"epsilon": 4.0, "delta": 1e-4, **before.get("privacy", {})}),
        *_section("secure", before.get("secure", {})),
    ]
    return "\n".join(lines) + "\n"


def _section(name: str, keys: Mapping[str, Any]) -> list[str]:
    """Returns a blank line, the header [`name`] and a line for each of `keys`; [] without keys."""
    whys = {"delta": "below 1 / clients"}
    lines = [_line(key, value, whys.get(key, "")) for key, value in keys.items()]
    return ["", f"[{name}]", *lines] if lines else []


def left_out_comments(declared: Declaration) -> list[str]:
    """Returns comment lines on left-out columns, and on how to declare them anyway; [] if none."""
    lines = []
    for name, column in declared.kinds.items():
        if isinstance(column, LeftOutColumn):
            bounds = _value(list(column.bounds)) if column.bounds else ""
            anyway = f" (to use it, in features: {bounds})" if bounds else ""
            lines.append(f"#   {_plain(_key(name))}: {_plain(column.why)}{anyway}")
    return ["#", "# Left out:", *lines] if lines else []


def _data_section(declared: Declaration) -> list[str]:
    dialect, label = declared.dialect, declared.label_kind
    lines = ["[data]"]
    lines += ['source = "table"', _line("path", declared.path)] if declared.path else []
    if declared.client:
        counted = f"; {declared.clients} in the sample" if declared.clients else ""
        why = f"the owner of each row: the unit of privacy{counted}"
        lines.append(_line("client", declared.client, why))
    else:
        lines.append(
            _line("partition", "iid", "a simulation: rows are assigned to synthetic clients")
        )
    if declared.sites:
        lines.append(_line("site", declared.sites.column, "the site of each row"))
    if dialect.delimiter != ",":
        lines.append(_line("delimiter", dialect.delimiter))
    if dialect.decimal != ".":
        lines.append(_line("decimal", dialect.decimal))
    if dialect.encoding != "utf-8":
        why = "inferred, since the sample is not UTF-8: check accented letters"
        lines.append(_line("encoding", dialect.encoding, why))
    lines.append(_line("label", declared.label, label.why))
    lines += [_line(key, value) for key, value in label.declared.items()]
    if words := declared.missing_words():
        lines.append(_line("missing_words", words, "also count as empty, except where declared"))
    lines += _client_count(declared)
    for name, rows in declared.tables().items():
        lines += ["", f"[data.{name}]"]
        whys = (
            {} if name == "missing" else {declared.key(n): c.why for n, c in declared.kinds.items()}
        )
        lines += [_line(key, value, whys.get(key, "")) for key, value in rows]
    return lines


def _client_count(declared: Declaration) -> list[str]:
    """Returns lines for the known keys (else clients, holdout and population), and for sites."""
    sites = _site_counts(declared.sites) if declared.sites else []
    if declared.known:
        return [_line(key, value) for key, value in declared.known.items()] + sites
    lines = [_line("clients", 0, "required: approximate number, a public constant"), *sites]
    if declared.client:
        lines.append(_line("holdout", "clients", 'or test_path = "a public table.csv"'))
        if declared.path:
            lines.append(_line("population", _population_name(declared.path)))
    return lines


def _site_counts(sites: SampleSites) -> list[str]:
    """Returns lines that declare the sample's numbers of sites and of sites per client."""
    lines = [_line("sites", sites.count, "number of sites, a public constant: as in the sample")]
    if sites.per_client > 1:
        why = "largest number of sites per client: as in the sample"
        lines.append(_line("sites_per_client", sites.per_client, why))
    return lines


def _line(key: str, value: Any, why: str = "") -> str:
    line = f"{_key(key)} = {_value(value)}"
    return f"{line.ljust(_COMMENT)} # {_plain(why)}" if why else line


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).rsplit(" = ", 1)[0]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return tomli_w.dumps({"key": value}).split(" = ", 1)[1].rstrip("\n")


def _plain(text: str) -> str:
    """Returns `text` as a comment: one line, without control characters of a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _population_name(path: str) -> str:
    """Returns `path`'s stem as a population's name; ε composes over runs with the same name."""
    return "".join(c for c in Path(path).stem if c.isalnum() or c in "-_ ") or "people"
