"""Says all that Python prints by itself, of a worker's process too: it imports next to nothing."""

import threading
import warnings

SECRET = "SECRET-4711"


class Unlike(BaseException):
    """No `Exception`, which is what a user's part may raise too."""


class Unmanageable:
    """Raises where nobody can catch it."""

    def __del__(self) -> None:
        raise ValueError(SECRET)


def says_much(error: BaseException | None = None) -> None:
    """A warning, a thread that died, what nobody could catch, and `error`."""
    warnings.warn(SECRET, stacklevel=1)
    thread = threading.Thread(target={}.__getitem__, args=(SECRET,))
    thread.start()
    thread.join()
    Unmanageable()
    if error is not None:
        raise error
