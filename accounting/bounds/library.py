"""dp-accounting, imported without two slow modules of SciPy that plans rarely need.

Importing `scipy.signal` and `scipy.stats` takes 0.4 s, nearly half of the import of dp-accounting.
Deferred functions stand in for both while dp-accounting is imported; their first call imports the
real module. `sys.modules` is then restored, so other code imports the real modules, except for
code of other threads that first imports them in that moment (about 0.1 s).
"""

from __future__ import annotations

import importlib
import operator
import sys
from typing import Any

import scipy.fft  # with the next two, imported before the others are replaced
import scipy.optimize
import scipy.special  # noqa: F401


class Deferred:
    """A module, or one of its functions; a call imports the module and calls the function."""

    def __init__(self, module: str, *path: str) -> None:
        self._module, self._path = module, path

    def __getattr__(self, name: str) -> Deferred:
        """Returns the deferred attribute; raises `AttributeError` for names such as `__spec__`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(self._module, *self._path, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the result of the function itself."""
        module = importlib.import_module(self._module)
        return operator.attrgetter(".".join(self._path))(module)(*arguments, **named)


stats: Any = Deferred("scipy.stats")
_slow: dict[str, Any] = {"scipy.signal": Deferred("scipy.signal"), "scipy.stats": stats}
_slow = {name: deferred for name, deferred in _slow.items() if name not in sys.modules}
sys.modules.update(_slow)
try:
    import dp_accounting
    from dp_accounting import rdp
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
finally:
    for _name in _slow:
        del sys.modules[_name]

__all__ = [
    "dp_accounting",
    "pld_pmf",
    "privacy_loss_distribution",
    "privacy_loss_mechanism",
    "rdp",
    "stats",
]
