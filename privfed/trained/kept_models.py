"""Scores clients' personal models; only for a simulation, since it reads the run's private/ folder.

The objective computes each personal model from the client's state and released values. The model is
scored on the examples that the client holds out for `evaluation.by = "clients"`. If the run holds
out none, the model is scored on all of the client's training examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privfed.client.client_states import ClientStates
from privfed.client.exchange import Broadcast
from privfed.client.objective import Objective
from privfed.core.errors import Refused, resume_command
from privfed.core.parts import built_in_names
from privfed.run.evaluation.heterogeneity import client_scores
from privfed.run.last_state import last_checkpoint, refuse_lost
from privfed.run.setup import Setup
from privfed.run.train import reassemble
from privfed.run.world import client_states
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.trained.personalise import Personalised, client_score, comparison_of

_BATCH_SIZE = 32
_LESS_PUBLIC = "lower data.holdout_fraction"
_NOTE = "a simulation: clients' personal models, scored on {}; no ε covers these scores"
_HELD_BACK = "examples that clients hold out"
_TRAINED = 'all examples of clients, who trained on them (evaluation.by = "clients" holds some out)'


def score_kept_models(path: Path) -> Personalised:
    """Scores the personal models of the clients of the run at `path`, and the run's shared model.

    All clients with examples are scored. A client that never participated has the initial personal
    model.

    Args:
      path: directory of the run.

    Returns:
      Distributions over clients of the scores of the shared model ("before") and of the personal
      models ("after").

    Raises:
      Refused: if clients have no personal models, the run was interrupted within a round, or no
        client has an example to score.
      Busy: while the run is in progress.
      Broken: if a file of the run is damaged or lost.
    """
    directory = RunDirectory.open(path)
    with directory.locked():
        directory.recover()
        config = directory.config.read()
        setup, ledger = reassemble(config, directory)
        objective = setup.executor.trainer.objective
        if not objective.personalises:
            raise Refused(
                "clients of this run keep no personal models; give --personalise the number of "
                "epochs to fine-tune, or train a run with model.local or client.objective = "
                f"{built_in_names('objective', lambda part: part.personalises)}"
            )
        refuse_lost(setup, directory, ledger)
        now = last_checkpoint(setup, directory, ledger)
        if ledger.charges and now.round < ledger.charges[-1].round:
            raise Refused(
                f"{path} was interrupted in round {ledger.charges[-1].round}; resume the run "
                f"first: {resume_command(path)}"
            )
        measures = setup.executor.measures
        scoring = (measures.federation if measures else setup.federation).at(now.round)
        ids = np.flatnonzero(np.diff(scoring.offsets))
        apart = measures is not None and config.evaluation.holdout > 0
        if not len(ids):
            advice = "raise evaluation.holdout or set it to 0" if apart else _LESS_PUBLIC
            raise Refused(f"no client holds an example to score; {advice}, or use other data")
        states = client_states(setup, directory, ledger, now)
        network = setup.executor.trainer.network
        after = [
            client_score(network, scoring, model, client)
            for client, model in _models(setup, objective, now, states, ids)
        ]
    measure, before = client_scores(setup.network, scoring, now.state.params, ids)
    return Personalised(
        path=path,
        round=now.round,
        measure=measure,
        epochs=0,
        note=_NOTE.format(_HELD_BACK if apart else _TRAINED),
        **comparison_of(before, np.array(after), network.loss.lower_is_better),
    )


def _models(
    setup: Setup,
    objective: Objective,
    now: Checkpoint,
    states: ClientStates | None,
    ids: NDArray[np.int64],
) -> Iterator[tuple[int, Tensor]]:
    """Yields the clients `ids` with their personal models `[d]`; `states` are None if not kept."""
    trainer = setup.executor.trainer
    trainer = replace(trainer, federation=setup.federation.at(now.round))
    broadcast = _broadcast(setup, now)
    for start in range(0, len(ids), _BATCH_SIZE):
        some = ids[start : start + _BATCH_SIZE]
        keys = setup.streams.at("measure", now.round, trainer.federation.identify(some))
        theirs = (
            states.gather(some, objective.initial_client_state(broadcast))[0] if states else None
        )
        measured = trainer.losses(some, broadcast["params"], keys)
        models = objective.personal(broadcast, theirs, measured).expand(len(some), -1)
        yield from zip(some.tolist(), models, strict=True)


def _broadcast(setup: Setup, now: Checkpoint) -> Broadcast:
    """Returns the values that the server would send to clients in the next round.

    Raises `ValueError` if the objective needs messages of clients before they train.
    """
    prelude = setup.algorithm.objective.prelude(now.state.params, now.state.objective)
    try:
        exchange = next(prelude)
    except StopIteration as finished:
        return {"params": now.state.params, **finished.value}
    raise ValueError(f"clients would be asked for a {exchange.task} before they train")
