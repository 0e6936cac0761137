"""The trained cases, and their evaluators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privfed.config.config import Config
from privfed.config.reading import load

HERE = Path(__file__).parent
PATIENCE, LONGER = 3, 5
SEEDS = 20
SEEDS_AT_THE_END = 40


@dataclass(frozen=True)
class Case:
    """Clients and a model: a run file, and changes to it."""

    file: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arm:
    """The evaluation of a case, and its number of seeds."""

    changes: tuple[str, ...] = ()
    held_back: bool = False
    seeds: int = SEEDS

    @property
    def charged(self) -> bool:
        """Whether clients evaluate."""
        return "evaluation.by=clients" in self.changes

    @property
    def stops(self) -> bool:
        """Whether the study reports when such runs would have stopped."""
        return not self.held_back and "evaluation.every=120" not in self.changes


_THOUSANDS = ("data.clients=5000", "cohort.size=500", "evaluation.size=5000")
CASES = {
    "digits": Case("run.toml"),
    "table": Case("table.run.toml"),
    "large table": Case("table.run.toml", _THOUSANDS),
    "fast digits": Case("run.toml", ("model.name=mlp", "server.lr=2")),
}

_CHARGED = ("evaluation.by=clients",)
_BY_LOSS = ('evaluation.measures=["loss"]',)
_FOUR_TIMES = ("budget.evaluation=0.2",)
TEST, HELD_BACK, END, TENS = "test set", "held back", "at the end", "every ten"
TENS_BY_LOSS, TENS_FIFTH = "every ten by loss", "every ten at a fifth"
ARMS = {
    TEST: Arm(),
    HELD_BACK: Arm(held_back=True),
    END: Arm((*_CHARGED, "evaluation.every=120"), seeds=SEEDS_AT_THE_END),
    TENS: Arm(_CHARGED),
    TENS_BY_LOSS: Arm((*_CHARGED, *_BY_LOSS)),
    TENS_FIFTH: Arm((*_CHARGED, *_FOUR_TIMES)),
}


def configured(case: str, arm: str, seed: int) -> Config:
    """Returns the configuration of a run."""
    changes = (*CASES[case].changes, *ARMS[arm].changes, f"run.seed={seed}")
    return load(HERE / CASES[case].file, changes)
