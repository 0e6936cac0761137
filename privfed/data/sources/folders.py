"""Images in folders, one for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from privfed.data.federation import Examples
from privfed.data.forms.arrays import ArrayForm
from privfed.data.forms.labels import ClassForm, refuse_no_classes
from privfed.data.forms.pictures import SHAPE, is_of_pictures, picture
from privfed.data.forms.raw import RawExamples
from privfed.data.preprocessing import Preprocessing
from privfed.data.sources.client_folders import client_pictures
from privfed.parts import Part
from privfed.streams import Streams

_BYTE = (0.0, 255.0)


class Folders(Part):
    """Images by client: `path`/CLIENT/LABEL/*.png, or `path`/CLIENT/*.png with a table of labels.

    x `[N, *shape]`: bytes 0 … 255, scaled onto [-1, 1]. The `shape` is declared, [1, height, width]
    (gray) or [3, height, width] (colours), and so are `classes` (labels are numbers from 0) or
    `labels` by name. PNG, JPEG, BMP, GIF, WebP and PPM are read; names that begin with a dot are
    left out, links and other files refused.
    """

    path: str
    """A folder with a folder for each client."""
    shape: list[Annotated[int, Field(ge=1)]]
    """The shape of an image, [channels, height, width]."""
    classes: int = Field(0, ge=0)
    """How many classes there are, declared."""
    labels: list[str] = []
    """Or the names of the classes, as folders or the table have them."""
    label_table: str = ""
    """A CSV with the columns file ("anna/1.png") and label, where folders name no labels."""
    resize: bool = False
    """Whether images of another size are resized; else they are refused."""
    test_path: str = ""
    """A public folder of the same form to score on."""
    natural_partition: ClassVar[bool] = True
    real_people: ClassVar[bool] = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_of_pictures(self.shape):
            raise ValueError(f"shape is {self.shape}; expected that of an image, {SHAPE}")
        refuse_no_classes(self.classes, self.labels)
        return self

    @property
    def squared_norm(self) -> float:
        """The numbers of an image, each of which adds at most 1."""
        return self._array_form.squared_norm

    @property
    def _array_form(self) -> ArrayForm:
        return ArrayForm(tuple(self.shape), _BYTE)

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("folders: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(Path(self.path), "data.path")

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(Path(self.test_path), "data.test_path") if self.test_path else None

    def _load(self, folder: Path, key: str) -> Examples:
        table = Path(self.label_table) if self.label_table else None
        clients, pictures = client_pictures(folder, table, key)
        x = np.empty((len(pictures), *self.shape), dtype=np.uint8)
        for row, each in zip(x, pictures, strict=True):
            row[:] = picture(each.path.read_bytes(), self.shape, self.resize, each.place)
        raw = RawExamples(
            x,
            [each.label for each in pictures],
            lambda index: pictures[index].place,
            np.array([each.owner for each in pictures], dtype=np.int64),
            clients,
        )
        features, _ = self._array_form.features(x, raw.place)
        form = ClassForm(self.classes, tuple(self.labels))
        return form.examples(raw, features, how=Preprocessing.of_mapped("intensity", features))
