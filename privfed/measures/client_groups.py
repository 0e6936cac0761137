"""The group of each client: its site, or the group that most of its examples are in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.data.federation import Federation
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.measures.groups import ExampleGroups
from privfed.models.form import Form
from privfed.vector import Indices

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
