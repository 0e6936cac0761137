"""Other projects' implementations, for comparison; loaded where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import warnings
from typing import Any


def byzfl(module: str) -> Any:
    """Returns ByzFL's module "aggregators" or "preaggregators"; None if ByzFL is not installed.

    ByzFL's package imports torchvision, which its rules do not need, so they are loaded without it.
    """
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or not spec.submodule_search_locations:
            return None
        for name in ("byzfl", "byzfl.aggregators"):
            package = types.ModuleType(name)
            folder = name.removeprefix("byzfl").replace(".", "/")
            package.__path__ = [place + folder for place in spec.submodule_search_locations]
            sys.modules[name] = package
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"byzfl.aggregators.{module}")
