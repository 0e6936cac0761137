"""The line of a run that goes on, in as many words as there are columns for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from privfed.report.live.sparkline import sparkline
from privfed.words import duration


@dataclass(frozen=True)
class Status:
    """Where a run stands after `round` of `rounds`.

    The last evaluation was at round `at` (0: there was none) and says `measure` (of that `name`)
    and `epsilon`, with its budget; `history` has the measure of each. `rate` is rounds a second,
    `seconds` what the run took so far.
    """

    round: int
    rounds: int
    at: int = 0
    name: str = ""
    measure: str = ""
    epsilon: str = ""
    history: Sequence[float] = field(default=())
    rate: float | None = None
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether this was the last round."""
        return self.round >= self.rounds


class _Look(NamedTuple):
    """How wide bar and sparkline are, and whether words are spelt out, and what else is there."""

    bar: int
    spark: int
    long: bool = False
    name: bool = False
    pace: bool = True
    left: bool = True
    evaluation: bool = True


_LOOKS = (
    *(_Look(*widths, long=True, name=True) for widths in ((40, 40), (24, 24), (12, 16), (0, 12))),
    *(_Look(0, width, name=True) for width in (16, 12, 8)),
    *(_Look(0, width) for width in (12, 8, 6, 4)),
    *(_Look(0, width, pace=False) for width in (8, 6, 0)),
    _Look(0, 0, pace=False, left=False),
    _Look(0, 0, pace=False, left=False, evaluation=False),
)
"""From the fullest to the barest."""


def status_line(
    status: Status, width: int, as_written: Callable[[str], str] = lambda text: text
) -> Text:
    """The fullest line of `status` that has at most `width` columns, `as_written` to the terminal.

    Of the barest, which may be too long, the end is cut off.
    """
    for look in _LOOKS:
        line = Text("  " if look.name else " ").join(_parts(status, look))
        if cell_len(as_written(line.plain)) <= width:
            break
    line.no_wrap, line.overflow = True, "crop"
    return line


def _parts(status: Status, look: _Look) -> Iterator[Text]:
    word = "round " if look.long else ""
    yield Text(f"{word}{status.round}/{status.rounds}", "progress.percentage")
    if look.bar:
        yield _bar(status, look.bar)
    if status.at and look.evaluation:
        yield from _evaluation(status, look)
    if look.pace and status.rate and not status.ended:
        yield Text(_pace(status.rate, look.long), "progress.data.speed")
    if look.left and (time := _time(status)):
        words = f"{time} left" if look.long and not status.ended else time
        yield Text(words, "progress.remaining")


def _bar(status: Status, width: int) -> Text:
    done = width * status.round // max(status.rounds, 1)
    return Text.assemble(("━" * done, "bar.complete"), ("─" * (width - done), "bar.back"))


def _evaluation(status: Status, look: _Look) -> Iterator[Text]:
    if look.spark:
        yield Text(sparkline(status.history, look.spark), "cyan")
    name = f"{status.name} " if look.name else ""
    yield Text(f"at {status.at}: {name}{status.measure}")
    yield Text(status.epsilon)


def _pace(rate: float, long: bool) -> str:
    if rate >= 1:
        return f"{rate:.3g} rounds/s" if long else f"{rate:.3g}/s"
    return f"{duration(1 / rate)} a round" if long else f"{duration(1 / rate)}/round"


def _time(status: Status) -> str:
    """The time left, or at the end the time that it took; "" while nobody knows."""
    if status.ended:
        return f"in {duration(status.seconds)}"
    if not status.rate:
        return ""
    left = (status.rounds - status.round) / status.rate
    minutes, seconds = divmod(round(left), 60)
    return f"{minutes}:{seconds:02}" if minutes < 100 else duration(left)
