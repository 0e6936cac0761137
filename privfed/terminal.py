"""A console that a run survives: closed pipes and terminals that know no Greek."""

from __future__ import annotations

import codecs
import os
import sys

from rich.console import Console

_PLAIN = {"ε": "epsilon", "δ": "delta", "∞": "inf", "—": "-", "━": "=", "╸": "=", "╺": " "}


def console(json: bool) -> Console:
    """For people: standard output, or standard error where JSON goes to standard output."""
    codecs.register_error("privfed", _spelled_out)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="privfed")
    screen = SteadyConsole(stderr=json)
    if not screen.is_terminal:
        screen.width = 160  # a path in a log is not broken in two
    return screen


class SteadyConsole(Console):
    """Falls silent when nobody reads on (`privfed train | head`); the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, self.file.fileno())
        os.close(silence)


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    """Characters that the stream's encoding lacks, in words."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in missing), error.end
