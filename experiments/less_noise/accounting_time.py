"""The time of accounting for each sampler: one epsilon by PLD, and a whole `privfed calibrate`.

Each time every process-wide cache of privfed is emptied first, so the time is that of the first
query of a process. Poisson sampling is measured in the same process, as the reference. Times are
processor seconds, on which other programs have little effect.
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
_REQUIRED: dict[str, Callable[[int], Flags]] = {
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
"""The arguments of `privfed calibrate` for each method, by the separation of participations."""


def _flags(sampler: str, mechanism: str) -> Flags:
    return {"sampler": sampler, "mechanism": mechanism}


@dataclass(frozen=True)
class Seconds:
    """The median processor time in seconds, and its ratio to that of Poisson sampling."""

    rounds: int
    apart: int
    method: str
    work: str
    seconds: float
    over_poisson: float


def accounting_time(
    settings: tuple[Setting, ...] = SETTINGS, repeats: int = _REPEATS
) -> Iterator[Seconds]:
    """Yields both kinds of work for each method in each of `settings`."""
    for setting in settings:
        for work, each in (("epsilon", epsilons(setting)), ("calibration", calibrations(setting))):
            took = {method: median_seconds(task, repeats) for method, task in each.items()}
            for method, seconds in took.items():
                ratio = seconds / took[POISSON]
                yield Seconds(setting.rounds, setting.apart, method, work, seconds, ratio)


def epsilons(setting: Setting) -> dict[str, Callable[[], object]]:
    """Returns tasks that compute the epsilon of all rounds by PLD, at the noise for the budget."""
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
    """Returns tasks that compute the least noise for the budget, with solved bands or buffers."""
    return {method: functools.partial(solve, question(method, setting)) for method in _REQUIRED}


def question(method: str, setting: Setting) -> CalibrationQuestion:
    """Returns the query to `privfed calibrate` for the noise of `method`."""
    return CalibrationQuestion(
        **_REQUIRED[method](setting.apart),
        delta=setting.delta,
        accountant=TIGHTEST,
        rounds=setting.rounds,
        epsilon=setting.epsilon,
    )


def median_seconds(task: Callable[[], object], repeats: int) -> float:
    """Returns the time of `task` from empty caches, after an uncounted first run that loads
    modules.
    """
    task()
    return statistics.median(_seconds(task) for _ in range(repeats))


def _seconds(task: Callable[[], object]) -> float:
    empty_caches()
    began = time.process_time()
    task()
    return time.process_time() - began


def empty_caches() -> None:
    """Empties every cache of a loaded module of accounting or privfed."""
    ours = [
        each for name, each in sys.modules.items() if name.startswith(("accounting", "privfed"))
    ]
    for module in ours:
        for value in vars(module).values():
            if isinstance(value, _CACHE):
                value.cache_clear()
