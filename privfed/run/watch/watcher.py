"""What a part has to be that `run.watch` names, and how a class of one's own becomes one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.own_code import in_own_code
from privfed.core.parts import Part, find, part_around
from privfed.plan.plan import Plan
from privfed.run.outcome import Observer

METHODS = ("before", "after_round", "aborted", "after")
"""What is asked of an observer."""


def is_nominal(plan: Plan) -> bool:
    """Whether the ε of a run is nominal: a simulation's, or one that nothing guarantees."""
    return bool(plan.simulation or plan.void)


class Watcher(Part):
    """A part that is told of a run while it goes on: it names an observer."""

    def observer(self) -> Observer:
        """An observer of one run, that begins nothing before its `before` is called.

        One that is a context manager is entered before the run, and left when it ends, however.
        """
        raise NotImplementedError

    def refuse_unusable(self) -> None:
        """Raises `Refused` where this cannot work here, before anything is written."""


class OwnWatcher(Watcher):
    """A user's own `module:name`: a class of observers, or a function that returns one."""

    function: ClassVar[Callable[[], Any]]

    @classmethod
    def of(cls, function: Callable[[], Any]) -> type[OwnWatcher]:
        """The part whose observers `function` makes."""
        return part_around(cls, function, function=staticmethod(function))

    def observer(self) -> Observer:
        """What the function returns. Raises `Refused` where that is no observer."""
        name = f"run.watch: {type(self).__qualname__}"
        try:
            made: Observer = type(self).function()
        except Refused:
            raise
        except (Exception, SystemExit) as error:  # it is the user's own code
            reason = " ".join(str(error).split())
            raise Refused(
                f"{name} failed: {type(error).__name__}: {reason}; it is called without arguments"
                f"{in_own_code(error)}",
                key="run.watch",
            ) from error
        refuse_no_observer(made, name)
        return made


def refuse_no_observer(observer: object, named: str) -> None:
    """Raises `Refused` where `observer`, called `named`, cannot be told of rounds."""
    lacks = [name for name in METHODS if not callable(getattr(observer, name, None))]
    if lacks:
        raise Refused(
            f"{named}: {type(observer).__name__} has no method {', '.join(lacks)}; "
            "extend privfed.Observer"
        )


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
