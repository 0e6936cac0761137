"""Produces every kind of Python's own output, also in a worker process: it imports almost
nothing.
"""

import threading
import warnings

SECRET = "SECRET-4711"


class Unlike(BaseException):
    """Not an `Exception`; a user's part may raise such an error, too."""


class Unmanageable:
    """Raises an error that cannot be caught."""

    def __del__(self) -> None:
        raise ValueError(SECRET)


def says_much(error: BaseException | None = None) -> None:
    """Emits a warning, a thread's error, an uncatchable error, and `error`."""
    warnings.warn(SECRET, stacklevel=1)
    thread = threading.Thread(target={}.__getitem__, args=(SECRET,))
    thread.start()
    thread.join()
    Unmanageable()
    if error is not None:
        raise error
