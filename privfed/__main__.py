"""`privfed`, and `python -m privfed`."""

import atexit
import gc

from privfed.cli.main import main
from privfed.core.memory import keep_freed


def run() -> None:
    """The command line, in a process of its own.

    The libraries that a command imports make objects that last as long as it. Looking through them
    for garbage again and again, and once more at exit, took a quarter of a short command's time.
    """
    keep_freed()
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    main()


if __name__ == "__main__":
    run()
