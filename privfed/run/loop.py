"""Executes a run's rounds within its budget: observed, checkpointed, resumable after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accounting.errors import BudgetExceeded
from accounting.guarantee import Gate, spent
from accounting.ledger import Ledger
from privfed.core.errors import Refused, TooManyByzantine
from privfed.core.ranks import SINGLE_PROCESS, Ranks
from privfed.core.vector import all_finite
from privfed.plan.byzantine import refuse_more_culprits
from privfed.plan.composed_guarantees import planned_guarantee
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.round.tally import Tally
from privfed.round.world import InBackground, World
from privfed.run.forecast import forecast
from privfed.run.input_canaries import RunCanaries
from privfed.run.last_state import last_checkpoint, state_from_releases
from privfed.run.misbehaving import Misbehaviour, misbehaviour_in
from privfed.run.outcome import Observer, Outcome, RoundRecord
from privfed.run.process_group import RankZero
from privfed.run.recorder import Recorder, tally_of
from privfed.run.setup import Setup
from privfed.run.world import Elsewhere, build_world, with_run_canaries
from privfed.secure.summation import Aborted
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


@contextlib.contextmanager
def playing(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    observers: Sequence[Observer],
    ranks: Ranks = SINGLE_PROCESS,
    elsewhere: Elsewhere | None = None,
) -> Iterator[Loop]:
    """Returns a context manager for a run's loop, which continues from the last checkpoint.

    Entering it charges nothing.

    Args:
      setup: the prepared run.
      directory: its run directory.
      ledger: its ledger.
      observers: observers of rounds, without effect on them.
      ranks: the processes of the run.
      elsewhere: the access to sites on other machines; None if the run has none.
    """
    run, privacy = setup.plan.config.run, setup.plan.config.privacy
    if setup.plan.budget is not None:
        stride = 1 if ledger.chosen else run.rounds
        ledger.gate = Gate(setup.plan.budget, privacy.delta, privacy.accountant, stride)
    ledger.reexecutes = run.randomness == "seeded" and elsewhere is None  # sites answer once
    begin = last_checkpoint(setup, directory, ledger)
    directory.metrics.cut(begin.round)
    directory.aborts.mend()
    directory.exclusions.mend()
    directory.ranks.mend()
    expected = forecast(setup)
    tally = tally_of(setup, expected, directory)
    world = build_world(setup, directory, ledger, begin, ranks=ranks, watch=tally)
    if elsewhere:
        world = replace(world, sites=elsewhere.reach(setup, ledger))
    world, canaries = with_run_canaries(world, setup, directory)
    recorder = Recorder(setup, directory, ledger, tally, begin)
    for observer in observers:
        observer.before(setup.plan, expected, directory.path, begin.round)
    rank_zero = RankZero(ranks)
    with InBackground() as writing:
        world = replace(world, writing=writing, ranks=rank_zero.begin(setup))
        yield Loop(
            setup,
            directory,
            ledger,
            world,
            recorder,
            observers,
            rank_zero,
            tally,
            canaries,
            Ending(begin),
        )


@dataclass(frozen=True)
class Ending:
    """The end of a run so far: its last checkpoint, and the reason if it ended early."""

    now: Checkpoint
    at_budget: bool = False
    void: TooManyByzantine | None = None


@dataclass
class Loop:
    """A run in progress: the environment of its rounds, and its observers."""

    setup: Setup
    directory: RunDirectory
    ledger: Ledger
    world: World
    recorder: Recorder
    observers: Sequence[Observer]
    rank_zero: RankZero
    tally: Tally | None
    canaries: RunCanaries | None
    ending: Ending
    """The end of the run so far."""
    record: RoundRecord | None = None
    """The record of the last round; None if that round was not evaluated."""
    outcome: Outcome | None = None
    """The outcome; None until the run has ended."""

    def __iter__(self) -> Iterator[Checkpoint]:
        """Executes each further round, notifies observers, and yields the round's checkpoint.

        Ends after the last round, or earlier: at the budget, by early stopping, or if there are
        too many Byzantine parties.
        """
        config, now = self.setup.plan.config, self.ending.now
        constants = self.setup.network.digest()
        for round in range(now.round + 1, config.run.rounds + 1):
            if self.recorder.stopping.over:
                return
            try:
                state = self._state_after(round, now.state)
            except BudgetExceeded:
                self.ending = replace(self.ending, at_budget=True)
                return
            except TooManyByzantine as stop:
                self.ending = replace(self.ending, void=stop)
                return
            trained = state is not None and round not in config.evaluation_rounds
            updates = now.updates + trained
            now = Checkpoint(round, updates, state or now.state, self.ledger.head())
            _refuse_not_finite(now)
            self.ending = Ending(now)
            self._tell(now)
            if round % config.run.checkpoint_every == 0 or round == config.run.rounds:
                _refuse_changed(self.setup, constants)
                self.save(now)
            yield now

    def to_end(self) -> Outcome:
        """Executes all further rounds, or until the run ends early; returns the result of `end`."""
        for _ in self:
            pass
        return self.end()

    def end(self) -> Outcome:
        """Saves the run after its current round, and writes and returns its outcome.

        Raises:
          TooManyByzantine: after saving, if identified Byzantine parties ended the run.
        """
        ending = self.ending
        self.rank_zero.end()
        self.save(ending.now)
        if self.canaries:
            self.canaries.end(ending.now.state.params)
        self.outcome = outcome = outcome_of(
            self.setup, self.directory, self.ledger, self.recorder, ending
        )
        if outcome.misbehaviour:
            self.directory.write_clients(outcome.misbehaviour.csv())
        self.directory.write_summary(outcome.to_json())
        if ending.void:
            raise ending.void
        return outcome

    def save(self, now: Checkpoint) -> None:
        """Saves the checkpoint, then merges client states; after a crash, the merge is repeated."""
        self.world.writing.flush()
        now.save(self.directory, self.setup.network)
        for memory in self.world.remembered:
            memory.flush(now.round)

    def _state_after(self, round: int, state: TrainingState) -> TrainingState | None:
        """Executes or replays `round`; returns the state after it, or None if it had no update.

        A round charged before a crash is sampled again only in a seeded run without remote sites.
        Otherwise its stored releases are replayed byte for byte; if any are missing, the round has
        no update.
        """
        charge = self.ledger.charged(round)
        if charge is not None and not self.ledger.reexecutes:
            after = state_from_releases(charge, self.setup, state, self.directory)
            if self.canaries and (stored := self.directory.releases.read(round)):
                self.canaries.hear(round, stored.released)
            for memory in self.world.remembered:
                memory.replay(round, released=after is not None)
            return after
        refuse_more_culprits(self.setup.plan, round, len(self.directory.exclusions.before(round)))
        self.rank_zero.announce(round, state)
        try:
            self.rank_zero.known = run_round(
                round, self.setup.algorithm_in(round), state, self.world
            )
        except Aborted as aborted:
            self._note(round, str(aborted))
            return None
        return self.rank_zero.known

    def _note(self, round: int, reason: str) -> None:
        """Records that `round` was aborted because of `reason`, and notifies observers."""
        for memory in self.world.remembered:
            memory.discard()
        self.directory.aborts.note(round, reason)
        for observer in self.observers:
            observer.aborted(round, reason)

    def _tell(self, now: Checkpoint) -> None:
        """Evaluates the model if the round requires it, and notifies observers."""
        config, counts = self.setup.plan.config, self.tally.take() if self.tally else {}
        self.record = None
        regular = now.round % config.run.evaluate_every == 0 or now.round == config.run.rounds
        if (regular and self.recorder.public) or now.round in config.evaluation_rounds:
            measures = self.recorder.measures(now)
            self.world.writing.flush()
            self.record = self.recorder.record(now, measures, counts)
            for observer in self.observers:
                observer.after(self.record)
        self.world.writing.flush()
        for observer in self.observers:
            observer.after_round(now.round)


def outcome_of(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    recorder: Recorder,
    ending: Ending,
) -> Outcome:
    """Returns the outcome of the run at its end `ending`."""
    plan, privacy, end = setup.plan, setup.plan.config.privacy, ending.now
    return Outcome(
        plan=plan,
        path=directory.path,
        measures=recorder.measures(end),
        test_examples=len(setup.federation.test),
        test_shared=setup.federation.shared,
        clipped=setup.clipped,
        updates=end.updates,
        charges=len(ledger.charges),
        guarantee=replace(
            spent(ledger, privacy.delta, privacy.accountant),
            against=plan.guarantee.against,
            uncovered=plan.guarantee.uncovered,
            clients=plan.guarantee.clients,
        ),
        stopped_at_budget=ending.at_budget,
        ledger_head=ledger.head().hex(),
        public=len(setup.federation.public),
        aborts={
            round: why for round, why in directory.aborts.reasons().items() if round <= end.round
        },
        culprits=tuple(e for e in directory.exclusions.culprits() if e.round <= end.round),
        stopped_by_byzantine=str(ending.void or ""),
        constant=recorder.constant(end),
        divergence=recorder.divergence,
        evaluations=int(end.state.evaluation.get("count", 0)),
        charged_measures=recorder.last_charged(end.state),
        stopped_early=recorder.stopping.over,
        planned=planned_guarantee(plan.config.run.rounds, ledger, privacy.accountant),
        misbehaviour=misbehaviour_of(setup, directory, end.round),
    )


def misbehaviour_of(setup: Setup, directory: RunDirectory, until: int) -> Misbehaviour | None:
    """Returns the evidence against clients up to round `until`; None if no rows were observed.

    Rows are observed with `run.simulation_metrics`, under rules that see rows. Only rounds in the
    period of the attack count; if there are none, all rounds count. No client is then marked as
    Byzantine, nor if attackers are chosen afresh in each round.
    """
    attackers, clients = setup.attackers, setup.federation.clients
    lines = list(directory.ranks.lines(until))
    if attackers is None:
        return misbehaviour_in(lines, clients, None)
    under_attack = [line for line in lines if attackers.attacking(line["round"])]
    fixed = bool(under_attack) and not attackers.afresh
    byzantine = attackers.chosen(0)[:clients] if fixed else None
    return misbehaviour_in(under_attack or lines, clients, byzantine)


def _refuse_changed(setup: Setup, constants: str) -> None:
    """Raises `Refused` if the digest of the model's frozen part and buffers is not `constants`."""
    if setup.network.digest() != constants:
        raise Refused(
            "the model changed its own frozen part or a buffer during training, so one client's "
            "examples affected other clients without clipping, and this run's "
            "epsilon does not hold. Discard the run, and make the model's output a function of "
            "its parameters and input"
        )


def _refuse_not_finite(now: Checkpoint) -> None:
    """Raises `Refused` if the model is not finite."""
    if not all_finite(now.state.params):
        raise Refused(
            f"the model is no longer finite after round {now.round}: training diverged; "
            "start a new run with a lower client.lr or server.lr"
        )
