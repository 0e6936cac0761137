"""Other data for a trained model, and where results about them must not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.errors import Refused

OtherData = Sequence[str] | Callable[[Config], Config]
"""Overrides `data.key=value`, or a function that gives a configuration with other [data]."""


def on_other_data(config: Config, other: OtherData) -> Config:
    """`config` with other [data]. Raises `Refused` for a key of another section."""
    if callable(other):
        return other(config)
    for override in other:
        if not override.strip().startswith("data."):
            raise Refused(f"--set {override}: the model is trained; only keys of [data] may change")
    return overridden(config, other)


def data_paths(config: Config) -> frozenset[str]:
    """All that [data] names; what of it is a file is no place to write to."""
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))
