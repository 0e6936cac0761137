"""An agent's two logs: full reasons in its private file, and events without data on the terminal.

The file's entries may quote the site's table. A service manager stores the terminal's lines where
other administrators read them, so an event states only what the coordinator learns as well.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_LARGEST, _KEPT = 10_000_000, 5
"""Bytes of a log file, after which it becomes `log.1`; number of such earlier files."""
_FORM = "%(asctime)s %(levelname)s %(message)s"


def event(name: str, **facts: str | int) -> dict[str, dict[str, str | int]]:
    """Returns the argument `extra` of a log entry that the terminal shows as an event.

    Args:
      name: the kind of event, for example "declined".
      facts: further values to show, by name; they must not depend on any client's data.
    """
    return {"event": {"event": name, **facts}}


class _PrivateFile(RotatingFileHandler):
    """A rotating log file; a new file may be read by its owner only."""

    def _open(self) -> TextIOWrapper:
        os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
        Path(self.baseFilename).chmod(0o600)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Does nothing: the default would print the entry, which may quote the table."""


class _Events(logging.Formatter):
    """Formats an entry's event as JSON or text; for an entry without event, names the log file."""

    def __init__(self, log: Path, as_json: bool) -> None:
        super().__init__()
        self._log = log
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line: time, level, and the event; without one, "logged" and the log file."""
        facts = getattr(record, "event", None) or event("logged", file=str(self._log))["event"]
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        if self._as_json:
            return json.dumps({"time": time, "level": level, **facts})
        return " ".join([time, level, *(f"{key}={value}" for key, value in facts.items())])


@contextlib.contextmanager
def logging_to(path: Path, as_json: bool = False) -> Iterator[None]:
    """Writes the log file at `path` (mode 600 if new), and events to standard error, in the block.

    Args:
      path: the log file, which is rotated at 10 MB; five earlier files are kept.
      as_json: whether events are JSON objects, one in a line.
    """
    logger = logging.getLogger("privfed.deploy")
    file = _PrivateFile(path, maxBytes=_LARGEST, backupCount=_KEPT, encoding="utf-8")
    file.setFormatter(logging.Formatter(_FORM))
    terminal = logging.StreamHandler()
    terminal.setFormatter(_Events(path, as_json))
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a library may have given the root logger a terminal
    for handler in (file, terminal):
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
        for handler in (file, terminal):
            logger.removeHandler(handler)
            handler.close()
