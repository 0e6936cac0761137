"""What a run takes up where it stopped: its last checkpoint, and the releases after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from accounting.ledger import Charge, Ledger
from privfed.errors import Broken
from privfed.round.algorithm import TrainingState
from privfed.round.play import replay
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


def state_from_releases(
    charge: Charge, setup: Setup, state: TrainingState, directory: RunDirectory
) -> TrainingState | None:
    """The state after a charged round, from what it released; None where it did not release all.

    Raises `Broken` for a release that belongs to another charge.
    """
    stored = directory.releases.read(charge.round, state.params.device)
    if stored is None:
        return None
    if stored.charge != charge.hash:
        raise Broken(
            f"{directory.path}: the release of round {charge.round} does not belong to its charge; "
            "the directory was edited"
        )
    released = stored.released
    algorithm = setup.algorithm_in(charge.round)
    if len(released) < algorithm.exchanges:
        return None
    after = replay(algorithm, charge.round, state, released)
    return replace(after, mechanism=stored.mechanism)


def last_checkpoint(setup: Setup, directory: RunDirectory, ledger: Ledger) -> Checkpoint:
    """The last checkpoint. Raises `Broken` where the ledger lacks what it saw."""
    checkpoint = Checkpoint.load(directory, setup.network, setup.network.initial_params.device)
    if not ledger.holds(checkpoint.head):
        raise Broken(
            f"{directory.ledger} ends before what the checkpoint saw; charges were removed, and "
            "the epsilon of this run can no longer be proved"
        )
    fresh = setup.initial_state()
    for kind in ("server", "mechanism", "objective", "rule"):
        stored, expected = getattr(checkpoint.state, kind), getattr(fresh, kind)
        if _form(stored) != _form(expected):
            raise Broken(
                f"{directory.path}: the checkpoint's {kind} state is {_form(stored)}; expected "
                f"{_form(expected)}"
            )
    return checkpoint


def _form(state: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in state.items()}
