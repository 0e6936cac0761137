"""privfed: private and robust federated learning, with an epsilon that can be proved.

What researchers call from Python is offered here, and imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privfed.version import __version__ as __version__

if TYPE_CHECKING:
    from attacks.types import Attack as Attack
    from defenses.types import RowRule as Rule
    from defenses.types import SumRule as SumRule
    from privfed.config.config import Config as Config
    from privfed.errors import Broken as Broken
    from privfed.errors import Refused as Refused
    from privfed.local.objectives.sgd import Sgd as Objective
    from privfed.privacy.mechanisms.noised import NoisedMechanism as Mechanism
    from privfed.python.answer import Answer as Answer
    from privfed.python.commands import audit as audit
    from privfed.python.commands import calibrate as calibrate
    from privfed.python.commands import compare as compare
    from privfed.python.commands import evaluate as evaluate
    from privfed.python.commands import experiment as experiment
    from privfed.python.commands import export as export
    from privfed.python.commands import predict as predict
    from privfed.python.commands import runs as runs
    from privfed.python.guarantee import RunGuarantee as RunGuarantee
    from privfed.python.guarantee import audit_function as audit_function
    from privfed.python.people import Arrays as Arrays
    from privfed.python.people import Declaration as Declaration
    from privfed.python.people import Table as Table
    from privfed.python.people import declare as declare
    from privfed.python.run import Run as Run
    from privfed.python.training import check as check
    from privfed.python.training import load as load
    from privfed.python.training import resume as resume
    from privfed.python.training import train as train
    from privfed.run.outcome import Observer as Observer
    from privfed.sampling.samplers import SizedSampler as Sampler
    from privfed.server.optimizer import WithRate as ServerOptimizer

_PLACES = {
    "Answer": "privfed.python.answer:Answer",
    "Arrays": "privfed.python.people:Arrays",
    "Attack": "attacks.types:Attack",
    "Broken": "privfed.errors:Broken",
    "Config": "privfed.config.config:Config",
    "Declaration": "privfed.python.people:Declaration",
    "Mechanism": "privfed.privacy.mechanisms.noised:NoisedMechanism",
    "Objective": "privfed.local.objectives.sgd:Sgd",
    "Observer": "privfed.run.outcome:Observer",
    "Refused": "privfed.errors:Refused",
    "Rule": "defenses.types:RowRule",
    "Run": "privfed.python.run:Run",
    "RunGuarantee": "privfed.python.guarantee:RunGuarantee",
    "Sampler": "privfed.sampling.samplers:SizedSampler",
    "ServerOptimizer": "privfed.server.optimizer:WithRate",
    "SumRule": "defenses.types:SumRule",
    "Table": "privfed.python.people:Table",
    "audit": "privfed.python.commands:audit",
    "audit_function": "privfed.python.guarantee:audit_function",
    "calibrate": "privfed.python.commands:calibrate",
    "check": "privfed.python.training:check",
    "compare": "privfed.python.commands:compare",
    "declare": "privfed.python.people:declare",
    "evaluate": "privfed.python.commands:evaluate",
    "experiment": "privfed.python.commands:experiment",
    "export": "privfed.python.commands:export",
    "load": "privfed.python.training:load",
    "predict": "privfed.python.commands:predict",
    "resume": "privfed.python.training:resume",
    "runs": "privfed.python.commands:runs",
    "train": "privfed.python.training:train",
}
"""Where each name lies: `module:name`."""

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    """The public name `name`, imported now. Raises `AttributeError`."""
    if name not in _PLACES:
        raise AttributeError(f"module 'privfed' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
