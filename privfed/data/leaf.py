"""LEAF's JSON folders (Caldas et al. 2018): users, with x and y each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from privfed.data.characters import PRINTABLE, Characters
from privfed.errors import Refused
from privfed.federation import Examples
from privfed.parts import Part
from privfed.streams import Streams


class Leaf(Part):
    """LEAF's JSON folders: numbers with classes (FEMNIST, Synthetic), or text (Shakespeare).

    `path` is a folder with `train/` and `test/` (or JSON files right in it), as LEAF's preprocess
    script writes. Numbers have declared `bounds`, beyond which they are clipped, are scaled to
    [-1, 1] and may be given the `shape` of an image. `text`: x are strings, y the character after.

    `test/` is public where LEAF split by user (`-t user`): its users are others than those that
    train. Where it split by sample, they are the same, and the test set is not public.
    """

    path: str
    classes: int = Field(62, ge=2)
    shape: list[int] = []
    bounds: list[float] = Field([0.0, 1.0], min_length=2, max_length=2)
    text: bool = False
    vocabulary: str = PRINTABLE
    natural_partition: ClassVar[bool] = True
    found: ClassVar[bool] = True

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("leaf: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._examples(self._users(self._folder("train")))

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        folder = Path(self.path) / "test"
        if not any(folder.glob("*.json")):
            return None
        return self._examples(self._users(folder))

    def _folder(self, part: str) -> Path:
        folder = Path(self.path)
        return folder / part if (folder / part).is_dir() else folder

    def _users(self, folder: Path) -> dict[str, tuple[list[Any], list[Any]]]:
        """What each user holds. Raises `Refused` for another form."""
        files = sorted(folder.glob("*.json"))
        if not files:
            raise Refused(f"data.path: {folder} holds no .json file; expected LEAF's folders")
        users: dict[str, tuple[list[Any], list[Any]]] = {}
        for file in files:
            for user, x, y in _read(file):
                if user in users:
                    raise Refused(f"data.path: user {user!r} of {file} was in another file already")
                users[user] = x, y
        return users

    def _examples(self, users: dict[str, tuple[list[Any], list[Any]]]) -> Examples:
        names = sorted(users)
        if not any(x for x, _ in users.values()):
            raise Refused(f"data.path: the {len(names)} users of {self.path} hold no example")
        owners = np.repeat(np.arange(len(names)), [len(users[name][0]) for name in names])
        xs = [x for name in names for x in users[name][0]]
        ys = [y for name in names for y in users[name][1]]
        if self.text:
            return self._characters(xs, ys, owners, tuple(names))
        x = _numbers(xs, self.path)
        low, high = self.bounds
        if not low < high:
            raise Refused(f"data.bounds is {self.bounds}; expected a lower and a higher number")
        scaled = (x.clip(low, high) - low) * (2 / (high - low)) - 1
        if self.shape:
            try:
                scaled = scaled.reshape(len(scaled), *self.shape)
            except ValueError as error:
                raise Refused(
                    f"data.shape is {self.shape}, but an example holds {x.shape[1]} numbers"
                ) from error
        return Examples(
            torch.from_numpy(scaled.astype(np.float32)),
            torch.from_numpy(_labels(ys, self.classes)),
            self.classes,
            owners,
            tuple(names),
        )

    def _characters(
        self, xs: list[Any], ys: list[Any], owners: np.ndarray, names: tuple[str, ...]
    ) -> Examples:
        """The whole window one later: its own characters, and at its end the label."""
        characters = Characters(self.vocabulary)
        if not all(isinstance(s, str) and s for s in (*xs, *ys)) or len({*map(len, xs)}) > 1:
            raise Refused(
                "data.text is true, but x and y are not all text, x of one length; expected LEAF's "
                "Shakespeare"
            )
        whole = [characters.encode(x + y[0]) for x, y in zip(xs, ys, strict=True)]
        tokens = torch.from_numpy(np.stack(whole) if whole else np.zeros((0, 2), np.int64))
        return Examples(
            tokens[:, :-1].contiguous(),
            tokens[:, 1:].contiguous(),
            characters.count,
            owners,
            names,
            characters.meaning,
        )


def _read(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Each user with x and y. Raises `Refused` for what is not LEAF's form."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"data.path: {file} is not valid JSON: {error}") from error
    data = document.get("user_data") if isinstance(document, dict) else None
    if not isinstance(data, dict):
        raise Refused(
            f"data.path: {file} has no object 'user_data'; expected LEAF's form, "
            '{"users": […], "user_data": {user: {"x": […], "y": […]}}}'
        )
    for user, held in data.items():
        x, y = (held.get(key) if isinstance(held, dict) else None for key in "xy")
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise Refused(f"data.path: {file}, user {user!r}: expected lists x and y of one length")
        yield user, x, y


def _numbers(xs: list[Any], path: str) -> np.ndarray:
    try:
        x = np.array(xs, dtype=np.float64).reshape(len(xs), -1)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(
            f"data.path: x in {path} are not lists of as many numbers each: {error}; for text set "
            "data.text = true"
        ) from error
    if not np.isfinite(x).all():
        raise Refused(f"data.path: x in {path} holds numbers that are not finite")
    return x


def _labels(ys: list[Any], classes: int) -> np.ndarray:
    for label in ys:
        if not (isinstance(label, int | float) and 0 <= label < classes and label == int(label)):
            raise Refused(
                f"data.classes is {classes}, but a label is {str(label)[:40]!r}; expected whole "
                f"numbers from 0 to {classes - 1}"
            )
    return np.array(ys, dtype=np.int64)
