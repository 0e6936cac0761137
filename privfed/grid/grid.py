"""A grid file as it is written: its variation, exclusions, tuning and figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from accounting.choosing.repetitions import MOST_EXPECTED
from privfed.core.parts import Part
from privfed.grid.pictures.figures import Figure

Values = Mapping[str, Any]
"""One value for each of some keys."""
METHOD, AT_EDGE = "method", "at_edge"


class Method(Part):
    """A named bundle of keys to compare; its `tune` adds to `tune.over` or replaces it."""

    name: str = Field(min_length=1)
    """Its name in tables and figures."""
    set: dict[str, Any] = {}
    """Its keys of the run file."""
    tune: dict[str, list[Any]] = {}
    """Its own options, in addition to or instead of those of `tune.over`."""


class Tuning(Part):
    """Keys to choose before the seeds are run: the best mean of `by` over separate seeds.

    Without `by`, the metric is that of each cell's loss, in that loss's direction.
    """

    over: dict[str, list[Any]] = {}
    """Key -> the values to choose from; every combination is tried."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([1000], min_length=1)
    """The seeds for the choice, none of them the grid's own."""
    by: str = ""
    """The metric of the choice; empty: the loss's own."""
    lower_is_better: bool | None = None
    """Whether lower values are better; by default as the metric defines it."""
    private: bool = False
    """Whether the choice is charged: of a secret, random number of runs only the best is released
    (`privfed.grid.private_tuning`). `privacy.epsilon` then covers all of them."""
    candidates: float = Field(0.0, ge=0.0, le=MOST_EXPECTED)
    """The expected number of runs; 0: three for each combination of `over`."""
    shape: float = Field(1.0, ge=0.0, le=10.0)
    """The shape of the distribution of their number: 1 geometric, 0 logarithmic, otherwise
    truncated negative binomial."""


class Grid(Part):
    """A grid file; an empty `base` is the default run."""

    base: str = ""
    """A run file in the same folder; empty: the default run."""
    method: list[Method] = []
    """Named bundles of keys, compared with each other."""
    tune: Tuning | None = None
    """The keys that are chosen for every cell before its seeds are run."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([0], min_length=1)
    """The seeds of every cell."""
    grid: dict[str, list[Any]] = {}
    """Key of the run file, as "privacy.epsilon" -> its values: cells are their product."""
    exclude: list[dict[str, Any]] = []
    """Cells that are left out: those with all of these values, or one of a list."""
    figure: list[Figure] = []
    """The figures to draw."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The varied values by key: the methods, if there are any, and the lists."""
        methods = {METHOD: [method.name for method in self.method]} if self.method else {}
        return {**methods, **self.grid}

    @property
    def keys(self) -> list[str]:
        """The keys of `axes`."""
        return list(self.axes)

    @property
    def tuned_keys(self) -> list[str]:
        """The keys that tuning chooses, for any method."""
        if self.tune is None:
            return []
        return list(dict.fromkeys([*self.tune.over, *(k for m in self.method for k in m.tune)]))

    @property
    def tunes_privately(self) -> bool:
        """Whether only the best of a random number of runs is released."""
        return self.tune is not None and self.tune.private

    @property
    def columns(self) -> list[str]:
        """The key columns of the table: varied, tuned, and whether at the edge."""
        return [*self.keys, *self.tuned_keys, *([AT_EDGE] if self.tune else [])]

    def settings(self, values: Values) -> Values:
        """Returns the keys of a run file for `values`, with a method's keys for its name."""
        bundle = next((m.set for m in self.method if m.name == values.get(METHOD)), {})
        return {**bundle, **{key: value for key, value in values.items() if key != METHOD}}

    def options(self, values: Values) -> dict[str, list[Any]]:
        """Returns the options of each tuned key for the cell `values`."""
        of_method = next((m.tune for m in self.method if m.name == values.get(METHOD)), {})
        return {**self.tune.over, **of_method} if self.tune else {}

    def product(self) -> Iterator[dict[str, Any]]:
        """Yields every combination of varied values, including excluded ones."""
        return key_combinations(self.axes)

    def excludes(self, values: Values) -> bool:
        """Whether any exclusion matches `values`."""
        return any(matches(values, exclusion) for exclusion in self.exclude)


def key_combinations(lists: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yields the product of `lists`: one value of each, the last varying fastest."""
    for choice in itertools.product(*lists.values()):
        yield dict(zip(lists, choice, strict=True))


def matches(values: Values, exclusion: Values) -> bool:
    """Whether every key of `exclusion` holds; a list there means any of its values."""
    return all(
        values[key] in excluded if isinstance(excluded, list) else values[key] == excluded
        for key, excluded in exclusion.items()
    )
