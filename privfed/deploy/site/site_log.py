"""A site's log: a file that nobody else may read, and the terminal of its operator."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_FORM = "%(asctime)s %(levelname)s %(message)s"


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write what a site's modules log to the file at `path`, mode 600, and to the terminal."""
    logger = logging.getLogger("privfed.deploy")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler()]
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORM))
        logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
