"""The observers that `run.watch` names, while a run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from privfed.config.config import Config
from privfed.parts import find
from privfed.run.outcome import Observer
from privfed.run.watch.watcher import Watcher


def watchers(config: Config) -> list[Watcher]:
    """The parts that `run.watch` names. Raises `Refused` where one of them cannot work here.

    They are no part of what a run computes: who reads a run does not import them.
    """
    parts: list[Watcher] = [find("watcher", name, "run.watch")() for name in config.run.watch]
    for part in parts:
        part.refuse_unusable()
    return parts


def observers_of(config: Config) -> list[Observer]:
    """An observer of each of `watchers`. Raises `Refused` where one cannot be made."""
    return [part.observer() for part in watchers(config)]


@contextlib.contextmanager
def entered(observers: Sequence[Observer]) -> Iterator[Sequence[Observer]]:
    """A context with `observers`, of whom those that are context managers are entered."""
    with contextlib.ExitStack() as stack:
        for observer in observers:
            if isinstance(observer, contextlib.AbstractContextManager):
                stack.enter_context(observer)
        yield observers
