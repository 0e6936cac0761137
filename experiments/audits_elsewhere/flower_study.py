"""Flower's accounted central DP, tested with the numbers of releases on the study's page.

    python -m experiments.audits_elsewhere.flower_study

Writes flower_central_dp.csv and flower_one_run.csv into this folder: some twenty minutes on one
core. It needs Flower 1.42 and no torch.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from accounting.durable import write_atomically
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from experiments.audits_elsewhere import flower_central_dp as flower
from experiments.audits_elsewhere.flower_one_run import OneRun, play
from privfed.auditing.function_audit import FunctionClaim, audit_function
from privfed.auditing.released_function import ReleasedFunction

HERE = Path(__file__).parent
SCENES = {
    "one_more": 10_000,
    "twice_as_many": 30_000,
    "ten_times_as_many": 10_000,
    "everybody_takes_part": 10_000,
    "its_place_stays": 10_000,
    "sends_no_number": 1_000,
}
"""Number of releases of each neighbour."""
RUNS = (OneRun(1), OneRun(10), OneRun(1, canaries=2000, cohort=550))
_SEED = 1


def main() -> None:
    screen = Console()
    for name, lines in (("flower_central_dp.csv", _scenes()), ("flower_one_run.csv", _runs())):
        table = []
        for line in lines:
            table.append(line)
            screen.print(line, highlight=False)
        write_atomically(HERE / name, _csv(table).encode())


def true_epsilon(scene: flower.CentralDp) -> float:
    """Returns the epsilon between the two inputs of `scene` at `DELTA`; for zero-out, a bound on
    it.

    If the target leaves, the sum moves by two clipping norms with the probability that the target
    is sampled: a Gaussian of half the noise multiplier against a mixture, as for a Poisson sample
    of one client. If its place remains, the sum moves by at most one clipping norm. Infinite for a
    row that is not finite.
    """
    if not np.isfinite(scene.row):
        return math.inf
    noise = Gaussian(flower.NOISE_MULTIPLIER / (2 if scene.leaves else 1))
    if not scene.leaves:
        return guarantee({Event(noise, "full"): 1}, flower.DELTA).epsilon
    event = Event(PoissonSampled(flower.COHORT / scene.clients, noise), "poisson")
    return guarantee({event: 1}, flower.DELTA).epsilon


def _scenes() -> Iterator[dict[str, Any]]:
    for name, releases in SCENES.items():
        scene: flower.CentralDp = getattr(flower, name)
        claim = FunctionClaim.of_profile(scene.profile, flower.DELTA)
        audited = audit_function(ReleasedFunction.of(scene, name), claim, releases)
        yield {
            "scene": name,
            "clients": scene.clients,
            "cohort": flower.COHORT,
            "relation": "add/remove" if scene.leaves else "zero-out",
            "releases": releases,
            "epsilon_claimed": claim.epsilon,
            "epsilon_true": true_epsilon(scene),
            "epsilon_lower_bound": max(each.verdict.epsilon_lower for each in audited.tested),
            "p_value": audited.p_value,
            "refuted": audited.refuted,
            "flwr": version("flwr"),
        }


def _runs() -> Iterator[dict[str, Any]]:
    for number, run in enumerate(RUNS):
        verdict = play(run, np.random.default_rng([_SEED, number]))
        yield {
            "rounds": run.rounds,
            "canaries": run.canaries,
            "cohort": run.cohort,
            "clients": run.clients,
            "length": run.length,
            "epsilon_claimed": verdict.epsilon,
            "guesses": verdict.guesses.made,
            "right": verdict.guesses.right,
            "epsilon_lower_bound": verdict.epsilon_lower,
            "epsilon_most": verdict.epsilon_most,
            "p_value": verdict.p_value,
            "flwr": version("flwr"),
        }


def _csv(table: Sequence[dict[str, Any]]) -> str:
    """Returns CSV with one line per scene or run."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(table[0]), lineterminator="\n")
    writer.writeheader()
    for line in table:
        writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()})
    return out.getvalue()


if __name__ == "__main__":
    main()
