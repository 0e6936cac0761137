"""A console that works with closed pipes, limited encodings and untrusted names."""

from __future__ import annotations

import codecs
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from privfed.core.text import visible

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws `values` as at most `width` block characters, scaled to the range of finite values.

    If there are more values, each character shows the last of several consecutive values. A value
    that is not finite is shown as a space.

    >>> sparkline([0.1, 0.5, 0.9], 8)
    '▁▅█'
    """
    ends = [(block + 1) * len(values) // width for block in range(width)]
    shown = list(values) if len(values) <= width else [values[end - 1] for end in ends]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(value, low, high) for value in shown)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    if high == low:
        return BLOCKS[len(BLOCKS) // 2]
    return BLOCKS[min(int((value - low) / (high - low) * len(BLOCKS)), len(BLOCKS) - 1)]


_PLAIN = {
    "ε": "epsilon",
    "δ": "delta",
    "∞": "inf",
    "—": "-",
    "━": "=",
    "╸": "=",
    "╺": " ",
    "─": "-",
    **dict(zip(BLOCKS, "_.:-=+*#", strict=True)),
}
_HANDLER = "privfed"


def console(json: bool) -> Console:
    """Returns the console for users' messages: on standard output, or on standard error if `json`.

    Standard output then remains free for a JSON object.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)
    screen = PipeSafeConsole(stderr=json, markup=False)  # brackets in names are not markup
    if not screen.is_terminal:
        screen.width = 160  # keeps a path in a log on one line
    return screen


class PipeSafeConsole(Console):
    """A console that continues silently when its pipe is closed (`privfed train | head`).

    Control characters in all output, including tables and progress bars, are escaped, so only the
    console itself controls the terminal.
    """

    def render_str(self, text: str, **how: Any) -> Text:
        """Returns the result of `Console.render_str`, with control characters escaped."""
        return super().render_str(visible(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as `Console.render` does, with control characters escaped before lines wrap."""
        if isinstance(renderable, Text) and visible(renderable.plain) != renderable.plain:
            renderable = renderable.blank_copy(visible(renderable.plain))
        for segment in super().render(renderable, options):
            control = segment.control
            yield segment if control else Segment(visible(segment.text), segment.style, control)

    def on_broken_pipe(self) -> None:
        """Discards further output, instead of ending the process as rich does."""
        self.quiet = True
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, self.file.fileno())
        os.close(silence)


def written(text: str, encoding: str) -> str:
    """Returns `text` as `encoding` can write it: a character that it lacks is spelled out.

    For example, "ε" becomes "epsilon" in ASCII; a character without a known spelling becomes "?".
    """
    return text.encode(encoding, _HANDLER).decode(encoding)


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    """Returns a replacement for the characters that an encoding lacks, and the index after them.

    This is an error handler for `codecs`. It raises `error` if that is no `UnicodeEncodeError`.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in missing), error.end


codecs.register_error(_HANDLER, _spelled_out)
