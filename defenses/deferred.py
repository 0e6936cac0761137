"""Lazy imports of torch and of other modules that are slow to import.

The class of a rule contains both its declarations (needs, tolerances) and its computation. Code
that reads only the declarations does not need torch, whose import takes longer than reading them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Deferred(ModuleType):
    """A proxy of a module, which is imported when an attribute of the proxy is first read."""

    def __getattr__(self, attribute: str) -> Any:
        """Returns the module's attribute and caches it, so it is looked up only once.

        Raises `AttributeError` for names that begin with two underscores.
        """
        if attribute.startswith("__"):  # attributes that tools look up on every module
            raise AttributeError(attribute)
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import torch as torch
    from scipy import optimize as optimize
    from torch import Tensor as Tensor
else:
    Tensor = Any  # named in annotations only
    torch = Deferred("torch")
    optimize = Deferred("scipy.optimize")
