"""The group of each example, by a declared column or by its class: public what groups there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.data.pieces import Mapped
from privfed.models.form import Form

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


SITE = "site"
"""What names the site of a client instead of a column."""
_KEY = "client.group"
NO_GROUP = -1
"""The group of a client that has no example."""


@dataclass(frozen=True)
class ClientGroups:
    """The `names` of groups, and what tells a client's own: its examples, or, without, its site.

    What there is is declared and public; which of it is a client's follows from that client's own
    rows alone, so that no other client moves it.
    """

    names: tuple[str, ...]
    examples: ExampleGroups | None

    @classmethod
    def by(cls, column: str, form: Form, sites: int) -> ClientGroups:
        """The groups that `column` makes: a category of a table, "label", or one of the `sites`.

        Raises `Refused` where it makes none.
        """
        if column == SITE and sites:
            return cls(tuple(map(str, range(sites))), None)
        groups = ExampleGroups.by(column, form, _KEY)
        if not groups.names:
            raise Refused(f"{_KEY} is empty; name what tells a client's group", key=_KEY)
        return cls(groups.names, groups)

    def of(self, people: Federation, ids: Indices) -> Indices:
        """The groups `[c]` of clients `ids` `[c]`; of several as frequent ones the first."""
        if self.examples is None:
            sites = people.sites
            return np.full(len(ids), NO_GROUP) if sites is None else sites[ids].astype(np.int64)
        return np.array([self._most_frequent(people, client) for client in ids], dtype=np.int64)

    def _most_frequent(self, people: Federation, client: int) -> int:
        start, end = people.offsets[client : client + 2]
        if self.examples is None or start == end:
            return NO_GROUP
        x, y = people.examples.x, people.examples.y[start:end]
        x = x if self.examples.columns is None else x[torch.arange(start, end)]
        groups = self.examples.of(x, y)
        return NO_GROUP if groups is None else int(np.bincount(groups).argmax())
