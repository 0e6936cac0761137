"""A first-time user's run: a table declared from its public rows, trained with the defaults."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.first_run.tables import CLIENT, SOURCES, Written, write
from privfed.config.assembly import assembled
from privfed.config.config import Raw
from privfed.config.overrides import assign
from privfed.config.reading import as_written
from privfed.data.declaring.declare import declare
from privfed.run.train import train

SEEDS = (0, 1, 2)
_ROUNDED = 4


@dataclass(frozen=True)
class Result:
    """A run's first measure and loss on the public rows, each next to that of the baseline."""

    table: str
    private: bool
    seed: int
    measure: str
    value: float
    constant: float
    loss: float
    constant_loss: float
    lower_is_better: bool
    diverged: bool

    @property
    def worse(self) -> bool:
        """Whether the baseline has the better first measure."""
        gain = self.constant - self.value if self.lower_is_better else self.value - self.constant
        return not gain >= 0

    def cells(self) -> tuple[Any, ...]:
        return tuple(round(v, _ROUNDED) if isinstance(v, float) else v for v in astuple(self))

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Result:
        kinds: dict[str, Callable[[str], Any]] = {
            "str": str,
            "bool": lambda text: text == "True",
            "int": int,
            "float": float,
        }
        types = cls.__annotations__
        return cls(**{key: kinds[types[key]](text) for key, text in row.items()})


def first_run(name: str, private: bool, seed: int, folder: Path) -> Result:
    """Runs the defaults on the table or source called `name`; simulated, so that it is
    repeatable.
    """
    written = None if name in SOURCES else write(name, folder)
    raw = _declared(written, folder) if written else {}
    for key, value in {
        **(_facts(written) if written else SOURCES[name]),
        **({} if private else {"privacy.mechanism": "none"}),
        "run.randomness": "seeded",
        "run.seed": seed,
        "run.evaluate_every": 20,
    }.items():
        assign(raw, key, value)
    config = assembled(raw)
    outcome = train(config, folder / "run")
    shutil.rmtree(folder / "run")
    measure, value = next(iter(outcome.measures.items()))
    return Result(
        name,
        private,
        seed,
        measure,
        value,
        outcome.constant[measure],
        outcome.measures["loss"],
        outcome.constant["loss"],
        config.loss.lower_is_better,
        outcome.divergence.established,
    )


def _declared(written: Written, folder: Path) -> Raw:
    """Returns the output of `privfed declare` for the public rows, edited for several labels."""
    path = folder / "run.toml"
    text = declare(written.public, written.labels[0], CLIENT, str(written.private), ",")
    path.write_text(text, encoding="utf-8")
    raw = as_written(path)
    if len(written.labels) > 1:
        features = raw["data"]["features"]
        raw["data"]["features"] = {k: v for k, v in features.items() if k not in written.labels}
        raw["data"]["label"] = list(written.labels)
        raw["data"].pop("classes")
        raw["model"]["loss"] = "multi_label"
    return raw


def _facts(written: Written) -> dict[str, Any]:
    """Returns the values that a user fills in: hospitals, half of them per round, and public
    rows.
    """
    return {
        "data.clients": written.hospitals,
        "data.holdout": "test",
        "data.test_path": str(written.public),
        "cohort.size": max(written.hospitals // 2, 5),
    }


def table(results: list[Result]) -> str:
    """Returns Markdown: means over seeds and the worst seed, without and with privacy."""
    lines = ["| table | measure | a constant | no privacy | ε = 4 |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(result.table for result in results):
        of = [result for result in results if result.table == name]
        cells = [_spread([f for f in of if f.private is private]) for private in (False, True)]
        lines.append(f"| {name} | {of[0].measure} | {of[0].constant:.4g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(of: list[Result]) -> str:
    if not of:
        return "—"
    values = [result.value for result in of]
    worst = max(values) if of[0].lower_is_better else min(values)
    return f"{fmean(values):.4g} ({worst:.4g})"
