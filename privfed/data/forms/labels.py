"""Encodes labels as declared classes, which are declared by their number or by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Meaning
from privfed.data.forms.arrays import PlaceOf, RawExamples
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class ClassForm:
    """The declared classes of labels: their `names`, or the numbers 0 to `classes` - 1."""

    classes: int
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.names) or self.classes

    @property
    def meaning(self) -> Meaning:
        """The meaning of labels: the names of the classes, if they are declared."""
        return Meaning(names=self.names)

    def examples(
        self,
        raw: RawExamples,
        x: Tensor | Mapped,
        counts: Mapping[str, int] | None = None,
        how: Preprocessing | None = None,
    ) -> Examples:
        """Returns examples with features `x`, and the labels and owners of `raw`.

        Args:
          raw: contents of files; only labels, owners and names in messages are read.
          x: features, shape [N, *].
          counts: counts that the loader observed, by name, if any.
          how: preprocessing by which the features were computed, if the source states it.

        Raises:
          Refused: if a label is not a declared class.
        """
        y = torch.from_numpy(self.encoded(() if raw.y is None else raw.y, raw.place))
        return Examples(
            x,
            y,
            self.count,
            raw.owners,
            raw.clients,
            self.meaning,
            counts=counts or {},
            preprocessing=how,
        )

    def encoded(self, y: np.ndarray | Sequence[object], place: PlaceOf) -> Indices:
        """Returns the class `[N]` of every label. Raises `Refused` for an undeclared label."""
        if isinstance(y, np.ndarray) and y.dtype.kind in "iu":  # long, with few distinct values
            different, places = np.unique(y, return_inverse=True)
            encoded = self._codes(different.tolist())[places]
        else:
            encoded = self._codes(y.tolist() if isinstance(y, np.ndarray) else y)
        if (encoded < 0).any():
            index = int((encoded < 0).argmax())
            declared = f"one of {', '.join(self.names)} (data.labels)"
            numbered = f"an integer from 0 to {self.classes - 1} (data.classes)"
            raise Refused(
                f"data.label: the label of {place(index)} is no class; expected "
                f"{declared if self.names else numbered}",
                private=f"it is {str(y[index])[:40]!r}",
            )
        return encoded

    def _codes(self, labels: Sequence[object]) -> Indices:
        """Returns the class `[n]` of each of `labels`; -1 for an undeclared one."""
        numbers = {name: n for n, name in enumerate(self.names)}
        codes = [numbers.get(_text(v), -1) if numbers else self._number(v) for v in labels]
        return np.array(codes, dtype=np.int64)

    def _number(self, value: object) -> int:
        """Returns the class that `value`, a number or digits in a text, states; -1 for others."""
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value[:20])
        if isinstance(value, int | float) and 0 <= value < self.classes and value == int(value):
            return int(value)
        return -1


def refuse_no_classes(classes: int, names: Sequence[str]) -> None:
    """Raises `ValueError` unless exactly one of `classes` and `names` is given, with unique names.

    There must be two or more classes.
    """
    if bool(names) == bool(classes) or len(names) == 1 or classes == 1:
        raise ValueError(
            f"classes is {classes} and labels is {[*names]}, but exactly one of them must declare "
            "two or more classes, as public constants; set classes (labels are integers from 0) or "
            "labels (their values)"
        )
    if len({*names}) < len(names):
        raise ValueError(f"labels is {[*names]}, but names a value twice; name each value once")


def _text(value: object) -> str:
    """Returns a label as text, as in a run file."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
