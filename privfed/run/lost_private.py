"""What only a run's private/ knows, and what can still be done where some of it is gone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from accounting.ledger import Ledger
from privfed.errors import Broken
from privfed.plan.rule import numbers_per_history
from privfed.run.setup import Setup
from privfed.run.world import keeps_key, keeps_states
from privfed.store.run_directory import RunDirectory


def refuse_lost(setup: Setup, directory: RunDirectory, ledger: Ledger) -> None:
    """Raises `Broken` where a run that was charged lacks what it keeps in private/.

    All of it is there, durably, before the first charge: until then what is missing is made anew.
    """
    if not ledger.charges:
        return
    lost = {path: what for path, what in _kept(setup, directory) if not path.is_file()}
    if lost:
        raise Broken("\n".join((*_losses(lost), *_ways_on(directory))))


def _kept(setup: Setup, directory: RunDirectory) -> Iterator[tuple[Path, str]]:
    """Every file that cannot be made again, and what goes with it."""
    sampler, mechanism = setup.algorithm.sampler, setup.algorithm.mechanism
    if keeps_key(setup):
        follows = {
            "the noise of past rounds, which later ones would cancel": mechanism.remembers,
            "who takes part when, which charges rest on": sampler.remembers,
            "which canaries are in": setup.plan.config.audit.canaries > 0,
        }
        yield (
            directory.key.path,
            ", and ".join(what for what, applies in follows.items() if applies),
        )
    if keeps_states(setup):
        yield directory.states, "what clients remembered, without which they train otherwise"
    if numbers_per_history(setup.plan.config, setup.network.shapes.length):
        yield directory.histories, "what the rule remembers of clients, which it judges them by"
    if setup.plan.config.audit.by_inputs:
        yield directory.canary_examples, "the examples that canaries trained on"
    if setup.plan.config.audit.canaries:
        yield directory.canaries, "what canaries saw of past rounds, without which ε is not tested"


def _losses(lost: Mapping[Path, str]) -> Iterator[str]:
    yield "this run cannot go on; some of what only it knew is missing:"
    for path, what in lost.items():
        yield f"{path}: {what}"


def _ways_on(directory: RunDirectory) -> Iterator[str]:
    run, round = str(directory.path), directory.checkpoint.round()
    counted = shlex.quote(f"privacy.prior={json.dumps([run])}")
    yield (
        "Restore private/ as it was when the run stopped (an older copy would give two models the "
        "same noise)."
    )
    yield (
        f"Without it, the model of round {round} and the ledger stay valid: privfed evaluate, "
        "export and audit read them. A new run may start from them, and counts what was spent: "
        f"privfed train RUN.toml --set {counted} --set {shlex.quote(f'model.init={run}')}"
    )
