"""The users of LEAF's JSON files, and their examples as arrays.

Users are private: messages call them by their place in a file, from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privfed.data.forms.raw import PlaceOf
from privfed.data.sources.text import decoded
from privfed.errors import Refused


@dataclass(frozen=True)
class LeafUser:
    """A user's examples, and its `place`: which of a file's users it is."""

    name: str
    place: str
    x: list[Any]
    y: list[Any]


def read_users(folder: Path) -> list[LeafUser]:
    """All users in order of their names.

    Raises `Refused` for files of another form, and for a user that stands in two of them.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise Refused(f"data.path: {folder} holds no .json file; expected LEAF's folders")
    users: dict[str, LeafUser] = {}
    for file in files:
        for user in _users_of(file):
            if user.name in users:
                raise Refused(
                    f"data.path: {user.place} was in another file already: "
                    f"{users[user.name].place}; expected each user once",
                    private=f"the user is {user.name!r}",
                )
            users[user.name] = user
    return [users[name] for name in sorted(users)]


def place_of(users: Sequence[LeafUser], owners: np.ndarray, index: int) -> str:
    """The place of the example `index`, of those whose `owners` `[N]` are sorted."""
    owner = int(owners[index])
    return f"{users[owner].place}, example {index - np.searchsorted(owners, owner) + 1}"


def _users_of(file: Path) -> Iterator[LeafUser]:
    """The users of one file. Raises `Refused` for what is not LEAF's form."""
    try:
        document = json.loads(decoded(file, "data.path"))
    except (ValueError, RecursionError) as error:
        at = ""
        if isinstance(error, json.JSONDecodeError):
            at = f", line {error.lineno}, column {error.colno}"
        raise Refused(
            f"data.path: {file}{at}: it is not valid JSON; expected LEAF's form", private=str(error)
        ) from None
    data = document.get("user_data") if isinstance(document, dict) else None
    if not isinstance(data, dict):
        raise Refused(
            f"data.path: {file} has no object 'user_data'; expected LEAF's form, "
            '{"users": […], "user_data": {user: {"x": […], "y": […]}}}'
        )
    for number, (user, held) in enumerate(data.items(), start=1):
        x, y = (held.get(key) if isinstance(held, dict) else None for key in "xy")
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise Refused(
                f"data.path: {file}, user {number}: expected lists x and y of one length",
                private=f"the user is {user!r}",
            )
        yield LeafUser(user, f"{file}, user {number}", x, y)


def feature_array(xs: list[Any], place: PlaceOf) -> np.ndarray:
    """The numbers of all examples, float64 `[N, features]`.

    Raises `Refused` where one is no list of as many finite numbers as the first.
    """
    try:
        x = np.array(xs, dtype=np.float64).reshape(len(xs), -1)
    except (TypeError, ValueError, OverflowError) as error:
        usual = _shape(xs[0])
        wrong = (n for n, x in enumerate(xs) if usual is None or _shape(x) != usual)
        raise Refused(
            f"data.path: {place(next(wrong, 0))}: x is not a list of as many numbers as the first; "
            "for text set data.text = true",
            private=str(error),
        ) from None
    finite = np.isfinite(x).all(1)
    if not finite.all():
        raise Refused(
            f"data.path: {place(int(finite.argmin()))}: x holds a number that is not finite"
        )
    return x


def _shape(x: Any) -> tuple[int, ...] | None:
    """The shape of an example's numbers; None where it is not of numbers."""
    try:
        return np.array(x, dtype=np.float64).shape
    except (TypeError, ValueError, OverflowError):
        return None


def class_array(ys: list[Any], classes: int, place: PlaceOf) -> np.ndarray:
    """The classes of all examples, int64 `[N]`. Raises `Refused` for a label that is no class."""
    for index, label in enumerate(ys):
        if not (isinstance(label, int | float) and 0 <= label < classes and label == int(label)):
            raise Refused(
                f"data.classes is {classes}, but the label of {place(index)} is no class; expected "
                f"whole numbers from 0 to {classes - 1}",
                private=f"it is {str(label)[:40]!r}",
            )
    return np.array(ys, dtype=np.int64)


def text_in(x: Any, field: int, place: PlaceOf, index: int) -> str:
    """The text of the example `index`: x itself, or where that is a list, its `field` from 0.

    Raises `Refused` where there is none.
    """
    held = x if field < 0 else x[field] if isinstance(x, list) and field < len(x) else None
    if not isinstance(held, str):
        raise Refused(
            f"data.field is {field}, but in {place(index)} there is no text; expected the place of "
            "the text in x (4 in Sent140), or -1 where x is the text",
            private=f"x is {x!r}",
        )
    return held
