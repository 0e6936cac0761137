"""The group of each example, by a declared column or by its class: public what groups there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.mapped import Mapped
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.models.form import Form
from privfed.vector import Indices

if TYPE_CHECKING:
    from torch import Tensor

LABEL = "label"
"""What names the class of an example instead of a column."""
_NONE = "none of these"


@dataclass(frozen=True)
class ExampleGroups:
    """The `names` of groups, and where an example says which is its own.

    `columns` are those of its features, one for each group but the last, which is everybody of
    whom none of them is 1; None: it is the label.
    """

    names: tuple[str, ...] = ()
    columns: slice | None = None

    @classmethod
    def by(cls, column: str, form: Form, key: str = "evaluation.group") -> ExampleGroups:
        """The groups that `column` makes, a category of a table or "label"; "" makes none.

        Raises `Refused`, naming the run file's `key`, where it makes no groups.
        """
        if not column:
            return cls()
        if column == LABEL and form.classified and not form.labels:
            return cls(form.names or tuple(map(str, range(form.classes))))
        categories = form.preprocessing.categories if form.preprocessing else ()
        start = form.features[0] - sum(len(each.values) for each in categories) if categories else 0
        known = [LABEL] if form.classified and not form.labels else []
        for category in categories:  # the last features
            if category.column == column:
                return cls((*category.values, _NONE), slice(start, start + len(category.values)))
            known.append(category.column)
            start += len(category.values)
        raise Refused(
            f"{key} is {column!r}; expected a declared column of categories"
            + (f": one of {', '.join(known)}" if known else ", of which these data have none"),
            key=key,
        )

    def of(self, x: Tensor | Mapped, y: Tensor) -> Indices | None:
        """The group `[n]` of examples x `[n, *features]` with labels y; None without groups."""
        if not self.names:
            return None
        if self.columns is None:
            return np.asarray(y.cpu().numpy(), dtype=np.int64)
        is_in = x[torch.arange(len(y))][:, self.columns] > 0
        group = torch.where(is_in.any(1), is_in.int().argmax(1), len(self.names) - 1)
        return np.asarray(group.cpu().numpy(), dtype=np.int64)
