"""Adds one charged release to a run, also after its end: its clients evaluate its model.

*Releases*: the noised average of rows of measures (`privfed.metrics.measure_row`), each clipped to
norm 1, of a cohort sampled for this purpose by the run's sampler. *Unit, adjacency and sampler* are
the run's. It is one event in the run's own ledger, charged before any client is sampled, as for
every round. The noise is calibrated so that this event alone spends the requested ε. If the ε of
all charges then exceeds the run's budget, the budget is raised to that ε (1 + 1e-9). The ledger
states the new budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from accounting.documents import Encoded
from accounting.events import Event
from accounting.guarantee import guarantee, spent
from accounting.ledger import Ledger
from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.assembly import assembled
from privfed.config.config import Config
from privfed.config.overrides import assign, override
from privfed.core.errors import Refused, resume_command
from privfed.metrics.measure import Estimate
from privfed.models.form import Form
from privfed.models.local_part import missing_part
from privfed.plan.byzantine import refuse_uncharged_aborts
from privfed.plan.evaluation_cost import as_evaluation, measure_row_of
from privfed.plan.plan import refuse, solve_plan
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.run.assemble import evaluation_of
from privfed.run.evaluation.charged_measures import charged_measures
from privfed.run.last_state import last_checkpoint, refuse_lost
from privfed.run.loop import Ending, outcome_of
from privfed.run.prepare import prepare
from privfed.run.recorder import Recorder
from privfed.run.setup import Setup
from privfed.run.train import begin, reassemble
from privfed.run.world import build_world
from privfed.secure.summation import Aborted
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory

_ROUNDED = 1e-9
"""Relative margin of a raised budget above the spending, for rounding on other machines."""


@dataclass(frozen=True)
class ClientEvaluation(Encoded):
    """The `measures` that clients made in `round` of the run at `path`, and the spending after it.

    `confidence` is that of the measures' intervals. `alone` is the epsilon of this release only,
    `epsilon` that of all charges of the run and of the earlier runs that it counts, both at
    `delta`.
    """

    path: Path
    round: int
    measures: Mapping[str, Estimate]
    confidence: float
    alone: float
    epsilon: float
    delta: float
    on_trained: bool
    """Whether clients evaluated on examples that this model was also trained on."""
    personal: bool = False
    """Whether each client evaluated its personal model instead of the run's."""
    lacks: str = ""
    """The part of the model that only clients store, so that it was not evaluated; "" if none."""


def evaluate_by_clients(
    run: Path | RunDirectory, epsilon: float | None, keys: Mapping[str, Any]
) -> ClientEvaluation:
    """Charges and executes one round in which clients evaluate the model of `run`.

    Args:
      run: directory of the run.
      epsilon: epsilon of this release alone; None for a run without privacy.
      keys: keys of [evaluation] to change.

    Returns:
      The released measures, and the run's spending afterwards.

    Raises:
      Refused: before any charge, if another run counts this run, if this run was interrupted, if
        `epsilon` is missing or has no use, or if the evaluation has no proof; after the charge, if
        the sum aborts.
    """
    directory = RunDirectory.open(run)
    with directory.locked():
        directory.recover()
        directory.refuse_if_counted()
        config = directory.config.read()
        setup, ledger = reassemble(config, directory)
        refuse_lost(setup, directory, ledger)
        evaluating = for_one_evaluation(setup, epsilon, keys)
        return _evaluated(evaluating, setup, directory, ledger)


def for_one_evaluation(setup: Setup, epsilon: float | None, keys: Mapping[str, Any]) -> Setup:
    """Returns the setup for one more round of a run, in which clients evaluate.

    Raises `Refused` unless `epsilon` is given for private runs and only for these, and for a run to
    which no evaluation can be added: private tuning chose it, noise is distributed, sites are
    remote, or the sampler or mechanism depends on earlier rounds.
    """
    config = setup.plan.config
    if config.mechanism.private == (epsilon is None):
        state, remedy = ("private", "pass") if epsilon is None else ("not private", "leave out")
        raise Refused(
            f"epsilon is {epsilon}, but this run is {state}; {remedy} the epsilon of this "
            "evaluation, which only private runs have"
        )
    if config.chosen:
        raise Refused(
            "private tuning chose this run among several candidates, and the charge for the choice "
            "covers only the rounds that each candidate planned; set evaluation.by = "
            '"clients" before tuning'
        )
    if setup.plan.other is not None or config.at_remote_sites:
        raise Refused(
            "this run cannot be evaluated by clients afterwards, because clients or sites add the "
            'noise, or sites are on other machines; set evaluation.by = "clients" before a run '
            "starts, so that its ledger states the evaluation"
        )
    remembers = setup.algorithm.sampler.remembers or setup.algorithm.mechanism.remembers
    if remembers:
        raise Refused(
            f"cohort.sampler is {config.names['sampler']!r} and privacy.mechanism is "
            f"{config.names['mechanism']!r}, but one of them has a proof for planned rounds only; "
            'set evaluation.by = "clients" before a run starts'
        )
    raw = config.raw()
    requested = {**keys, "by": "clients", "every": 2}
    for key, value in requested.items():
        assign(raw, f"evaluation.{key}", value)
    further = {"run.rounds": 2, "stop.patience": 0, "stop.by": ""}
    if epsilon is not None:
        further["privacy.epsilon"] = epsilon
    for key, value in further.items():
        assign(raw, key, value)
    wanted = assembled(raw)
    refuse(wanted)
    length = measure_row_of(wanted, Form.of(setup.federation.examples)).length
    plan = solve_plan(as_evaluation(wanted, length).with_run(rounds=1), length=length)
    earlier = setup.executor.measures
    scored = earlier.federation if earlier else setup.federation
    personal = wanted.evaluation.personal
    algorithm, measures = evaluation_of(plan, scored, setup.network, personal)
    return replace(
        setup,
        plan=replace(setup.plan, config=replace(config, evaluation=wanted.evaluation)),
        evaluation=algorithm,
        executor=replace(setup.executor, measures=measures),
    )


def _evaluated(
    evaluating: Setup, setup: Setup, directory: RunDirectory, ledger: Ledger
) -> ClientEvaluation:
    """Charges and executes the round, stores its release, and returns the measures.

    The checkpoint is saved before the round, in the state from which the run continues if a crash
    or an abort loses the round's release.
    """
    begin = last_checkpoint(setup, directory, ledger)
    last = ledger.charges[-1].round if ledger.charges else 0
    if begin.round < last:
        raise Refused(
            f"{directory.path} was interrupted in round {last}; resume the run first: "
            f"{resume_command(directory.path)}"
        )
    algorithm, round = evaluating.evaluation, last + 1
    assert algorithm is not None
    event, privacy = algorithm.event(round), setup.plan.config.privacy
    refuse_uncharged_aborts(setup.plan, len(directory.exclusions.before(round)), [event])
    _raise_budget(setup, ledger, event, directory)
    Checkpoint(round, begin.updates, begin.state, ledger.head()).save(directory, setup.network)
    world = build_world(evaluating, directory, ledger, begin)
    try:
        state = run_round(round, algorithm, begin.state, world)
    except Aborted as aborted:
        directory.aborts.note(round, str(aborted))
        raise Refused(
            f"round {round} was charged, but its sum aborted; see the reason in aborts.jsonl"
        ) from aborted
    end = Checkpoint(round, begin.updates, state, ledger.head())
    recorder = Recorder(evaluating, directory, ledger, None, end)
    recorder.record(end, recorder.measures(end), {})
    _end(replace(end, state=_counted(begin.state)), setup, directory, ledger)
    return ClientEvaluation(
        path=directory.path,
        round=round,
        measures=charged_measures(evaluating, state.evaluation["released"]),
        confidence=evaluating.plan.config.evaluation.confidence,
        alone=guarantee({event: 1}, privacy.delta, privacy.accountant).epsilon,
        epsilon=spent(ledger, privacy.delta, privacy.accountant).epsilon,
        delta=privacy.delta,
        on_trained=begin.updates > 0 and not _hold_back(setup),
        personal=evaluating.plan.config.evaluation.personal,
        lacks="" if evaluating.plan.config.evaluation.personal else missing_part(setup.network),
    )


def _hold_back(setup: Setup) -> bool:
    """Whether clients of this run evaluate only on examples that they hold out of training."""
    return setup.executor.measures is not None and setup.plan.config.evaluation.holdout > 0


def _counted(state: TrainingState) -> TrainingState:
    """Returns the state with the number of evaluations increased by one."""
    count = int(state.evaluation.get("count", 0)) + 1
    return replace(state, evaluation={**state.evaluation, "count": torch.tensor(count)})


def _end(end: Checkpoint, setup: Setup, directory: RunDirectory, ledger: Ledger) -> None:
    """Saves the checkpoint `end`, and updates the stored outcome with the current spending."""
    end.save(directory, setup.network)
    config = directory.config.read()
    plan = replace(setup.plan, config=config, budgets=ledger.budgets)
    setup = replace(setup, plan=plan)
    recorder = Recorder(setup, directory, ledger, None, end)
    ending = Ending(end, directory.stopped_at_budget())
    outcome = outcome_of(setup, directory, ledger, recorder, ending)
    directory.write_summary(outcome.to_json())


def _raise_budget(setup: Setup, ledger: Ledger, event: Event, directory: RunDirectory) -> None:
    """If the release exceeds the run's budget, raises the budget, and writes that to the ledger.

    Raises `Refused` if no epsilon bounds the release together with the earlier charges.
    """
    privacy, budget = setup.plan.config.privacy, setup.plan.budget
    together = {**ledger.spending, event: ledger.spending.get(event, 0) + 1}
    total = guarantee(together, privacy.delta, privacy.accountant).epsilon
    if total == math.inf and setup.plan.mechanism.private:
        raise Refused(
            "no finite epsilon bounds this release together with the run's earlier charges; set "
            'evaluation.by = "clients" before a run starts'
        )
    if budget is not None and total > budget:
        held = budget if ledger.budget is None else ledger.budget
        raised = total * (1 + _ROUNDED)
        ledger.change_budget(held, raised, event)
        directory.config.change(setup.plan.config.run.rounds, raised)


def evaluate_by_further_clients(
    run: Path, data: Iterable[str], out: Path, epsilon: float | None, keys: Mapping[str, Any]
) -> ClientEvaluation:
    """Begins a run over the clients of other `data`, who evaluate the model of `run` once.

    The new run is written to `out`, and its ledger covers these clients only. The caller declares
    that none of them was in `run`; the new run records that as `privacy.disjoint`. Their epsilon
    does not cover what the model reveals about the population of `run`. The clients evaluate the
    run's model, since none of them has a personal model.

    Args:
      run: directory of the run to evaluate.
      data: assignments to keys of [data], as on the command line.
      out: directory of the new run.
      epsilon: epsilon of this release alone; None for a run without privacy.
      keys: keys of [evaluation].

    Returns:
      The released measures, and the new run's spending.

    Raises:
      Refused: if the evaluation is not possible, with nothing written; or if the charged sum
        aborts.
    """
    if keys.get("personal"):
        raise Refused(
            "evaluation.personal is true, but further clients have not trained and keep no "
            "models; leave evaluation.personal out, so that they score the run's model",
            key="evaluation.personal",
        )
    wanted = {**keys, "personal": False}
    config = _over_others(RunDirectory.open(run), run, data)
    before = priors(config)
    setup = prepare(config, before)
    refuse_once_public(before, setup.federation)
    for_one_evaluation(setup, epsilon, wanted)  # refuses a run without a round
    directory = RunDirectory.create(out)
    with directory.locked():
        begin(setup, before, directory)
    return evaluate_by_clients(out, epsilon, wanted)


def _over_others(directory: RunDirectory, run: Path, data: Iterable[str]) -> Config:
    """Returns the configuration of `run` for another population, whose clients are all protected.

    `data` may name further runs in `privacy.disjoint`: those that trained the initial model of
    `run`.
    """
    raw = directory.config.read().raw()
    before = dict(raw["data"])
    raw["privacy"]["disjoint"] = []
    for assignment in data:
        override(raw, assignment)
    disjoint = list(dict.fromkeys([str(run), *raw["privacy"]["disjoint"]]))
    if raw["data"] == before:
        raise Refused(
            "--out begins a run of further clients, but their data are missing; name "
            "the data by --data, or by --set data.KEY=VALUE"
        )
    others: dict[str, Any] = {"data.holdout": "none", "model.init": str(run)}
    others |= {"privacy.prior": [], "privacy.disjoint": disjoint}
    for key, value in others.items():
        assign(raw, key, value)
    return assembled(raw)
