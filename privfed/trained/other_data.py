"""Other data for a trained model, and where results about them must not be written."""

from __future__ import annotations

from collections.abc import Sequence

from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.errors import Refused


def on_other_data(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with other [data]. Raises `Refused` for a key of another section."""
    for override in overrides:
        if not override.strip().startswith("data."):
            raise Refused(f"--set {override}: the model is trained; only keys of [data] may change")
    return overridden(config, overrides)


def data_paths(config: Config) -> frozenset[str]:
    """All that [data] names; what of it is a file is no place to write to."""
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))
