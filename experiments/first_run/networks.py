"""Chosen learning rates and clips: `python -m experiments.first_run.networks [FAMILY …]`.

Each family is trained with only rounds, cohort and ε set. Without privacy, it is also trained with
every learning rate that could be chosen; the best of these runs is the tuned result. All results
are appended to `networks.csv`; the exit code is 1 if a family without privacy gains less than 90 %
of the tuned improvement over the baseline, or one of 500 clients at ε = 8 does not beat the
baseline.
"""

from __future__ import annotations

import csv
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import privfed
from experiments.first_run.families import FAMILIES
from privfed.run.rates import RATES

_RESULTS = Path(__file__).with_name("networks.csv")
_SEEDS = range(5)
_EPSILONS = (math.inf, 8.0, 2.0)
"""Infinite without privacy."""
_ROUNDS, _COHORT = 60, 100
_ENOUGH = 0.9
_AUTO = "auto"

Key = tuple[str, float, int, str]


@dataclass(frozen=True)
class Result:
    """One run, its losses and first measure on public examples, and those of the baseline.

    `set_rate` is the learning rate that was set, or "auto".
    """

    family: str
    epsilon: float
    seed: int
    set_rate: str
    rate: float
    clip: float
    loss: float
    baseline: float
    measure: str
    value: float
    constant: float
    lower_is_better: bool

    @property
    def key(self) -> Key:
        return self.family, self.epsilon, self.seed, self.set_rate

    @property
    def judged(self) -> bool:
        """Whether it is compared with other rates: without privacy, by the first seed."""
        return self.epsilon == math.inf and self.seed == 0

    @property
    def gain(self) -> float:
        """The improvement of the first measure over the baseline's."""
        gain = self.value - self.constant
        return -gain if self.lower_is_better else gain


def trained(name: str, epsilon: float, seed: int, rate: str, rounds: int = _ROUNDS) -> Result:
    """Trains a family once; a simulation, so that it is repeatable."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model = family.model if isinstance(family.model, str) else family.model()
    private = epsilon < math.inf
    privacy = {"epsilon": epsilon} if private else {"mechanism": "none"}
    run = privfed.train(
        family.population(seed),
        model=model,
        rounds=rounds,
        run={"randomness": "seeded", "seed": seed, "evaluate_every": 20},
        cohort={"size": min(_COHORT, family.clients // 2)},
        client={} if rate == _AUTO else {"lr": float(rate)},
        privacy=privacy,
        temporary=True,
        progress=False,
    )
    config, summary = run.config, run.summary
    measure = config.loss.measure
    return Result(
        family=name,
        epsilon=epsilon,
        seed=seed,
        set_rate=rate,
        rate=config.client.lr,
        clip=float(config.mechanism.clip) if private else math.inf,
        loss=summary["loss"],
        baseline=summary["constant"]["loss"],
        measure=measure,
        value=summary[measure],
        constant=summary["constant"][measure],
        lower_is_better=config.loss.lower_is_better,
    )


def table(results: list[Result]) -> str:
    """Returns Markdown: the first measure of chosen rates, and of the best rate without privacy."""
    lines = [
        "| family | measure | baseline | tuned | no privacy | ε = 8 | ε = 2 | rate | improvement |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(result.family for result in results):
        of = [result for result in results if result.family == family]
        chosen = [result for result in of if result.set_rate == _AUTO]
        tuned = _tuned(of)
        values = [_mean([r.value for r in chosen if r.epsilon == e]) for e in _EPSILONS]
        rates = ", ".join(sorted({f"{r.rate:g}" for r in chosen if r.epsilon == math.inf}))
        lines.append(
            f"| {family} | {of[0].measure} | {of[0].constant:.3g} | {tuned.value:.3g} | "
            f"{' | '.join(values)} | {rates} | {share(of):.0%} |"
        )
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.3g}" if values else "not run"


def _tuned(of: list[Result]) -> Result:
    """The best run without privacy of seed 0, whatever its rate."""
    return max((r for r in of if r.judged), key=lambda r: r.gain)


def share(of: list[Result]) -> float:
    """The improvement with the chosen rate, as a fraction of the improvement of the tuned run."""
    (chosen,) = (r for r in of if r.judged and r.set_rate == _AUTO)
    return chosen.gain / _tuned(of).gain


def short(results: list[Result]) -> list[str]:
    """Returns a sentence for each family whose result misses the study's target."""
    found = []
    for family in dict.fromkeys(result.family for result in results):
        of = [result for result in results if result.family == family]
        if share(of) < _ENOUGH:
            found.append(f"{family}: {share(of):.0%} of the tuned improvement without privacy")
        behind = [r for r in of if r.epsilon == 8 and r.gain <= 0]
        if behind and FAMILIES[family].clients >= 500:
            seeds = ", ".join(str(result.seed) for result in behind)
            found.append(f"{family}: not better than the baseline at ε = 8, seeds {seeds}")
    return found


def main(names: list[str]) -> int:
    """Runs what `networks.csv` lacks of the requested families, and judges all results."""
    results = read()
    for name in names or FAMILIES:
        wanted = [(name, e, seed, _AUTO) for seed in _SEEDS for e in _EPSILONS]
        wanted += [(name, math.inf, 0, f"{rate:g}") for rate in RATES]
        for key in wanted:
            if key not in results:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        result = trained(*key)
                    except privfed.Refused as error:  # a rate at which training diverges
                        print(*key, error, flush=True)
                        continue
                results[result.key] = result
                _write(list(results.values()))
                print(*astuple(result), flush=True)
    judged = list(results.values())
    print(table(judged))
    print("\n".join(short(judged)))
    return 1 if short(judged) else 0


def read() -> dict[Key, Result]:
    """Returns the stored results by family, ε, seed and rate."""
    if not _RESULTS.exists():
        return {}
    kinds: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": int,
        "float": float,
        "bool": lambda text: text == "True",
    }
    rows = csv.DictReader(_RESULTS.read_text("utf-8").splitlines())
    types = Result.__annotations__
    results = [Result(**{key: kinds[types[key]](row[key]) for key in row}) for row in rows]
    return {result.key: result for result in results}


def _write(results: list[Result]) -> None:
    with _RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Result))
        for result in results:
            writer.writerow(f"{v:.5g}" if isinstance(v, float) else v for v in astuple(result))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
