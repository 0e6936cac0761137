"""`privfed`, and `python -m privfed`."""

import atexit
import gc
import sys
from collections.abc import Sequence
from types import ModuleType

from privfed.cli.main import main
from privfed.core.errors import refuse_little_memory
from privfed.core.memory import keep_freed


class LoadsWithinLimit:
    """An import hook that refuses libraries for which the process's memory limit is too low.

    It finds no module itself. Commands that do not import such a library still run.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Returns None. Raises `Refused` for a library that needs more memory than the limit."""
        refuse_little_memory(name)


def run() -> None:
    """Runs the command line, in a process of its own.

    Objects of imported libraries live as long as the process, so they are excluded from garbage
    collection, which otherwise takes a quarter of a short command's time.
    """
    sys.meta_path.insert(0, LoadsWithinLimit)
    keep_freed()
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    main()


if __name__ == "__main__":
    run()
