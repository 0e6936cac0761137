"""The modules of privfed that a plan and a round enter, and the switches between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

CENTRAL = ("data.clients=60", "cohort.size=10", "run.rounds=1")
MASKED = (
    *CENTRAL, "privacy.mechanism=skellam", "secure.protocol=masks", "data.setting=cross_silo",
    "cohort.sampler=full", "data.clients=12", "cohort.size=12", "privacy.epsilon=8",
)  # fmt: skip
HOUSE = Path(__file__).resolve().parents[1]
ROOT = str(HOUSE / "privfed")
sys.path.insert(0, str(HOUSE))  # else a script in tests/ finds tests/privfed


def entered(action: Callable[[], Any]) -> tuple[int, int]:
    """Returns the number of modules that `action` enters, and of switches between modules."""
    places: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and (not places or places[-1] != name):
            places.append(name)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return len({*places}), len(places) - 1


def flows() -> dict[str, tuple[int, int]]:
    """Returns `entered` of a plan, a round with central noise, and one of masked sums."""
    from privfed.config.reading import load
    from privfed.plan.plan import plan
    from privfed.round.round import run_round
    from privfed.run import loop
    from privfed.run.train import train

    counts = {}
    kept = loop.run_round

    def counted(name: str) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            answers: list[Any] = []
            counts[name] = entered(lambda: answers.append(run_round(*arguments, **named)))
            return answers[0]

        return run

    config = load(None, CENTRAL)
    plan(config)  # excludes one-time imports and caches
    counts["a plan"] = entered(lambda: plan(config))
    for name, keys in {"a round, central noise": CENTRAL, "a round, masks": MASKED}.items():
        loop.run_round = counted(name)  # type: ignore[assignment]
        try:
            with TemporaryDirectory() as folder:
                train(load(None, keys), Path(folder) / "run")
        finally:
            loop.run_round = kept
    return counts
