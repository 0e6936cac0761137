"""A run of further clients, who were not in an earlier one: they only score its model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.assembly import assembled
from privfed.config.config import Config
from privfed.config.overrides import assign, override
from privfed.errors import Refused
from privfed.run.prepare import prepare
from privfed.run.train import begin
from privfed.store.run_directory import RunDirectory


def begin_with_further_clients(run: Path, data: Iterable[str], out: Path) -> None:
    """Begin a run in `out` over the clients of other `data`, at the model of `run`; no round yet.

    Its ledger is about these people alone. That nobody of them was in `run` is declared by asking
    so, and stands there as `privacy.disjoint`: what the model tells of its own people is not in
    their epsilon. Raises `Refused`, having written nothing.
    """
    config = _over_others(RunDirectory.open(run), run, data)
    before = priors(config)
    setup = prepare(config, before)
    refuse_once_public(before, setup.federation)
    directory = RunDirectory.create(out)
    with directory.locked():
        begin(setup, before, directory)


def _over_others(directory: RunDirectory, run: Path, data: Iterable[str]) -> Config:
    """The configuration of `run` over other people, all of whom are protected."""
    raw = directory.config.read().raw()
    before = dict(raw["data"])
    for assignment in data:
        override(raw, assignment)
    if raw["data"] == before:
        raise Refused("--out begins a run of further clients; say whose data: --data, or --set")
    others: dict[str, Any] = {"data.holdout": "none", "model.init": str(run)}
    others |= {"privacy.prior": [], "privacy.disjoint": [str(run)]}
    for key, value in others.items():
        assign(raw, key, value)
    return assembled(raw)
