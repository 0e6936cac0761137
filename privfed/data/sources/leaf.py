"""LEAF's JSON folders (Caldas et al. 2018), in which each user has a list x and a list y.

Users are private: messages refer to them by their index in a file, from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.forms.arrays import PlaceOf, RawExamples
from privfed.data.forms.labels import ClassForm, refuse_no_classes
from privfed.data.forms.texts import TextForm, tokens_of
from privfed.data.preprocessing import Preprocessing
from privfed.data.sources.text import PRINTABLE, Characters, decoded


@dataclass(frozen=True)
class LeafUser:
    """A user's lists x and y, and `place`, for messages: the file, and the user's index in it."""

    name: str
    place: str
    x: list[Any]
    y: list[Any]


def read_users(folder: Path) -> list[LeafUser]:
    """Returns all users in the JSON files of `folder`, sorted by name.

    Raises:
      Refused: if there is no file, a file has another format, or a user occurs twice.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise Refused(f"data.path: {folder} holds no .json file; expected LEAF's folders")
    users: dict[str, LeafUser] = {}
    for file in files:
        for user in _users_of(file):
            if user.name in users:
                raise Refused(
                    f"data.path: {user.place} is also at {users[user.name].place}, but each user "
                    "must occur once; remove one of the two",
                    private=f"the user is {user.name!r}",
                )
            users[user.name] = user
    return [users[name] for name in sorted(users)]


def place_of(users: Sequence[LeafUser], owners: np.ndarray, index: int) -> str:
    """Returns the name of example `index` in messages.

    `owners` `[N]` is the index of each example's user in `users`, in ascending order.
    """
    owner = int(owners[index])
    return f"{users[owner].place}, example {index - np.searchsorted(owners, owner) + 1}"


def _users_of(file: Path) -> Iterator[LeafUser]:
    """Yields the users of one file. Raises `Refused` unless it has LEAF's format."""
    try:
        document = json.loads(decoded(file, "data.path"))
    except (ValueError, RecursionError) as error:
        at = ""
        if isinstance(error, json.JSONDecodeError):
            at = f", line {error.lineno}, column {error.colno}"
        raise Refused(
            f"data.path: {file}{at} is not valid JSON; expected LEAF's format", private=str(error)
        ) from None
    data = document.get("user_data") if isinstance(document, dict) else None
    if not isinstance(data, dict):
        raise Refused(
            f"data.path: {file} has no object 'user_data'; expected LEAF's format, {{\"users\": "
            '[…], "user_data": {user: {"x": […], "y": […]}}}'
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
    """Returns the numbers of all examples, float64 `[N, features]`.

    Raises `Refused` unless all examples are lists (or nested lists, which are flattened) of finite
    numbers, with one common shape.
    """
    try:
        x = np.array(xs, dtype=np.float64).reshape(len(xs), -1)
    except (TypeError, ValueError, OverflowError) as error:
        usual = _shape(xs[0])
        wrong = (n for n, x in enumerate(xs) if usual is None or _shape(x) != usual)
        raise Refused(
            f"data.path: {place(next(wrong, 0))}: x is not a list of numbers, or its length "
            "differs from the first example's; give all examples one length, or for text set "
            "data.text = true",
            private=str(error),
        ) from None
    finite = np.isfinite(x).all(1)
    if not finite.all():
        raise Refused(
            f"data.path: {place(int(finite.argmin()))}: x holds a number that is not finite; "
            "correct the number, or leave the example out"
        )
    return x


def _shape(x: Any) -> tuple[int, ...] | None:
    """Returns the shape of an example's numbers; None if it is not numeric."""
    try:
        return np.array(x, dtype=np.float64).shape
    except (TypeError, ValueError, OverflowError):
        return None


def class_array(ys: list[Any], classes: int, place: PlaceOf) -> np.ndarray:
    """Returns the classes of all examples, int64 `[N]`.

    Raises `Refused` unless each label is an integer from 0 to `classes` - 1.
    """
    for index, label in enumerate(ys):
        if not (isinstance(label, int | float) and 0 <= label < classes and label == int(label)):
            raise Refused(
                f"data.classes is {classes}, but the label of {place(index)} is no class; "
                f"expected integers from 0 to {classes - 1}",
                private=f"it is {str(label)[:40]!r}",
            )
    return np.array(ys, dtype=np.int64)


def text_in(x: Any, field: int, place: PlaceOf, index: int) -> str:
    """Returns the text of example `index`: x if `field` is -1, otherwise element `field` of x.

    Raises `Refused` if this value is not a text.
    """
    held = x if field < 0 else x[field] if isinstance(x, list) and field < len(x) else None
    if not isinstance(held, str):
        raise Refused(
            f"data.field is {field}, but {place(index)} has no text there; set data.field to the "
            "position of the text in x (4 in Sent140), or to -1 if x is the text",
            private=f"x is {x!r}",
        )
    return held


class Leaf(Part):
    """LEAF's JSON folders: numbers (FEMNIST, Synthetic), or text (Shakespeare, Sent140).

    `path` is a folder with `train/` and `test/` (or with JSON files itself), as LEAF's preprocess
    script writes. `classes` is declared, never counted from private labels. Numbers are clipped to
    `bounds` and scaled to [-1, 1], or used unchanged if `bounds` is []. If `bounds` is not set,
    numbers beyond [0, 1] are refused. `shape` may give them the shape of an image. With `text`, x
    is a string and y the next character. If `labels` are declared, too, y is one of them, and the
    text is element `field` of x (4 in Sent140).

    `test/` is public if LEAF split by user (`-t user`): its users then do not train. If LEAF split
    by sample, as for FedProx's data sets, the users of `test/` also train, so it can be used only
    without privacy or with `data.holdout = "examples"`.
    """

    path: str = Field(examples=["."])
    """A folder with `train/` and `test/`, or with JSON files itself."""
    classes: int = Field(0, ge=0, examples=[2])
    """Number of classes, if labels are integers from 0."""
    shape: list[int] = []
    """Shape of an image that the numbers form; [] for a vector."""
    bounds: list[float] = Field([0.0, 1.0], max_length=2)
    """Bounds [low, high] to which numbers are clipped; [] to use them unchanged. If the key is not
    set, numbers beyond [0, 1] are refused."""
    text: bool = False
    """Whether x is text; without `labels`, y is the next character."""
    vocabulary: str = PRINTABLE
    """The characters that are tokens; all other characters share one token."""
    labels: list[str] = []
    """The values of y, if texts are classified (["0", "1"] in Sent140)."""
    field: int = Field(-1, ge=-1)
    """Index of the text in x, from 0; -1: x is the text."""
    window: int = Field(80, ge=1, le=65_536)
    """Number of tokens of a classified text in one example."""
    words: str = ""
    """A public file with one word per line; these words, not characters, are then the tokens."""
    bag: bool = False
    """Whether x becomes the relative frequency of each token in its text."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True

    @property
    def squared_norm(self) -> float | None:
        """1 for token frequencies; otherwise None, since only files state the size of examples."""
        return 1.0 if self.bag else None

    @model_validator(mode="after")
    def _consistent(self) -> Leaf:
        if not self.text and self.classes < 2:
            raise ValueError(
                "classes is missing; set it to the number of classes (62 in FEMNIST, 10 in "
                "FedProx's synthetic sets), a public constant that is never counted from private "
                "labels"
            )
        if self.text and self.labels:
            refuse_no_classes(0, self.labels)
        elif self.labels or self.field >= 0 or self.words or self.bag:
            raise ValueError(
                "labels, field, words or bag is set, but has an effect only on classified texts; "
                "set text = true and labels, or remove the key"
            )
        if len(self.bounds) == 1 or (self.bounds and not self.bounds[0] < self.bounds[1]):
            raise ValueError(
                f"bounds is {self.bounds}; expected [low, high], or [] to leave numbers unclipped"
            )
        return self

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("leaf: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._examples(read_users(self._folder("train")))

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        folder = Path(self.path) / "test"
        if not any(folder.glob("*.json")):
            return None
        return self._examples(read_users(folder))

    def _folder(self, part: str) -> Path:
        folder = Path(self.path)
        return folder / part if (folder / part).is_dir() else folder

    def _examples(self, users: list[LeafUser]) -> Examples:
        names = tuple(user.name for user in users)
        if not any(user.x for user in users):
            raise Refused(
                f"data.path: the {len(names)} users of {self.path} hold no example; expected at "
                "least one"
            )
        owners = np.repeat(np.arange(len(names)), [len(user.x) for user in users])
        xs = [x for user in users for x in user.x]
        ys = [y for user in users for y in user.y]
        place = partial(place_of, users, owners)
        if self.text and self.labels:
            return self._classified_texts(RawExamples(xs, ys, place, owners, names))
        if self.text:
            return self._text_examples(xs, ys, owners, names, place)
        x = feature_array(xs, place)
        scaled, clipped = self._scaled(x, place)
        if self.shape:
            try:
                scaled = scaled.reshape(len(scaled), *self.shape)
            except ValueError:
                raise Refused(
                    f"data.shape is {self.shape}, but an example holds {x.shape[1]} numbers; "
                    "declare a shape of that many numbers"
                ) from None
        return Examples(
            torch.from_numpy(scaled.astype(np.float32)),
            torch.from_numpy(class_array(ys, self.classes, place)),
            self.classes,
            owners,
            names,
            preprocessing=self._preprocessing(scaled.shape[1:]),
            counts={"clipped_values": clipped},
        )

    def _scaled(self, x: np.ndarray, place: PlaceOf) -> tuple[np.ndarray, int]:
        """Returns numbers `[N, features]` scaled onto [-1, 1], and how many were clipped.

        If `bounds` is [], they are unchanged. If the run file does not state `bounds`, numbers
        beyond the default bounds are refused.
        """
        if not self.bounds:
            return x, 0
        low, high = self.bounds
        beyond = (x < low) | (x > high)
        if beyond.any() and "bounds" not in self.model_fields_set:
            raise Refused(
                f"data.bounds is not declared, but {place(int(beyond.any(1).argmax()))} holds a "
                f"number beyond [{low:g}, {high:g}]; declare the bounds to which numbers are "
                "clipped, or [] to leave numbers unclipped",
            )
        return (x.clip(low, high) - low) * (2 / (high - low)) - 1, int(beyond.sum())

    def _preprocessing(self, shape: tuple[int, ...]) -> Preprocessing | None:
        if not self.bounds:
            return None
        low, high = self.bounds
        clips = "bounds" in self.model_fields_set
        return Preprocessing.of_array("x", shape, (low, high), (-1.0, 1.0), clips=clips)

    def _classified_texts(self, raw: RawExamples) -> Examples:
        """Returns examples of classified texts, as token sequences or relative frequencies."""
        texts = [text_in(x, self.field, raw.place, index) for index, x in enumerate(raw.x)]
        form = TextForm(tokens_of(self.words, self.vocabulary), self.window)
        x = form.shares(texts) if self.bag else form.sequences(texts)
        return ClassForm(0, tuple(self.labels)).examples(raw, x)

    def _text_examples(
        self,
        xs: list[Any],
        ys: list[Any],
        owners: np.ndarray,
        names: tuple[str, ...],
        place: PlaceOf,
    ) -> Examples:
        """Returns the examples of next-character prediction.

        The label of a character of x is the next character; that of the last is the first of y.
        Raises `Refused` if x or y is not text or empty, or texts x differ in length.
        """
        characters = Characters(self.vocabulary)
        for index, pair in enumerate(zip(xs, ys, strict=True)):
            if not all(isinstance(s, str) and s for s in pair) or len(pair[0]) != len(xs[0]):
                raise Refused(
                    f"data.text is true, but in {place(index)} x or y is not text, or x has "
                    "another length than in the first example; expected the format of LEAF's "
                    "Shakespeare",
                    private=f"x is {pair[0]!r} and y {pair[1]!r}",
                )
        windows = [characters.encode(x + y[0]) for x, y in zip(xs, ys, strict=True)]
        tokens = torch.from_numpy(np.stack(windows) if windows else np.zeros((0, 2), np.int64))
        return Examples(
            tokens[:, :-1].contiguous(),
            tokens[:, 1:].contiguous(),
            characters.count,
            owners,
            names,
            characters.meaning,
        )
