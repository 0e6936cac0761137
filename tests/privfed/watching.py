"""Custom observers, as a user names them in a run file."""

from typing import ClassVar

from privfed.run.outcome import Observer


class Heard(Observer):
    """Records its notifications, for tests to read."""

    told: ClassVar[list] = []

    def __enter__(self):
        self.told.append("entered")
        return self

    def __exit__(self, kind, *_):
        self.told.append(f"left {kind.__name__ if kind else 'well'}")

    def before(self, plan, forecast, path, done):
        self.told.append(f"{path.name} after {done}")

    def after_round(self, round):
        self.told.append(round)

    def after(self, record):
        self.told.append(dict(record.tagged()))


class Failing(Observer):
    """Fails at the first evaluation after round 3, while `fails` is set."""

    fails: ClassVar[bool] = True

    def after(self, record):
        if self.fails and record.round > 3:
            raise ZeroDivisionError(f"a secret {4700 + 11}")


class Deaf:
    """Not an observer."""


def unmade():
    raise KeyError("no server")
