"""The models that clients keep for themselves, scored: a simulation, which reads private/.

Each client's is made of what it keeps and of what the run released, as the objective says, and is
scored on the examples that it holds back for `evaluation.by = "clients"`, or, where it holds none
back, on those that it trained on.
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
from privfed.core.errors import Refused
from privfed.core.parts import offered
from privfed.run.evaluation.heterogeneity import client_scores
from privfed.run.last_state import last_checkpoint, refuse_lost
from privfed.run.setup import Setup
from privfed.run.train import reassemble
from privfed.run.world import client_states
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.trained.personalise import Personalised, client_score, comparison_of

_AT_ONCE = 32
_NOTE = "a simulation: what clients keep, which no ε covers, on {}"
_HELD_BACK = "examples that they hold back"
_TRAINED = 'all their examples, which they trained on (evaluation.by = "clients" holds some back)'


def score_kept_models(path: Path) -> Personalised:
    """Score the models that the clients of the run at `path` use for themselves, beside the run's.

    A client that never took part has none but what newcomers begin with. Raises `Refused` where
    clients have none, or none of them has an example to score.
    """
    directory = RunDirectory.open(path)
    with directory.locked():
        directory.recover()
        config = directory.config.read()
        setup, ledger = reassemble(config, directory)
        objective = setup.executor.trainer.objective
        if not objective.personalises:
            raise Refused(
                "clients of this run keep no model of their own; expected one with model.local, or "
                f"client.objective = {offered('objective', lambda part: part.personalises)}: give "
                "--personalise the epochs to fine-tune for, or train such a run"
            )
        refuse_lost(setup, directory, ledger)
        now = last_checkpoint(setup, directory, ledger)
        if ledger.charges and now.round < ledger.charges[-1].round:
            raise Refused(
                f"{path} was interrupted in round {ledger.charges[-1].round}; go on with it first: "
                f"privfed train --resume {path}"
            )
        measures = setup.executor.measures
        scoring = (measures.federation if measures else setup.federation).at(now.round)
        ids = np.flatnonzero(np.diff(scoring.offsets))
        if not len(ids):
            raise Refused("no client holds an example to score")
        states = client_states(setup, directory, ledger, now)
        network = setup.executor.trainer.network
        after = [
            client_score(network, scoring, model, client)
            for client, model in _models(setup, objective, now, states, ids)
        ]
    measure, before = client_scores(setup.network, scoring, now.state.params, ids)
    apart = measures is not None and config.evaluation.holdout > 0
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
    """The model `[d]` that each of clients `ids` uses for itself."""
    trainer = setup.executor.trainer
    trainer = replace(trainer, federation=setup.federation.at(now.round))
    broadcast = _broadcast(setup, now)
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        keys = setup.streams.at("measure", now.round, trainer.federation.identify(some))
        theirs = states.gather(some, objective.unseen(broadcast))[0] if states else None
        measured = trainer.losses(some, broadcast["params"], keys)
        models = objective.personal(broadcast, theirs, measured).expand(len(some), -1)
        yield from zip(some.tolist(), models, strict=True)


def _broadcast(setup: Setup, now: Checkpoint) -> Broadcast:
    """What the next round would broadcast, which asks clients nothing before it trains."""
    prelude = setup.algorithm.objective.prelude(now.state.params, now.state.objective)
    try:
        exchange = next(prelude)
    except StopIteration as finished:
        return {"params": now.state.params, **finished.value}
    raise ValueError(f"clients would be asked for a {exchange.task} before they train")
