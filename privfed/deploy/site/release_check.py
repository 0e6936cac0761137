"""Compares a run that requests statistics with the release that its source states.

Model, loss, optimizers, number of rounds and full participation of a release follow from its
source. A site computes that run itself, and declines any other: the guarantee would hold for
another model, too, but that model is not what a policy allows by "statistics". So policies list no
models and objectives of releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from privfed.config.config import Config
from privfed.core.errors import Refused, public_text


@runtime_checkable
class StatesRelease(Protocol):
    """A source of a release of statistics, which fixes the run that makes this release.

    It makes one example of all rows of a client.
    """

    purpose: ClassVar[str]
    """The release that the source is for, as policies name it."""

    def release_of(self, config: Config) -> Config:
        """Returns the run that makes this release over the population of `config`.

        Raises `Refused` if there is no such run.
        """


def purpose_of(config: Config) -> str:
    """Returns the name that policies use for the release that a run makes by its training rounds.

    This is `purpose` of a source that is a `StatesRelease`, else "training".
    """
    return config.source.purpose if isinstance(config.source, StatesRelease) else "training"


def other_keys(config: Config) -> Iterator[str]:
    """Yields a text for each key in which a run differs from the release that its source states.

    If the source states no release for this run, yields one text with the reason.

    Of [run] only `rounds` is compared: its other keys concern speed, or simulations, which
    `policy_check` checks.

    Args:
      config: a run whose source is a `StatesRelease`.
    """
    assert isinstance(config.source, StatesRelease)
    try:
        stated = _flat(config.source.release_of(config))
    except Refused as error:
        yield f"the run is no release of its source: {public_text(error)}"
        return
    requested = _flat(config)
    for key in sorted(requested.keys() | stated.keys()):
        if requested.get(key) != stated.get(key):
            yield (
                f"{key} is {requested.get(key)!r}, but a release of this source has "
                f"{stated.get(key)!r}; the run has to be one that --run-file writes"
            )


def _flat(config: Config) -> Mapping[str, Any]:
    """Returns the values of all keys, by "section.key"; of [run], that of `rounds` only."""
    values = {**config.values(), "run": {"rounds": config.run.rounds}}
    return {f"{name}.{key}": value for name, keys in values.items() for key, value in keys.items()}
