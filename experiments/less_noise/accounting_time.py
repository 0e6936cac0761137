"""What accounting for each draw takes: one epsilon by PLD, and all that `privfed calibrate` does.

Each time every process-wide cache of privfed is emptied first, so that it is what a process pays
that asks once. Poisson sampling is measured in the same process, as the reference. Seconds are of
the processor: what else a machine does changes them little.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from accounting.accountants import epsilon
from accounting.guarantee import TIGHTEST
from experiments.less_noise.draws import Draw, allocated, buffered, cyclic, poisson
from experiments.less_noise.noise_table import (
    ALLOCATION,
    BUFFERED,
    IN_BANDS,
    OPTIMISED,
    POISSON,
    Setting,
)
from privfed.plan.calibration.question import CalibrationQuestion
from privfed.plan.calibration.solving import solve
from privfed.privacy.noise.factorization import optimal_buffers

SETTINGS = (Setting(500, 50, 1.0), Setting(2_000, 100, 1.0))
GROUPS = 5
_REPEATS = 5
_CLIENTS = 10_000
_CACHE = type(functools.lru_cache(lambda: None))
Flags = dict[str, Any]
_ASKED: dict[str, Callable[[int], Flags]] = {
    POISSON: lambda apart: {
        **_flags("poisson", "gaussian"),
        "population": _CLIENTS,
        "cohort": _CLIENTS // apart,
    },
    ALLOCATION: lambda apart: {**_flags("allocation", "gaussian"), "slots": apart},
    IN_BANDS: lambda apart: {**_flags("allocation", "banded"), "slots": apart},
    OPTIMISED: lambda apart: {**_flags("cyclic", "banded"), "separation": apart, "bands": apart},
    BUFFERED: lambda apart: {**_flags("cyclic", "blt"), "separation": apart},
}
"""What `privfed calibrate` is asked of each method, by how many rounds a client's are apart."""


def _flags(sampler: str, mechanism: str) -> Flags:
    return {"sampler": sampler, "mechanism": mechanism}


@dataclass(frozen=True)
class Seconds:
    """The median processor time in seconds, and how often that of Poisson sampling it is."""

    rounds: int
    apart: int
    method: str
    work: str
    seconds: float
    over_poisson: float


def accounting_time(
    settings: tuple[Setting, ...] = SETTINGS, repeats: int = _REPEATS
) -> Iterator[Seconds]:
    """Both kinds of work for each method in each of `settings`."""
    for setting in settings:
        for work, each in (("epsilon", epsilons(setting)), ("calibration", calibrations(setting))):
            took = {method: median_seconds(task, repeats) for method, task in each.items()}
            for method, seconds in took.items():
                ratio = seconds / took[POISSON]
                yield Seconds(setting.rounds, setting.apart, method, work, seconds, ratio)


def epsilons(setting: Setting) -> dict[str, Callable[[], object]]:
    """The epsilon of all rounds by PLD, each draw at the noise that its budget needs."""
    apart = setting.apart
    draws: dict[str, Draw] = {
        POISSON: poisson(apart),
        ALLOCATION: allocated(apart),
        IN_BANDS: allocated(apart, GROUPS),
        OPTIMISED: cyclic(apart),
        BUFFERED: buffered(apart, optimal_buffers(2, setting.rounds, apart)),
    }
    return {
        method: functools.partial(
            epsilon, Counter({draw(setting.least(draw)): setting.rounds}), setting.delta, "pld"
        )
        for method, draw in draws.items()
    }


def calibrations(setting: Setting) -> dict[str, Callable[[], object]]:
    """The least noise for the budget, with the bands or buffers that are solved for."""
    return {method: functools.partial(solve, question(method, setting)) for method in _ASKED}


def question(method: str, setting: Setting) -> CalibrationQuestion:
    """What `privfed calibrate` is asked for the noise of `method`."""
    return CalibrationQuestion(
        **_ASKED[method](setting.apart),
        delta=setting.delta,
        accountant=TIGHTEST,
        rounds=setting.rounds,
        epsilon=setting.epsilon,
    )


def median_seconds(task: Callable[[], object], repeats: int) -> float:
    """How long `task` takes from empty caches, but for a first time, which loads what it needs."""
    task()
    return statistics.median(_seconds(task) for _ in range(repeats))


def _seconds(task: Callable[[], object]) -> float:
    empty_caches()
    began = time.process_time()
    task()
    return time.process_time() - began


def empty_caches() -> None:
    """Empty every cache of a module of accounting or privfed that is loaded."""
    ours = [
        each for name, each in sys.modules.items() if name.startswith(("accounting", "privfed"))
    ]
    for module in ours:
        for value in vars(module).values():
            if isinstance(value, _CACHE):
                value.cache_clear()
