"""The best of a random number of runs as one release, which a ledger states and charges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting.choosing.repetitions import Repetitions
from accounting.errors import Unaccountable
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import Release, Repeated, release_from_json

_UNCOUNTED = (Separated, RandomAllocation, BufferedToeplitz, Repeated)
"""Releases that `accounting.events.summable` replaces by others; `of` may not contain them."""


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best of a random number of runs, each of which makes all the releases of `of`.

    `of` holds pairs of a release and the number of times that a run makes it. Only the best run is
    released, and the number of runs is secret (`accounting.choosing.private_selection`).
    """

    of: tuple[tuple[Release, int], ...]
    repetitions: Repetitions
    kind: ClassVar[str] = "repeat_and_select"

    def __post_init__(self) -> None:
        if not self.of or any(type(count) is not int or count < 1 for _, count in self.of):
            raise Unaccountable(
                f"a run's releases are {self.of!r}; expected at least one release, with its count"
            )
        for release, _ in self.of:
            if isinstance(release, _UNCOUNTED):
                raise Unaccountable(
                    f"a run's releases contain a {release.kind} release, whose cost depends on the "
                    "number of rounds; expected its composition over the rounds"
                )

    def to_json(self) -> dict[str, Any]:
        of = [[release.to_json(), count] for release, count in self.of]
        return {"kind": self.kind, "of": of, **self.repetitions.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RepeatAndSelect:
        """Returns the release that `to_json` wrote. Raises the errors of `release_from_json`."""
        of = tuple((release_from_json(release), count) for release, count in data["of"])
        return cls(of, Repetitions(data["shape"], data["gamma"]))
