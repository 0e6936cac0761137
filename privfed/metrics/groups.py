"""Groups of examples and of clients for evaluation: by a declared column, by class or by site.

The names of the possible groups are public.
"""

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
"""Name that selects the class of an example instead of a column."""
_NONE = "none of these"


@dataclass(frozen=True)
class ExampleGroups:
    """Names of groups of examples, and the features that determine an example's group.

    Attributes:
      names: the group names.
      columns: the indices of indicator features, one feature per group except the last. The last
        group has the examples in which none of these features is positive. If None, an example's
        group is its label, or there are no groups if `names` is empty.
    """

    names: tuple[str, ...] = ()
    columns: slice | None = None

    @classmethod
    def by(cls, column: str, form: Form, key: str = "evaluation.group") -> ExampleGroups:
        """Returns the groups that `column` defines; no groups for an empty `column`.

        Args:
          column: a categorical column of the data, "label", or "".
          form: the form of the examples.
          key: the key of the run file that an error message names.

        Raises:
          Refused: if `column` is neither a declared categorical column, nor "label" for examples
            with one class each.
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
            f"{key} is {column!r}; expected the name of a declared column of categories"
            + (f": one of {', '.join(known)}" if known else ", but these data have none; unset it"),
            key=key,
        )

    def of(self, x: Tensor | Mapped, y: Tensor) -> Indices | None:
        """Returns the group of each example.

        Args:
          x: features, shape `[n, *features]`.
          y: labels, shape `[n]`.

        Returns:
          Group indices, shape `[n]`, int64; None if there are no groups.
        """
        if not self.names:
            return None
        if self.columns is None:
            return np.asarray(y.cpu().numpy(), dtype=np.int64)
        is_in = x[torch.arange(len(y))][:, self.columns] > 0
        group = torch.where(is_in.any(1), is_in.int().argmax(1), len(self.names) - 1)
        return np.asarray(group.cpu().numpy(), dtype=np.int64)


SITE = "site"
"""Name that selects the site of a client instead of a column."""
_KEY = "client.group"
NO_GROUP = -1
"""Group index of a client that is in no group, because it has no examples or no site."""


@dataclass(frozen=True)
class ClientGroups:
    """Names of groups of clients, and the rule that assigns a client to one of them.

    The possible groups are declared and public. A client's group depends only on that client's own
    examples or site, so no other client affects it.

    Attributes:
      names: the group names.
      examples: the groups of examples, the most frequent of which is the client's; None if a
        client's group is its site.
    """

    names: tuple[str, ...]
    examples: ExampleGroups | None

    @classmethod
    def by(cls, column: str, form: Form, sites: int) -> ClientGroups:
        """Returns the groups that `column` defines.

        Args:
          column: a categorical column of the data, "label", or "site".
          form: the form of the examples.
          sites: the number of sites; 0 if there are none.

        Raises:
          Refused: if `column` is empty or defines no groups, or is "site" and there are none.
        """
        if column == SITE and sites:
            return cls(tuple(map(str, range(sites))), None)
        groups = ExampleGroups.by(column, form, _KEY)
        if not groups.names:
            raise Refused(f"{_KEY} is empty; name the column to group clients by", key=_KEY)
        return cls(groups.names, groups)

    def of(self, population: Federation, ids: Indices) -> Indices:
        """Returns the group of each client: its site, or the most frequent group of its examples.

        Of several groups that are equally frequent, the first is taken.

        Args:
          population: the clients and their examples.
          ids: client ids, shape `[c]`.

        Returns:
          Group indices, shape `[c]`, int64. `NO_GROUP` stands for a client without examples if
          groups are of examples, and for every client if they are sites and `population` has none.
        """
        if self.examples is None:
            sites = population.sites
            return np.full(len(ids), NO_GROUP) if sites is None else sites[ids].astype(np.int64)
        return np.array([self._most_frequent(population, client) for client in ids], dtype=np.int64)

    def _most_frequent(self, population: Federation, client: int) -> int:
        start, end = population.offsets[client : client + 2]
        if self.examples is None or start == end:
            return NO_GROUP
        x, y = population.examples.x, population.examples.y[start:end]
        x = x if self.examples.columns is None else x[torch.arange(start, end)]
        groups = self.examples.of(x, y)
        return NO_GROUP if groups is None else int(np.bincount(groups).argmax())
