"""A run of further clients, who were not in an earlier one: they only score its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.assembly import assembled
from privfed.config.config import Config
from privfed.config.overrides import assign, override
from privfed.errors import Refused
from privfed.run.evaluation.evaluate_by_clients import (
    ClientEvaluation,
    evaluate_by_clients,
    for_one_evaluation,
)
from privfed.run.prepare import prepare
from privfed.run.train import begin
from privfed.store.run_directory import RunDirectory


def evaluate_by_further_clients(
    run: Path, data: Iterable[str], out: Path, epsilon: float, keys: Mapping[str, Any]
) -> ClientEvaluation:
    """Begin a run in `out` over the clients of other `data`, who score the model of `run` once.

    Its ledger is about these people alone. That nobody of them was in `run` is declared by asking
    so, and stands there as `privacy.disjoint`: what the model tells of its own people is not in
    their epsilon. They score the run's model, since none of them keeps another. Raises `Refused`,
    having written nothing, unless the charged sum itself aborts.
    """
    if keys.get("personal"):
        raise Refused(
            "evaluation.personal is true, but further clients have trained nothing, and keep no "
            "models; leave it out: they score the run's model",
            key="evaluation.personal",
        )
    wanted = {**keys, "personal": False}
    config = _over_others(RunDirectory.open(run), run, data)
    before = priors(config)
    setup = prepare(config, before)
    refuse_once_public(before, setup.federation)
    for_one_evaluation(setup, epsilon, wanted)  # refuses what would leave a run without a round
    directory = RunDirectory.create(out)
    with directory.locked():
        begin(setup, before, directory)
    return evaluate_by_clients(out, epsilon, wanted)


def _over_others(directory: RunDirectory, run: Path, data: Iterable[str]) -> Config:
    """The configuration of `run` over other people, all of whom are protected.

    Runs that `privacy.disjoint` names in `data` are declared disjoint beside `run`: those that it
    began from.
    """
    raw = directory.config.read().raw()
    before = dict(raw["data"])
    raw["privacy"]["disjoint"] = []
    for assignment in data:
        override(raw, assignment)
    disjoint = list(dict.fromkeys([str(run), *raw["privacy"]["disjoint"]]))
    if raw["data"] == before:
        raise Refused("--out begins a run of further clients; say whose data: --data, or --set")
    others: dict[str, Any] = {"data.holdout": "none", "model.init": str(run)}
    others |= {"privacy.prior": [], "privacy.disjoint": disjoint}
    for key, value in others.items():
        assign(raw, key, value)
    return assembled(raw)
