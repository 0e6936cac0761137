"""The interface of parts that `run.watch` names, and the adapter of a user's class."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import Part, find, part_with_objects
from privfed.core.user_code import in_user_code
from privfed.plan.plan import Plan
from privfed.run.outcome import Observer

METHODS = ("choosing", "before", "after_round", "aborted", "after")
"""Methods that an observer must have."""


def is_nominal(plan: Plan) -> bool:
    """Whether the ε of a run is nominal: the run is a simulation, or its charges are `void`."""
    return bool(plan.simulation or plan.void)


class Watcher(Part):
    """A part, named in `run.watch`, that creates an observer of a run in progress."""

    def observer(self) -> Observer:
        """Returns an observer of one run, which starts no work before its `before` is called.

        An observer that is a context manager is entered before the run, and exited when the run
        ends for any reason.
        """
        raise NotImplementedError

    def refuse_unusable(self) -> None:
        """Raises `Refused` if this part cannot work on this machine. Writes nothing."""


class OwnWatcher(Watcher):
    """A user's `module:name` in `run.watch`: a class or function that returns an observer."""

    function: ClassVar[Callable[[], Any]]

    @classmethod
    def of(cls, function: Callable[[], Any]) -> type[OwnWatcher]:
        """Returns a watcher class whose observers `function` creates."""
        return part_with_objects(cls, function, function=staticmethod(function))

    def observer(self) -> Observer:
        """Returns the function's result. Raises `Refused` if that is not an observer."""
        name = f"run.watch: {type(self).__qualname__}"
        try:
            made: Observer = type(self).function()
        except Refused:
            raise
        except (Exception, SystemExit) as error:  # it is the user's own code
            reason = " ".join(str(error).split())
            raise Refused(
                f"{name} failed: {type(error).__name__}: {reason}; correct the function, which is "
                f"called without arguments{in_user_code(error)}",
                key="run.watch",
            ) from error
        refuse_no_observer(made, name)
        return made


def refuse_no_observer(observer: object, named: str) -> None:
    """Raises `Refused` if `observer` lacks a method of `Observer` (`METHODS`).

    The message begins with `named`.
    """
    lacks = [name for name in METHODS if not callable(getattr(observer, name, None))]
    if lacks:
        raise Refused(
            f"{named}: {type(observer).__name__} has no method {', '.join(lacks)}; "
            "extend privfed.Observer"
        )


def watchers(config: Config) -> list[Watcher]:
    """Returns the parts that `run.watch` names. Raises `Refused` if a part cannot work here.

    These parts do not affect a run's results, so code that reads a run does not import them.
    """
    parts: list[Watcher] = [find("watcher", name, "run.watch")() for name in config.run.watch]
    for part in parts:
        part.refuse_unusable()
    return parts


def observers_of(config: Config) -> list[Observer]:
    """Returns an observer from each watcher. Raises `Refused` if one cannot be created."""
    return [part.observer() for part in watchers(config)]


@contextlib.contextmanager
def entered(observers: Sequence[Observer]) -> Iterator[Sequence[Observer]]:
    """Returns a context manager for `observers`, which enters those that are context managers."""
    with contextlib.ExitStack() as stack:
        for observer in observers:
            if isinstance(observer, contextlib.AbstractContextManager):
                stack.enter_context(observer)
        yield observers
