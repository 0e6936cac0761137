"""The loop: rounds within a budget, observed, checkpointed, and resumable after any crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from accounting.errors import BudgetExceeded
from accounting.guarantee import Gate, Guarantee, guarantee, spent, stated
from accounting.ledger import Ledger
from privfed.auditing.canaries.clients import ListeningStore, with_canaries
from privfed.auditing.canaries.log import FINAL
from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.config import Config
from privfed.data.federation import Federation
from privfed.errors import Refused
from privfed.plan.plan import ON_TRAINED, Plan
from privfed.ranks import ALONE, Ranks
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.round.tally import Tally
from privfed.round.world import World
from privfed.run.constant_baseline import Baseline
from privfed.run.divergence import Divergence
from privfed.run.forecast import Forecast, forecast
from privfed.run.heterogeneity import measure_clients
from privfed.run.ledger_terms import mark_counted, reassemble, terms, write_companions
from privfed.run.lost_private import refuse_lost
from privfed.run.prepare import prepare
from privfed.run.resume import (
    allowed_change,
    canaries,
    client_states,
    correlated,
    private_silos,
    replay,
    restored,
    with_kept_key,
)
from privfed.run.setup import Setup
from privfed.run.worker_rank import Leading, refuse_ranks
from privfed.secure.summation import Aborted
from privfed.store.checkpoint import Checkpoint
from privfed.store.kept_heads import keep_heads, refuse_unusable_heads
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class RoundRecord:
    """A round that was evaluated. `public` may leave; `simulation` only where the run opted in.

    `warning` says once that the run gets worse than a constant answer, and what to do.
    """

    round: int
    public: Mapping[str, Any]
    simulation: Mapping[str, Any] = field(default_factory=dict)
    warning: str = ""


class Observer(Protocol):
    """Metrics, progress, figures: told of rounds, never part of them."""

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None: ...

    def after_round(self, round: int) -> None: ...

    def aborted(self, round: int, reason: str) -> None: ...

    def after(self, record: RoundRecord) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `measures` are the loss's own (the first is the one to look at), and "loss", and `constant`
    those of the best answer that looks at nothing. `updates` counts
    rounds that moved the model, `charges` all that were paid for, `aborts` those whose secure sum
    was aborted, and why; `guarantee` covers all charges and what earlier runs over the same
    population had spent. `public` counts clients declared public; `test_shared`: clients of the
    test set trained too.
    """

    plan: Plan
    path: Path
    measures: Mapping[str, float]
    test_examples: int
    updates: int
    charges: int
    guarantee: Guarantee
    stopped_at_budget: bool
    ledger_head: str
    public: int = 0
    test_shared: bool = False
    aborts: Mapping[int, str] = field(default_factory=dict)
    constant: Mapping[str, float] = field(default_factory=dict)
    divergence: Divergence = field(default_factory=Divergence)

    @property
    def note(self) -> str | None:
        """What readers of the measures have to know."""
        return self.plan.simulation or (ON_TRAINED if self.test_shared else None)

    @property
    def accuracy(self) -> float:
        """Raises `KeyError` where the loss has no such measure."""
        return self.measures["accuracy"]

    def to_json(self) -> dict[str, Any]:
        """The object `--json` ends with."""
        bound = asdict(self.guarantee)
        return {
            **self.measures,
            "constant": dict(self.constant),
            "diverged": self.divergence.to_json(),
            "test_examples": self.test_examples,
            "public_clients": self.public,
            "start": self.plan.config.start.init or None,
            "epsilon": bound["epsilon"],
            "delta": bound["delta"],
            "unit": self.plan.event.unit,
            "relation": self.plan.event.relation,
            "sampler": self.plan.event.sampler,
            "accountant": bound["accountant"],
            "accountants": bound["by_accountant"],
            "noise_multiplier": self.plan.noise_multiplier,
            "guarantees": stated(
                self.guarantee, *self.plan.also(self.charges), void=self.plan.void
            ),
            "rounds": self.updates,
            "charges": self.charges,
            "aborted": len(self.aborts),
            "prior": self.plan.config.privacy.prior,
            "disjoint": self.plan.config.privacy.disjoint,
            "uncovered": self.guarantee.uncovered or None,
            "budget": self.plan.budget,
            "budgets": [asdict(change) for change in self.plan.budgets],
            "stopped_at_budget": self.stopped_at_budget,
            "simulation": self.plan.simulation is not None,
            "note": self.note,
            "test_shared": self.test_shared,
            "guarantee": self.plan.void,
            "ledger_head": self.ledger_head,
            "run": str(self.path),
        }


def train(
    config: Config, out: Path, observers: Sequence[Observer] = (), ranks: Ranks = ALONE
) -> Outcome:
    """Train `config` into the new directory `out`, together with all other `ranks`.

    Raises `Refused`, having written nothing, where the configuration cannot run.
    """
    refuse_ranks(config, ranks.count)
    refuse_unusable_heads(config.run.heads, out)
    before = priors(config)
    setup = prepare(config, before)
    refuse_once_public(before, setup.federation)
    directory = RunDirectory.create(out)
    with directory.locked():
        RunDirectory.create(out)  # once more, now that nobody else can begin here
        directory.config.write(setup.plan.config)
        write_companions(setup, before, directory)
        mark_counted(before, directory)
        ledger = Ledger.create(directory.ledger, terms(setup, before, directory))
        keep_heads(ledger, config.run.heads)
        Checkpoint(0, 0, setup.start(), ledger.head()).save(directory, setup.network)
        return _loop(setup, directory, ledger, observers, ranks)


def resume(
    path: Path,
    change: Callable[[Config], Config],
    observers: Sequence[Observer] = (),
    ranks: Ranks = ALONE,
) -> Outcome:
    """Go on with the run at `path`. `change` gives the configuration wanted from the stored one.

    Only `run.rounds` (upward) and `privacy.epsilon` may change; the noise multiplier stays.
    Raises `Refused` for any other change and `Broken` where the directory was edited.
    """
    directory = RunDirectory.open(path)
    with directory.locked():
        directory.recover()
        stored = directory.config.read()
        wanted = allowed_change(stored, change(stored))
        refuse_ranks(wanted, ranks.count)
        setup, ledger = reassemble(wanted, directory)
        refuse_lost(setup, directory, ledger)
        _refuse_less_than_spent(setup.plan, ledger)
        setup = _state_budget(setup, stored.privacy.epsilon, directory, ledger)
        if wanted.values() != stored.values():
            directory.config.change(wanted.run.rounds, wanted.privacy.epsilon)
        return _loop(setup, directory, ledger, observers, ranks)


def _loop(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    observers: Sequence[Observer],
    ranks: Ranks,
) -> Outcome:
    """From the last checkpoint to the last round, or to the budget."""
    run, privacy = setup.plan.config.run, setup.plan.config.privacy
    if setup.plan.budget is not None:
        ledger.gate = Gate(setup.plan.budget, privacy.delta, privacy.accountant, run.rounds)
    ledger.reexecutes = run.randomness == "seeded"
    begin = restored(setup, directory, ledger)
    directory.metrics.cut(begin.round)
    directory.aborts.mend()
    expected = forecast(setup)
    tally = _tally(setup, expected) if run.simulation_metrics else None
    states = client_states(setup, directory, ledger, begin)
    streams = with_kept_key(setup, directory, ledger)
    world = World(
        executor=replace(
            setup.executor,
            states=states,
            silos=private_silos(setup, directory, ledger),
            ranks=ranks,
        ),
        people=setup.federation.people(),
        ledger=ledger,
        store=directory.releases,
        streams=streams,
        correlated=correlated(setup, streams),
        watch=tally,
        attackers=setup.attackers,
        states=states,
        ranks=ranks,
    )
    made_up = canaries(setup, directory, streams)
    if made_up:
        clip = float(setup.plan.config.mechanism.clip)
        world = with_canaries(world, setup.federation.clients, clip, *made_up)
    baseline = Baseline(setup.network.loss)
    baseline.go_on(directory.metrics.losses(), setup.federation.at(begin.round).test)
    for observer in observers:
        observer.before(setup.plan, expected, directory.path, begin.round)
    end, stopped = _rounds(setup, directory, ledger, world, begin, tally, baseline, observers)
    _save(end, setup, world, directory)
    if made_up:
        drawn, log = made_up
        log.append(FINAL, drawn.products_with([end.state.params - setup.network.start]))
    outcome = _outcome(setup, directory, ledger, end, stopped, baseline)
    directory.write_summary(outcome.to_json())
    return outcome


def _rounds(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    world: World,
    now: Checkpoint,
    tally: Tally | None,
    baseline: Baseline,
    observers: Sequence[Observer],
) -> tuple[Checkpoint, bool]:
    """Every round after `now`: where they ended, and whether that was at the budget."""
    run = setup.plan.config.run
    constants = setup.network.digest()
    leading = Leading(world.ranks)
    leading.begin(setup)
    for round in range(now.round + 1, run.rounds + 1):
        try:
            moved = _advance(round, setup, now.state, ledger, world, directory, leading)
        except BudgetExceeded:
            leading.end()
            return now, True
        except Aborted as aborted:
            moved = None
            if world.states:
                world.states.discard()
            directory.aborts.note(round, str(aborted))
            for observer in observers:
                observer.aborted(round, str(aborted))
        updates, state = (now.updates + 1, moved) if moved else (now.updates, now.state)
        now = Checkpoint(round, updates, state, ledger.head())
        _require_finite(now)
        counts = tally.take() if tally else {}
        if round % run.evaluate_every == 0 or round == run.rounds:
            counts |= tally.totals() if tally else {}
            record = _record(setup, now, ledger, counts, baseline)
            _write_metrics(directory, record)
            for observer in observers:
                observer.after(record)
        for observer in observers:
            observer.after_round(round)
        if round % run.checkpoint_every == 0 or round == run.rounds:
            _require_constant(setup, constants)
            _save(now, setup, world, directory)
    leading.end()
    return now, False


def _advance(
    round: int,
    setup: Setup,
    state: TrainingState,
    ledger: Ledger,
    world: World,
    directory: RunDirectory,
    leading: Leading,
) -> TrainingState | None:
    """The state after `round`, or None where the round was consumed without an update.

    A round that a secret run charged before it crashed is never drawn again: what it released is
    replayed byte for byte, and if it released nothing (or not all), it is spent. Raises `Aborted`.
    """
    charge = ledger.charged(round)
    if charge is not None and not ledger.reexecutes:
        replayed = replay(charge, setup, state, directory)
        if isinstance(world.store, ListeningStore) and (stored := directory.releases.read(round)):
            world.store.note(round, stored.released)
        if world.states:
            world.states.replay(round, released=replayed is not None)
        return replayed
    leading.round(round, state)
    leading.known = run_round(round, setup.algorithm, state, world)
    return leading.known


def _save(now: Checkpoint, setup: Setup, world: World, directory: RunDirectory) -> None:
    """The checkpoint first: what clients remember can be folded in again after a crash."""
    now.save(directory, setup.network)
    if world.states:
        world.states.settle(now.round)


def _tally(setup: Setup, expected: Forecast) -> Tally:
    moves = bool(setup.plan.mechanism.init())  # a clip that adapts says itself how many it clips
    clip = setup.plan.mechanism.clip if setup.plan.mechanism.private and not moves else None
    down, up = expected.down / expected.cohort, expected.up / expected.cohort
    counts, devices = setup.federation.examples.counts, setup.plan.config.devices
    return Tally(clip, counts, setup.executor.work, devices, down, up)


def _record(
    setup: Setup, now: Checkpoint, ledger: Ledger, counts: Mapping[str, Any], baseline: Baseline
) -> RoundRecord:
    privacy, population = setup.plan.config.privacy, setup.federation.at(now.round)
    measures = _scored(setup, now, population)
    if setup.plan.config.run.client_measures:
        trainer = replace(setup.executor.trainer, federation=population)
        counts = {**counts, **measure_clients(trainer, now.state.params)}
    so_far = guarantee(ledger.spending_until(now.round), privacy.delta, privacy.accountant)
    clip = now.state.mechanism.get("clip")  # as released
    follows = {} if clip is None else {"clip": float(clip)}
    diverging = baseline.judge(now.round, measures["loss"], population.test)
    warning = baseline.divergence.sentence(setup.plan.mechanism.private) if diverging else ""
    public = {**measures, **follows, "epsilon": so_far.epsilon}
    return RoundRecord(now.round, public, counts, warning)


def _scored(setup: Setup, now: Checkpoint, population: Federation) -> dict[str, float]:
    """The model on the public test set; with an attack that has a target, how often that is met."""
    measures = setup.network.evaluate(now.state.params, population.test)
    if setup.targeted is not None:
        met = setup.network.evaluate(now.state.params, setup.targeted)
        measures["attack_success"] = met["accuracy"]
    return measures


def _outcome(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    end: Checkpoint,
    stopped: bool,
    baseline: Baseline,
) -> Outcome:
    privacy, population = setup.plan.config.privacy, setup.federation.at(end.round)
    return Outcome(
        plan=setup.plan,
        path=directory.path,
        measures=_scored(setup, end, population),
        test_examples=len(setup.federation.test),
        test_shared=setup.federation.shared,
        updates=end.updates,
        charges=len(ledger.charges),
        guarantee=replace(
            spent(ledger, privacy.delta, privacy.accountant),
            against=setup.plan.guarantee.against,
            uncovered=setup.plan.guarantee.uncovered,
        ),
        stopped_at_budget=stopped,
        ledger_head=ledger.head().hex(),
        public=len(setup.federation.public),
        aborts={
            round: why for round, why in directory.aborts.reasons().items() if round <= end.round
        },
        constant=baseline.on(population.test),
        divergence=baseline.divergence,
    )


def _write_metrics(directory: RunDirectory, record: RoundRecord) -> None:
    line: dict[str, Any] = {"format": 1, "round": record.round, **record.public}
    if record.simulation:
        line["simulation_only"] = record.simulation
    directory.metrics.append(line)


def _state_budget(
    setup: Setup, stored: float | None, directory: RunDirectory, ledger: Ledger
) -> Setup:
    """Before another budget holds than the last, the ledger says so: `setup`, knowing all of them.

    An older ledger does not state the first one, which is the one `stored` in the configuration.
    """
    plan, last = setup.plan, stored if ledger.budget is None else ledger.budget
    if plan.budget is not None and last is not None and plan.budget != last:
        directory.refuse_if_counted()
        ledger.change_budget(last, plan.budget, plan.event)
    return replace(setup, plan=replace(plan, budgets=ledger.budgets))


def _refuse_less_than_spent(plan: Plan, ledger: Ledger) -> None:
    privacy = plan.config.privacy
    so_far = spent(ledger, privacy.delta, privacy.accountant).epsilon
    if plan.budget is not None and so_far > plan.budget:
        raise Refused(
            f"privacy.epsilon is {plan.budget:g}, but this run has already spent {so_far:g}; what "
            "was released cannot be taken back: name at least that, or leave the key as it was"
        )


def _require_constant(setup: Setup, before: str) -> None:
    if setup.network.digest() != before:
        raise Refused(
            "the model changed its own frozen part or a buffer while it trained: what one client's "
            "examples did to it reached others unclipped, so this run's epsilon does not hold. "
            "Discard the run, and make the model's output a function of its parameters and input"
        )


def _require_finite(now: Checkpoint) -> None:
    if not bool(now.state.params.isfinite().all()):
        raise Refused(
            f"the model is no longer finite after round {now.round}: training diverged; "
            "start a new run with a lower client.lr or server.lr"
        )
