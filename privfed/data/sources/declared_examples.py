"""Sources of one column of features and one of labels, whose form is declared completely."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.federation import Examples
from privfed.data.forms.arrays import ArrayForm, RawExamples
from privfed.data.forms.labels import ClassForm, refuse_no_classes
from privfed.data.forms.texts import TextForm, tokens_of
from privfed.data.pieces import Pieces
from privfed.data.preprocessing import Preprocessing
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.sources.text import PRINTABLE
from privfed.data.tables.cells import as_text
from privfed.data.tables.dates import ISO
from privfed.data.tables.readable import TableObject


def declared_example(source: DeclaredTable) -> Examples:
    """Returns one synthetic example: each column has its lower bound, first day or first value.

    Raises `Refused` if a pattern names columns, because their number is not declared.
    """
    if source.squared_norm is None:
        raise Refused(
            "data.features names columns by a pattern, but without a table the number of these "
            "columns is unknown; name each column, or a public test set (data.test_path)",
            key="data.features",
        )
    return declared_columns(source)


def declared_columns(source: DeclaredTable) -> Examples:
    """Returns one synthetic example, in which each pattern is the name of a single column."""
    import pyarrow  # plans without a table start without it

    row: dict[str, Any] = {name: float(low) for name, (low, _) in source.features.items()}
    for name, dates in source.dates.items():
        first = date.fromisoformat(dates.first[:10])
        row[name] = first.isoformat() if dates.format == ISO else first.strftime(dates.format)
    row |= {name: as_text(values[0]) for name, values in source.categories.items()}
    labels = [source.label] if isinstance(source.label, str) else source.label
    least = source.labels[0] if source.labels else min(source.label_bounds, default=0.0)
    row |= dict.fromkeys(labels, least)
    table = pyarrow.table({name: [value] for name, value in row.items()})
    return source.load_from(TableObject(table, "the declared columns"), ownerless=True)


class DeclaredExamples(Part):
    """The declaration of examples that are arrays or texts, common to all formats of files."""

    x: str = Field(min_length=1, examples=["x"])
    """Column, field or array of the features: images, other arrays of numbers, or text."""
    label: str = ""
    """Column, field or array of the label; empty: every next token of a text is predicted."""
    classes: int = Field(0, ge=0)
    """Number of classes, if labels are integers from 0."""
    labels: list[str] = []
    """Values of the label, one for each class; instead of `classes`."""
    shape: list[Annotated[int, Field(ge=1)]] = []
    """Shape of one example; for an image [channels, height, width]."""
    bounds: list[float] = Field([], max_length=2)
    """Bounds [low, high] to which the numbers of x are clipped, for example [0, 255] for bytes."""
    text: bool = Field(False, examples=[True])
    """Whether x is text."""
    window: int = Field(80, ge=1, le=65_536)
    """Number of tokens of a text in one example."""
    vocabulary: str = PRINTABLE
    """The characters that are tokens; all other characters share one token."""
    words: str = ""
    """A public file with one word per line; these words, not characters, are then the tokens."""
    bag: bool = False
    """Whether x is the relative frequency of each token in its text."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.text:
            self._refuse_keys_of_numbers()
        else:
            self._refuse_undeclared_numbers()
        if self.label:
            refuse_no_classes(self.classes, self.labels)
        elif not self.text:
            raise ValueError("label is missing; set it to the column of labels")
        elif self.classes or self.labels or self.bag:
            raise ValueError(
                "classes, labels or bag is set, but has an effect only on texts with a label; set "
                "label, or remove the key"
            )
        return self

    def _refuse_keys_of_numbers(self) -> None:
        if self.shape or self.bounds:
            raise ValueError(
                "shape or bounds is set, but text is true, and they affect only numbers; "
                "remove shape and bounds"
            )

    def _refuse_undeclared_numbers(self) -> None:
        if self.bag or self.words:
            raise ValueError(
                "bag or words is set, but has an effect only on text; set text = true, or remove "
                "bag and words"
            )
        if not self.shape:
            raise ValueError(
                "shape is missing; set it to the shape of one example, for example [1, 28, 28]"
            )
        if len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]:
            raise ValueError(
                f"bounds is {self.bounds}; expected [low, high], to which numbers are clipped, for "
                "example [0, 255] for bytes"
            )

    @property
    def squared_norm(self) -> float | None:
        """Bound on the squared norm: 1 for token frequencies, None for token sequences.

        For arrays, it is the number of values, which are in [-1, 1].
        """
        if self.text:
            return 1.0 if self.bag else None
        return self.array_form.squared_norm

    @property
    def array_form(self) -> ArrayForm:
        """The declared form of arrays."""
        low, high = self.bounds
        return ArrayForm(tuple(self.shape), (low, high))

    def of_declared_form(self, raw: RawExamples) -> Examples:
        """Converts loaded contents to the declared form. Raises `Refused` if they contradict it."""
        if self.text:
            return self._texts(raw)
        array = raw.x if isinstance(raw.x, Pieces) else np.asarray(raw.x)
        x, clipped = self.array_form.features(array, raw.place)
        how = Preprocessing.of_mapped(self.x, x)
        return self._class_form.examples(raw, x, {"clipped_values": clipped}, how)

    @property
    def _class_form(self) -> ClassForm:
        return ClassForm(self.classes, tuple(self.labels))

    def _texts(self, raw: RawExamples) -> Examples:
        tokens = tokens_of(self.words, self.vocabulary)
        form, texts = TextForm(tokens, self.window), [str(text) for text in raw.x]
        if self.label:
            x = form.shares(texts) if self.bag else form.sequences(texts)
            return self._class_form.examples(raw, x)
        x, y, of_text = form.next_tokens(texts)
        owners = None if raw.owners is None else raw.owners[of_text]
        return Examples(x, y, tokens.count, owners, raw.clients, tokens.meaning)
