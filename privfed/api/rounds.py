"""Executes a run one round at a time: `with privfed.start(…) as run: for round in run: …`."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from accounting.statement import NOMINAL
from privfed.api.answer import plain
from privfed.api.resuming import resumable, watched
from privfed.config.config import Config
from privfed.config.overrides import assign
from privfed.config.reading import reassembled
from privfed.core.errors import Refused
from privfed.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor

    from privfed.core.ranks import Ranks
    from privfed.core.vector import Indices
    from privfed.run.loop import Loop
    from privfed.run.outcome import Observer
    from privfed.store.checkpoint import Checkpoint


class Round:
    """A completed round, which was charged before its cohort was sampled.

    All attributes may be published, except `cohort`, `updates` and `simulation`, which no ε covers.
    They exist only if `run.simulation_metrics` is set; otherwise reading them raises `Refused`.
    """

    def __init__(self, loop: Loop, now: Checkpoint) -> None:
        self._loop, self._now, self._record = loop, now, loop.record
        self._rows = None if loop.tally is None else loop.tally.raw_rows

    @property
    def number(self) -> int:
        """The number of the round, from 1."""
        return self._now.round

    @cached_property
    def epsilon(self) -> float:
        """The ε spent up to this round, including earlier runs that the run counts, at the run's δ.

        `run.guarantee` is the proved guarantee.

        Nominal in simulations, and infinite in runs without a guarantee (`plan.void`).
        """
        return math.inf if self._loop.setup.plan.void else self._spent

    @property
    def evaluated(self) -> bool:
        """Whether the run evaluated the model after this round.

        It does so on a public test set every `run.evaluate_every` rounds and after the last round,
        and in rounds in which clients evaluate.
        """
        return self._record is not None

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics after this round on public test examples, and those that clients evaluated.

        A round that the run did not evaluate is evaluated when this property is first read. The
        spent ε is "epsilon"; in simulations and runs without a guarantee, as in trackers, it is
        "nominal_epsilon".
        """
        from privfed.run.outcome import RoundRecord

        record = self._record
        if record is None:
            measures = self._loop.recorder.measures(self._now)
            record = RoundRecord(self.number, {**measures, "epsilon": self._spent})
        return dict((record.nominally() if self._nominal else record).public)

    @cached_property
    def aborted(self) -> str:
        """The reason why the secure sum of this charged round aborted; "" if it did not abort."""
        return self._loop.directory.aborts.reasons().get(self.number, "")

    @property
    def simulation(self) -> Mapping[str, Any]:
        """Measures of the cohort in evaluated rounds of a simulation; no ε covers them."""
        self._private_rows("simulation")
        return {} if self._record is None else dict(self._record.simulation)

    @property
    def cohort(self) -> Indices:
        """Indices `[c]` of the sampled clients whose updates arrived; only in a simulation."""
        import numpy as np

        rows = self._private_rows("cohort")
        return np.concatenate([ids for ids, _ in rows]) if rows else np.empty(0, np.int64)

    @property
    def updates(self) -> Tensor:
        """Raw updates `[c, m]` of `cohort`, before clipping; only in a simulation."""
        import torch

        rows = self._private_rows("updates")
        objective = self._loop.setup.algorithm_in(self.number).objective
        width = objective.layout(len(self._now.state.params)).length
        return torch.cat([each for _, each in rows]) if rows else torch.empty(0, width)

    def _private_rows(self, name: str) -> list[tuple[Indices, Tensor]]:
        """Returns client indices `[c]` with unclipped rows. Raises `Refused` if none are kept."""
        if self._rows is None:
            raise Refused(
                f"round.{name} is private, and no epsilon covers its value; to read it, use "
                "start(…, simulation=True), which marks the run as a simulation: its epsilon is "
                "nominal, not a guarantee"
            )
        return self._rows

    def __repr__(self) -> str:
        return f"<round {self.number}: ε {self.epsilon:.4g}{NOMINAL * self._nominal}>"

    @cached_property
    def _spent(self) -> float:
        return self._loop.recorder.epsilon(self._now)

    @property
    def _nominal(self) -> bool:
        from privfed.run.watch.watcher import is_nominal

        return is_nominal(self._loop.setup.plan)


Callback = Callable[[Round], object]
"""A function that is called with a completed round."""


Opened = Callable[[], AbstractContextManager["Loop"]]
"""A function that returns a context manager for a run's loop, which begins at its next round."""


class InProgress:
    """A run that can be executed: a context manager, and an iterable of its completed rounds.

    Entering the context prepares the run; the first charge is that of the first round iterated
    over. Leaving the context, also after a `break`, saves the run and writes its summary. After an
    exception the run is in the state after a crash: `privfed.load(path).start()` continues it.

    Args:
      opened: returns a context manager for the run's loop; None if the run is only loaded.
    """

    def __init__(self, opened: Opened | None = None) -> None:
        self._opened = opened
        self._stack = contextlib.ExitStack()
        self._loop: Loop | None = None
        self._frames = 2
        """The number of stack frames from a warning to the user's code."""

    def __enter__(self) -> Self:
        opened, self._opened = self._opened, None
        if opened is None:
            raise Refused(
                "this run was not started, or it was entered before; use `with run.start() as run` "
                "to continue the run"
            )
        self._loop = loop = self._stack.enter_context(_to_end(opened()))
        if loop.setup.clipped:
            warnings.warn(loop.setup.clipped, stacklevel=self._frames)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
        finally:
            loop, self._loop = self._loop, None
        warning = loop and loop.outcome and loop.outcome.not_learned
        if warning:
            warnings.warn(warning, stacklevel=self._frames)

    def __iter__(self) -> Iterator[Round]:
        """Executes each further round, and yields it when complete; refuses use outside `with`."""
        if self._loop is None:
            raise Refused("the run is not open; iterate within: with privfed.start(…) as run")
        loop, rounds = self._loop, iter(self._loop)
        while True:
            if loop.tally is not None:
                loop.tally.raw_rows = []
            try:
                now = next(rounds)
            except StopIteration:
                return
            yield Round(loop, now)

    def _save(self) -> None:
        """Saves the last round, if the run is in progress."""
        if self._loop is not None:
            self._loop.save(self._loop.ending.now)

    def _run_to_end(
        self,
        on_round: Callback | None,
        on_evaluation: Callback | None,
        on_end: Callable[[Any], object] | None,
    ) -> Self:
        """Executes all further rounds, and calls the callbacks; returns the ended run.

        Raises `Refused` before the first charge for a callback that is no function.
        """
        for name, callback in (("on_round", on_round), ("on_evaluation", on_evaluation)):
            refuse_no_function(name, callback, "a privfed.Round")
        refuse_no_function("on_end", on_end, "the privfed.Run")
        self._frames = 4  # those of this method, and of `train` or `resume`
        with self:
            for round in self:
                if on_round is not None:
                    on_round(round)
                if on_evaluation is not None and round.evaluated:
                    on_evaluation(round)
        if on_end is not None:
            on_end(self)
        return self


def refuse_no_function(name: str, callback: object, of: str) -> None:
    """Raises `Refused` unless `callback` is None or callable.

    The message names the argument `name`, and `of` describes what the function receives.
    """
    if callback is not None and not callable(callback):
        raise Refused(f"{name} is {callback!r}; expected a function of {of}")


@contextlib.contextmanager
def _to_end(opened: AbstractContextManager[Loop]) -> Iterator[Loop]:
    """Returns a context manager that saves the run and its outcome, except on an exception."""
    with opened as loop:
        yield loop
        loop.end()


def new_rounds(
    config: Config,
    directory: RunDirectory,
    lasting: bool,
    observers: Sequence[Observer],
    progress: bool | None,
) -> Opened:
    """Returns a function that opens the run of `config`; before its call nothing is written.

    Args:
      config: the configuration.
      directory: the new run directory.
      lasting: whether the directory is kept.
      observers: receive each round.
      progress: whether progress is shown; None: in terminals and notebooks.

    Raises:
      Refused: if an object in `observers` is no observer.
    """

    def started(observing: Sequence[Observer], ranks: Ranks) -> AbstractContextManager[Loop]:
        from privfed.run.train import started

        return started(config, directory.path, observing, ranks)

    _refuse_no_observers(observers)
    return partial(_opened, directory, config, lasting, observers, progress, started)


def further_rounds(
    run: RunDirectory,
    lasting: bool,
    rounds: int | None,
    epsilon: float | None,
    observers: Sequence[Observer],
    progress: bool | None,
) -> Opened:
    """Returns a function that opens an existing run at its next round.

    Args:
      run: the run directory.
      lasting: whether the directory is kept.
      rounds: the total number of rounds; None: unchanged.
      epsilon: the privacy budget; None: unchanged.
      observers: receive each round.
      progress: whether progress is shown; None: in terminals and notebooks.

    Raises:
      Refused: if an object in `observers` is no observer.
    """
    changes = {"run.rounds": rounds, "privacy.epsilon": epsilon}

    def changed(stored: Config) -> Config:
        raw = stored.raw()
        for key, value in changes.items():
            if value is not None:
                assign(raw, key, plain(value))
        return reassembled(raw, stored)

    def resumed(observing: Sequence[Observer], ranks: Ranks) -> AbstractContextManager[Loop]:
        from privfed.run.train import resumed

        return resumed(run, changed, observing, ranks)

    _refuse_no_observers(observers)
    return partial(_opened, run, run.config.read(), lasting, observers, progress, resumed)


@contextlib.contextmanager
def _opened(
    run: RunDirectory,
    config: Config,
    lasting: bool,
    observers: Sequence[Observer],
    progress: bool | None,
    loop_of: Callable[[Sequence[Observer], Ranks], AbstractContextManager[Loop]],
) -> Iterator[Loop]:
    """Returns a context manager for a run's loop, in the run's processes and with its observers."""
    from privfed.run.process_group import joined

    with (
        resumable(run.path, run.given, lasting),
        watched(progress) as shown,
        joined(config.run.workers) as ranks,
        loop_of([*shown, *observers], ranks) as loop,
    ):
        yield loop


def _refuse_no_observers(observers: Sequence[object]) -> None:
    """Raises `Refused` if one of `observers` is not an observer of rounds."""
    from privfed.run.watch.watcher import refuse_no_observer

    for observer in observers:
        refuse_no_observer(observer, "observers")
