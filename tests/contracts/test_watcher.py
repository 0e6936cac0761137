"""What every watcher keeps: an observer for each run, which does nothing before the run begins."""

import contextlib
from pathlib import Path

from contracts.registered import contract_tests

from privfed.core.errors import Refused
from privfed.run.outcome import Observer
from privfed.run.watch.watcher import METHODS, Watcher


def names_an_observer_of_each_run(watcher, folder):
    with contextlib.chdir(folder):
        reason = ""
        try:
            watcher.refuse_unusable()
        except Refused as refused:  # a package of an extra, which only some environments have
            reason = str(refused)
        assert not reason or "pip install" in reason
        first, second = watcher.observer(), watcher.observer()
        assert first is not second, "runs share an observer"
        for method in METHODS:
            assert callable(getattr(first, method, None)), method
        assert list(folder.iterdir()) == [], "it wrote before the run began"


class Noting(Observer):
    """An observer with a file, which it may begin as it is made."""

    def __init__(self, begun):
        if begun:
            Path("begun.txt").write_text("")


class Shared(Watcher):
    """One observer for all runs."""

    def observer(self):
        return _NOTING


class Eager(Watcher):
    """It writes before the run begins."""

    def observer(self):
        return Noting(begun=True)


class Mute(Watcher):
    """Its observer has no methods."""

    def observer(self):
        return object()


_NOTING = Noting(begun=False)
test_every_watcher_keeps, test_a_wrong_watcher_is_rejected_by = contract_tests(
    "watcher", {names_an_observer_of_each_run: [Shared(), Eager(), Mute()]}
)
