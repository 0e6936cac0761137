"""torch, and what else is slow to import, imported when something of it is first used.

A rule declares what it needs and tolerates, and computes, in one class. What goes with what is
asked of the declarations alone, and importing torch takes longer than the answer.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Deferred(ModuleType):
    """The module of that name, which is imported once something of it is used."""

    def __getattr__(self, attribute: str) -> Any:
        """The module's attribute, kept, so that it is looked up here once."""
        if attribute.startswith("__"):  # what tools ask of every module
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
