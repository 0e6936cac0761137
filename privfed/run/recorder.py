"""Records a run in progress: measures on public examples, and its spending."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.data.federation import Federation
from privfed.metrics.measure import Estimate
from privfed.round.algorithm import TrainingState
from privfed.round.tally import Tally
from privfed.run.evaluation.charged_measures import (
    PREFIX,
    charged_measures,
    in_metrics,
    over_groups,
)
from privfed.run.evaluation.divergence import Baseline, Divergence
from privfed.run.evaluation.heterogeneity import measure_clients
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class Stopping:
    """The early-stopping rule, which counts in `since` the last evaluations no better than `best`.

    `by` is the measure that is compared. A run stops when `since` reaches `patience`.

    For a measure with an interval, the best is an estimate, and the best of many is biased by its
    noise. An evaluation therefore counts only if even the better end of its interval is no better.
    The rule reads public or charged measures only, so the time of stopping is post-processing.
    """

    patience: int
    by: str
    lower_is_better: bool
    best: float = math.nan
    since: int = 0

    def after(self, measures: Mapping[str, float]) -> Stopping:
        """Returns the count after an evaluation; unchanged if `measures` lacks the measure `by`."""
        value = measures.get(self.by, math.nan)
        if math.isnan(value):
            return self
        end = measures.get(f"{self.by}_{'low' if self.lower_is_better else 'high'}", value)
        if math.isnan(self.best) or self._better(value):
            return replace(self, best=value, since=0)
        return replace(self, since=0 if self._better(end) else self.since + 1)

    def _better(self, value: float) -> bool:
        return value < self.best if self.lower_is_better else value > self.best

    @property
    def over(self) -> bool:
        """Whether the run stops early: `since` has reached `patience`; False if `patience` is 0."""
        return 0 < self.patience <= self.since


def stopping_of(setup: Setup) -> Stopping:
    """The early-stopping rule of a run.

    It uses the measure `stop.by`, or else the first measure of the run's evaluations.
    """
    config, measures = setup.plan.config, setup.executor.measures
    patience, by, loss = config.stop.patience, config.stop.by, config.loss
    if measures:
        named = zip(config.evaluation.measures, measures.row.measures, strict=True)
        measure = dict(named)[by or config.evaluation.measures[0]]
        title = measure.title(measures.row.scoring)
        return Stopping(patience, f"{PREFIX}{title}", measure.lower_is_better)
    lower = loss.lower_is_better if by in ("", loss.measure) else by == "loss"
    return Stopping(patience, by or loss.measure, lower)


class Recorder:
    """Evaluates a run's checkpoints, and writes metrics.jsonl.

    `tally` counts values that no epsilon covers; None if that is not enabled.
    """

    def __init__(
        self,
        setup: Setup,
        directory: RunDirectory,
        ledger: Ledger,
        tally: Tally | None,
        begin: Checkpoint,
    ) -> None:
        self._setup, self._directory, self._ledger, self._tally = setup, directory, ledger, tally
        self._baseline = Baseline(setup.network.loss)
        self.public = len(setup.federation.test) > 0
        """Whether there is a public test set."""
        if self.public:
            self._baseline.go_on(directory.metrics.losses(), self._population(begin).test)
        evaluation = setup.plan.config.evaluation
        self._groups = evaluation.group if evaluation.by == "test" else ""
        self.stopping = stopping_of(setup)
        for measures in directory.metrics.by_round(dict).values():
            self.stopping = self.stopping.after(measures)

    def record(
        self, now: Checkpoint, measures: Mapping[str, float], counts: Mapping[str, Any]
    ) -> RoundRecord:
        """Writes a line to metrics.jsonl for the checkpoint's round, and returns its record.

        `measures` are those of the model; `counts` are the round's, to which totals over the rounds
        since the last record are added.
        """
        setup, population = self._setup, self._population(now)
        simulation = {**counts, **(self._tally.totals() if self._tally else {})}
        if setup.plan.config.run.client_measures:
            trainer = setup.executor.trainer
            network = setup.network if setup.network.local.names else trainer.network
            trainer = replace(trainer, federation=population, network=network)
            simulation |= measure_clients(trainer, now.state.params)
        diverging = False
        if self.public and not setup.network.local.names:  # else clients use other models
            diverging = self._baseline.judge(now.round, measures["loss"], population.test)
        warning = self.divergence.sentence(setup.plan.mechanism.private) if diverging else ""
        fresh = int(now.state.evaluation.get("round", 0)) == now.round
        charged = in_metrics(self.last_charged(now.state)) if fresh else {}
        public = {**measures, **charged, **_released_clip(now), "epsilon": self.epsilon(now)}
        self.stopping = self.stopping.after(public)
        record = RoundRecord(now.round, public, simulation, warning)
        self._write(record)
        return record

    def measures(self, now: Checkpoint) -> dict[str, float]:
        """Measures on the public test set and its groups, and the success of a targeted attack.

        Without a test set, the measures are the clients' last ones.
        """
        network, params = self._setup.network, now.state.params
        if not self.public:
            return {name: each.value for name, each in self.last_charged(now.state).items()}
        test = self._population(now).test
        measures = network.evaluate(params, test)
        if self._groups:
            measures |= over_groups(network, params, test, self._groups)
        if self._setup.targeted is not None:
            measures["attack_success"] = network.evaluate(params, self._setup.targeted)["accuracy"]
        return measures

    def last_charged(self, state: TrainingState) -> Mapping[str, Estimate]:
        """The clients' last measures; empty if they never evaluated."""
        released = state.evaluation.get("released")
        return {} if released is None else charged_measures(self._setup, released)

    def constant(self, now: Checkpoint) -> Mapping[str, float]:
        """The measures of the best constant prediction, on a public test set; empty without one."""
        if not self.public:
            return {}
        return self._baseline.on(self._population(now).test)

    @property
    def divergence(self) -> Divergence:
        """The counts of evaluations on which the model is worse than the baseline."""
        return self._baseline.divergence

    def _population(self, now: Checkpoint) -> Federation:
        return self._setup.federation.at(now.round)

    def epsilon(self, now: Checkpoint) -> float:
        """The ε of earlier runs and of all charges up to and including the checkpoint's round."""
        privacy = self._setup.plan.config.privacy
        spending = self._ledger.spending_until(now.round)
        return guarantee(spending, privacy.delta, privacy.accountant).epsilon

    def _write(self, record: RoundRecord) -> None:
        line: dict[str, Any] = {"format": 1, "round": record.round, **record.public}
        if record.simulation:
            line["simulation_only"] = record.simulation
        self._directory.metrics.append(line)


def tally_of(setup: Setup, expected: Forecast, directory: RunDirectory) -> Tally | None:
    """Returns an observer of unclipped rows; None unless `run.simulation_metrics` is set."""
    config, mechanism = setup.plan.config, setup.plan.mechanism
    if not config.run.simulation_metrics:
        return None
    adapts = bool(mechanism.init())  # an adaptive clip itself reports the number of clipped rows
    clip = mechanism.clip if mechanism.private and not adapts else None
    down, up = expected.down / expected.cohort, expected.up / expected.cohort
    counts = setup.federation.examples.counts
    note, work = directory.ranks.append, setup.executor.work
    return Tally(clip, counts, work, config.devices, down, up, note)


def _released_clip(now: Checkpoint) -> dict[str, float]:
    """The clip that a mechanism with adaptive clipping released; empty for others."""
    clip = now.state.mechanism.get("clip")
    return {} if clip is None else {"clip": float(clip)}
