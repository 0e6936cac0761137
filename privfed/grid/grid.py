"""The content of a grid file: varied keys, exclusions, tuning and figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from accounting.choosing.repetitions import MOST_EXPECTED
from privfed.core.parts import Part
from privfed.grid.pictures.figures import Figure

Values = Mapping[str, Any]
"""One value for each of some keys of the run file, by key."""
METHOD, AT_EDGE = "method", "at_edge"


class Method(Part):
    """A named group of settings of the run file, to be compared with other such groups."""

    name: str = Field(min_length=1)
    """The method's name in tables and figures."""
    set: dict[str, Any] = {}
    """Keys of the run file and their values under this method."""
    tune: dict[str, list[Any]] = {}
    """Further options, by key, for the tuning of this method only. For a key that is also in
    `tune.over`, these options replace those."""


class Tuning(Part):
    """A choice of values for some keys, by the best mean metric of runs with seeds of their own.

    The grid's seeds are run afterwards, with the chosen values. Without `by`, the metric is the
    first metric of the cell's loss, and the loss states whether lower values are better.
    """

    over: dict[str, list[Any]] = {}
    """The options to choose from, by key; every combination is run."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([1000], min_length=1)
    """The seeds of the runs to choose from; none may be one of the grid's seeds."""
    by: str = ""
    """The metric to choose by; empty: the first metric of the loss."""
    lower_is_better: bool | None = None
    """Whether lower values are better; None: as the metric defines it."""
    private: bool = False
    """Whether to choose privately: a secret, random number of runs is trained, only the best is
    released (`privfed.grid.private_tuning`), and `privacy.epsilon` covers the choice."""
    candidates: float = Field(0.0, ge=0.0, le=MOST_EXPECTED)
    """With `private`: the expected number of runs; 0: three for each combination of `over`."""
    shape: float = Field(1.0, ge=0.0, le=10.0)
    """With `private`: the shape of the distribution of the number of runs: 1 geometric, 0
    logarithmic, otherwise truncated negative binomial."""


class Grid(Part):
    """The content of a grid file."""

    base: str = ""
    """A run file in the same folder; empty: the default run."""
    method: list[Method] = []
    """Named groups of settings, which are compared with each other."""
    tune: Tuning | None = None
    """The choice of values for some keys before the grid's seeds are run; None: no tuning."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field([0], min_length=1)
    """The seeds; every combination of values is run with each."""
    grid: dict[str, list[Any]] = {}
    """The values to vary, by key of the run file, such as "privacy.epsilon"; every combination is
    run."""
    exclude: list[dict[str, Any]] = []
    """Combinations that are left out: each entry excludes those that have all of its values; a list
    permits any value in it."""
    figure: list[Figure] = []
    """The figures to draw."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The varied keys with their values: those in `grid`, and "method" if there are methods."""
        methods = {METHOD: [method.name for method in self.method]} if self.method else {}
        return {**methods, **self.grid}

    @property
    def keys(self) -> list[str]:
        """The varied keys, those of `axes`."""
        return list(self.axes)

    @property
    def tuned_keys(self) -> list[str]:
        """The keys that tuning chooses, for all methods together."""
        if self.tune is None:
            return []
        return list(dict.fromkeys([*self.tune.over, *(k for m in self.method for k in m.tune)]))

    @property
    def tunes_privately(self) -> bool:
        """Whether tuning is private: only the best of a random number of runs is released."""
        return self.tune is not None and self.tune.private

    @property
    def columns(self) -> list[str]:
        """The key columns of the grid's tables: varied and tuned keys; if it tunes, "at_edge"."""
        return [*self.keys, *self.tuned_keys, *([AT_EDGE] if self.tune else [])]

    def settings(self, values: Values) -> Values:
        """Returns `values` as keys of a run file: "method" is replaced by the settings of that
        method.
        """
        bundle = next((m.set for m in self.method if m.name == values.get(METHOD)), {})
        return {**bundle, **{key: value for key, value in values.items() if key != METHOD}}

    def options(self, values: Values) -> dict[str, list[Any]]:
        """Returns the options of each tuned key for a combination `values` of the varied keys."""
        of_method = next((m.tune for m in self.method if m.name == values.get(METHOD)), {})
        return {**self.tune.over, **of_method} if self.tune else {}

    def product(self) -> Iterator[dict[str, Any]]:
        """Yields every combination of varied values, including excluded ones."""
        return key_combinations(self.axes)

    def excludes(self, values: Values) -> bool:
        """Whether an exclusion of the grid matches the combination `values`."""
        return any(matches(values, exclusion) for exclusion in self.exclude)


def key_combinations(lists: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yields every combination that takes one value from each list; the last key varies fastest."""
    for choice in itertools.product(*lists.values()):
        yield dict(zip(lists, choice, strict=True))


def matches(values: Values, exclusion: Values) -> bool:
    """Whether `values` has the values in `exclusion`; a list in `exclusion` permits any value in
    it.
    """
    return all(
        values[key] in excluded if isinstance(excluded, list) else values[key] == excluded
        for key, excluded in exclusion.items()
    )
