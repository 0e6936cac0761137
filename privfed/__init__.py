"""privfed: private and robust federated learning, with an epsilon that can be proved.

What researchers call from Python is offered here, and imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privfed.core import __version__ as __version__

if TYPE_CHECKING:
    from attacks.types import Attack as Attack
    from defenses.types import RowRule as Rule
    from defenses.types import SumRule as SumRule
    from privfed.api.answer import Answer as Answer
    from privfed.api.claims import import_claim as import_claim
    from privfed.api.claims import verify as verify
    from privfed.api.commands import audit as audit
    from privfed.api.commands import calibrate as calibrate
    from privfed.api.commands import compare as compare
    from privfed.api.commands import evaluate as evaluate
    from privfed.api.commands import experiment as experiment
    from privfed.api.commands import export as export
    from privfed.api.commands import predict as predict
    from privfed.api.commands import runs as runs
    from privfed.api.estimators import FederatedClassifier as FederatedClassifier
    from privfed.api.estimators import FederatedRegressor as FederatedRegressor
    from privfed.api.guarantee import RunGuarantee as RunGuarantee
    from privfed.api.guarantee import audit_function as audit_function
    from privfed.api.population import Arrays as Arrays
    from privfed.api.population import Declaration as Declaration
    from privfed.api.population import Table as Table
    from privfed.api.population import declare as declare
    from privfed.api.regression import regression as regression
    from privfed.api.rounds import Round as Round
    from privfed.api.run import Run as Run
    from privfed.api.survival import survival as survival
    from privfed.api.texts import Texts as Texts
    from privfed.api.training import check as check
    from privfed.api.training import load as load
    from privfed.api.training import resume as resume
    from privfed.api.training import start as start
    from privfed.api.training import train as train
    from privfed.client.objective import Objective as Objective
    from privfed.config.config import Config as Config
    from privfed.core.errors import Broken as Broken
    from privfed.core.errors import Refused as Refused
    from privfed.privacy.mechanism import NoisedMechanism as Mechanism
    from privfed.run.outcome import Observer as Observer
    from privfed.sampling.samplers import SizedSampler as Sampler
    from privfed.server.optimizer import WithRate as ServerOptimizer

_PLACES = {
    "Answer": "privfed.api.answer:Answer",
    "Arrays": "privfed.api.population:Arrays",
    "Attack": "attacks.types:Attack",
    "Broken": "privfed.core.errors:Broken",
    "Config": "privfed.config.config:Config",
    "Declaration": "privfed.api.population:Declaration",
    "FederatedClassifier": "privfed.api.estimators:FederatedClassifier",
    "FederatedRegressor": "privfed.api.estimators:FederatedRegressor",
    "Mechanism": "privfed.privacy.mechanism:NoisedMechanism",
    "Objective": "privfed.client.objective:Objective",
    "Observer": "privfed.run.outcome:Observer",
    "Refused": "privfed.core.errors:Refused",
    "Round": "privfed.api.rounds:Round",
    "Rule": "defenses.types:RowRule",
    "Run": "privfed.api.run:Run",
    "RunGuarantee": "privfed.api.guarantee:RunGuarantee",
    "Sampler": "privfed.sampling.samplers:SizedSampler",
    "ServerOptimizer": "privfed.server.optimizer:WithRate",
    "SumRule": "defenses.types:SumRule",
    "Table": "privfed.api.population:Table",
    "Texts": "privfed.api.texts:Texts",
    "audit": "privfed.api.commands:audit",
    "audit_function": "privfed.api.guarantee:audit_function",
    "calibrate": "privfed.api.commands:calibrate",
    "check": "privfed.api.training:check",
    "compare": "privfed.api.commands:compare",
    "declare": "privfed.api.population:declare",
    "evaluate": "privfed.api.commands:evaluate",
    "experiment": "privfed.api.commands:experiment",
    "export": "privfed.api.commands:export",
    "import_claim": "privfed.api.claims:import_claim",
    "load": "privfed.api.training:load",
    "predict": "privfed.api.commands:predict",
    "regression": "privfed.api.regression:regression",
    "resume": "privfed.api.training:resume",
    "runs": "privfed.api.commands:runs",
    "start": "privfed.api.training:start",
    "survival": "privfed.api.survival:survival",
    "train": "privfed.api.training:train",
    "verify": "privfed.api.claims:verify",
}
"""Where each name lies: `module:name`."""

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    """Imports and returns the public name `name`. Raises `AttributeError`."""
    if name not in _PLACES:
        raise AttributeError(f"module 'privfed' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
