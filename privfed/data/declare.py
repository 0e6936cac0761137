"""The [data] section of a run file, written from a public sample of a table.

Ranges, categories and classes are read off the sample, which must be public: read off private data
they would be a release of their own. What the sample does not show, its user corrects by hand.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from pydantic import ValidationError

from privfed.data.columns import Words, header, read
from privfed.data.table import Table
from privfed.errors import Refused

_MOST_CATEGORIES = 20
_ARRAY = re.compile(r"\[\n((?: {4}.*,\n)+)\]")


def declare(sample: Path, label: str, client: str, path: str, delimiter: str) -> str:
    """TOML: a [data] section for tables like `sample`, and the loss that suits its label.

    Numeric columns become features, bounded by the sample's range rounded outwards; columns of up
    to 20 words become categories. A label of words or of two to 20 whole numbers from 0 is a class,
    any other number is to be predicted. Raises `Refused`.
    """
    if len(delimiter) != 1:
        raise Refused(f"--delimiter is {delimiter!r}; expected one character (a tab is $'\\t')")
    if label == client:
        raise Refused(f"--label and --client are both {label!r}; a client is not what to predict")
    names = header(sample, delimiter)
    for key, name in (("--label", label), ("--client", client)):
        if name and name not in names:
            raise Refused(
                f"{key}: {sample} has no column {name!r}; expected one of the {len(names)} that "
                "its first row names",
                private=f"its columns are {names}",
            )
    features: dict[str, list[float]] = {}
    categories: dict[str, list[str]] = {}
    skipped: list[str] = []
    for name in names:
        if name in (label, client):
            continue
        column = _column(sample, name, delimiter)
        if isinstance(column, Words):
            values = sorted(value for value in column.values if value)
            if 0 < len(values) <= _MOST_CATEGORIES:
                categories[name] = values
            else:
                skipped.append(name)
        elif np.isfinite(column).any():
            features[name] = _outwards(column[np.isfinite(column)])
        else:
            skipped.append(name)
    target, loss = _label(_column(sample, label, delimiter))
    section: dict[str, Any] = {"source": "table", "path": path}
    section |= {"client": client} if client else {"partition": "iid"}
    section |= {"delimiter": delimiter} if delimiter != "," else {}
    section |= {"label": label, **target, "features": features}
    section |= {"categories": categories} if categories else {}
    _refuse_nothing(section)
    return _written(sample, section, loss, skipped)


def _refuse_nothing(section: dict[str, Any]) -> None:
    try:
        known = {key: value for key, value in section.items() if key in Table.model_fields}
        Table.model_validate(known)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused("this sample makes no table to learn from", private=said) from None


def _column(sample: Path, name: str, delimiter: str) -> np.ndarray | Words:
    """Numbers where every cell is one, else words."""
    try:
        numbers = read(sample, {name: "here"}, {}, delimiter).numbers[name]
    except Refused:
        try:
            return read(sample, {}, {name: "here"}, delimiter).words[name]
        except Refused:
            return np.empty(0)  # of a type that is neither
    if numbers.ndim > 1:
        numbers = numbers.reshape(-1)
    return numbers.astype(np.float64)


def _outwards(numbers: np.ndarray) -> list[float]:
    """The range, rounded outwards to two digits of its width."""
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return [low - 1, high + 1]
    unit = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    return [_plain(math.floor(low / unit) * unit), _plain(math.ceil(high / unit) * unit)]


def _plain(value: float) -> float:
    return float(f"{value:.12g}")


def _label(column: np.ndarray | Words) -> tuple[dict[str, Any], str]:
    if isinstance(column, Words):
        values = sorted(value for value in column.values if value)
        return {"labels": values}, _classes_loss(len(values))
    whole = column[np.isfinite(column)]
    top = int(whole.max(initial=0)) + 1
    if (whole == np.floor(whole)).all() and whole.min(initial=0) >= 0 and top <= _MOST_CATEGORIES:
        return {"classes": max(top, 2)}, _classes_loss(top)
    return {"label_bounds": _outwards(whole)}, "squared_error"


def _classes_loss(classes: int) -> str:
    return "binary_cross_entropy" if classes == 2 else "cross_entropy"


def _on_one_line(array: re.Match[str]) -> str:
    return f"[{', '.join(line.strip().rstrip(',') for line in array[1].splitlines())}]"


def _written(sample: Path, section: dict[str, Any], loss: str, skipped: list[str]) -> str:
    lines = [
        f"# Read off {sample.name}, a public sample. Check every bound and value before you train:",
        "# what private data hold beyond them is clipped, or counts as no category. Leave out what",
        "# is not known yet when the label is to be predicted.",
    ]
    if skipped:
        lines.append(f"# Left out (empty, or of too many different words): {', '.join(skipped)}")
    data = _ARRAY.sub(_on_one_line, tomli_w.dumps({"data": section})).strip().splitlines()
    at = next((n for n, line in enumerate(data) if line.startswith("[data.")), len(data))
    needed = [
        "clients = 0                 # required: about how many there are, a public constant",
    ]
    if "client" in section:
        needed.append('holdout = "clients"         # or test_path = "a public table.csv"')
        needed.append(f'population = "{_name(section["path"])}"')
    data[at:at] = needed + ([""] if at < len(data) else [])
    end = [
        "[model]",
        f'loss = "{loss}"',
        "",
        "[cohort]",
        "size = 0                    # required: how many clients a round asks, expected",
        "",
        "[privacy]",
        "epsilon = 4.0",
        "delta = 1e-4                # below 1 / clients",
    ]
    text = "\n".join([*lines, "", "format = 1", "", *data, "", *end])
    return "\n".join(line for n, line in enumerate(text.splitlines()) if line or n) + "\n"


def _name(path: str) -> str:
    """What to call the people of a table, for runs that count together."""
    return "".join(c for c in Path(path).stem if c.isalnum() or c in "-_ ") or "people"
