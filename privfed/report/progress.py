"""Shows the progress of a run in a terminal or a log.

First the plan is printed; then one line is redrawn on a terminal, and elsewhere occasional lines
are printed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from privfed.core.text import ceiling, duration, measure, number
from privfed.plan.plan import Plan
from privfed.report.console import sparkline, written
from privfed.report.plan import plan_table
from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.forecast import Forecast
from privfed.run.outcome import RoundRecord


@dataclass(frozen=True)
class Status:
    """The progress of a run, as the line on the terminal shows it.

    Attributes:
      round: the last completed round.
      rounds: number of rounds of the run.
      at: the round of the last evaluation; 0 if there was none.
      name: name of the metric of that evaluation; "" if there was none.
      measure: the value of the metric as text.
      epsilon: the ε spent at that evaluation, and the budget, as one text.
      history: the value of the metric at each evaluation so far.
      rate: rounds per second; None if unknown.
      seconds: the time since the start, in seconds.
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
        """Whether `round` is the run's last round."""
        return self.round >= self.rounds


class _Look(NamedTuple):
    """A layout of the status line: bar and sparkline widths (0 to omit), and elements to show."""

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
"""The layouts in descending order of length."""


def status_line(
    status: Status, width: int, as_written: Callable[[str], str] = lambda text: text
) -> Text:
    """Formats `status` as one line in the longest layout that fits `width`.

    If no layout fits, the shortest one is truncated.

    Args:
      status: the state of the run.
      width: the number of character columns.
      as_written: converts a text to the one that the terminal shows, whose length counts.
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
    """Formats the time left, or the total time after the last round; "" if the rate is unknown."""
    if status.ended:
        return f"in {duration(status.seconds)}"
    if not status.rate:
        return ""
    left = (status.rounds - status.round) / status.rate
    minutes, seconds = divmod(round(left), 60)
    return f"{minutes}:{seconds:02}" if minutes < 100 else duration(left)


_WINDOW = 30.0
"""Seconds over which the rate is averaged."""
_FEWEST = 2
"""Minimum number of recorded rounds for a rate."""


class Pace:
    """Measures the recent number of rounds per second; `at` is called after each round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self.began = clock()

    def at(self, round: int) -> None:
        """Records the end of `round`, or the round from which the run resumes."""
        self._seen.append((self._clock(), round))
        while len(self._seen) > _FEWEST and self._seen[-1][0] - self._seen[0][0] > _WINDOW:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Rounds per second in the last `_WINDOW` seconds, or two records; None if unknown."""
        if len(self._seen) < _FEWEST:
            return None
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if now > began and last > first else None

    @property
    def elapsed(self) -> float:
        """Seconds since this object was created."""
        return self._clock() - self.began


MOST_LINES = 40
"""Largest number of evaluations for which `PlainProgress` prints a line."""


class PlainProgress:
    """Prints the progress of a run as occasional lines, for logs and pipes.

    Lines are printed for at most `MOST_LINES` evaluations, and for every warning and abort.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._budget: float | None = None
        self._rounds = 0
        self._every, self._evaluations = 1, 0
        self._waiting: RoundRecord | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Shows the last evaluation, if it was not shown yet."""
        if self._waiting is not None:
            self._show(self._waiting)

    def choosing(self, key: str, number: int, count: int) -> None:
        """Prints that the value of `key` is being chosen, once for all `count` simulated runs."""
        if number == 1:
            self._console.print(choosing_line(key, count), highlight=False)

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Prints the plan's table; `done` rounds were completed before."""
        self._console.print(plan_table(plan, forecast, path), "")
        run = plan.config.run
        self._budget, self._rounds = plan.budget, run.rounds
        evaluations = (run.rounds - done) / run.evaluate_every
        self._every = max(math.ceil(evaluations / (MOST_LINES - 2)), 1)

    def after_round(self, round: int) -> None:
        """Does nothing: rounds without an evaluation have no line."""

    def aborted(self, round: int, reason: str) -> None:
        """Shows that a round was aborted; it was charged."""
        self._console.print(abort_line(round, reason), highlight=False)

    def after(self, record: RoundRecord) -> None:
        """Shows the first evaluation, every `_every`-th one, and every warning."""
        self._evaluations += 1
        turn = self._evaluations == 1 or self._evaluations % self._every == 0
        self._waiting = None if turn else record
        if turn:
            self._show(record)
        if record.warning:
            warning = f"round {record.round}: WARNING: {record.warning}"
            self._console.print(warning, highlight=False)

    def _show(self, record: RoundRecord) -> None:
        measures = measures_line(record, self._budget)
        self._console.print(f"round {record.round}/{self._rounds}  {measures}", highlight=False)


class LiveProgress(PlainProgress):
    """Shows the progress of a run as one redrawn line: metric, spent ε, rate, and time left."""

    def __init__(self, console: Console, pace: Pace | None = None) -> None:
        super().__init__(console)
        self._pace = pace or Pace()
        self._status = Status(0, 0)
        self._choosing = ""
        self._live = Live(get_renderable=self._line, console=console, refresh_per_second=8)

    def __exit__(self, *_: object) -> None:
        """Ends the redrawing; the last state of the line remains visible."""
        self._status = replace(self._status, rate=None)
        self._live.stop()

    def choosing(self, key: str, number: int, count: int) -> None:
        """Shows that run `number` of the `count` simulated ones that choose `key` is running."""
        self._choosing = choosing_line(key, count, number)
        self._live.start()

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Shows the guarantee and cost of the run, and begins the line after `done` rounds."""
        super().before(plan, forecast, path, done)
        self._status = Status(done, self._rounds)
        self._choosing = ""
        self._pace.at(done)
        self._live.start()

    def after_round(self, round: int) -> None:
        """Updates the line after `round`."""
        self._pace.at(round)
        rate, seconds = self._pace.rate, self._pace.elapsed
        self._status = replace(self._status, round=round, rate=rate, seconds=seconds)

    def _show(self, record: RoundRecord) -> None:
        name, value = next(iter(record.public.items()))
        self._status = replace(
            self._status,
            at=record.round,
            name=name,
            measure=measure(name, value),
            epsilon=epsilon_of_budget(record, self._budget),
            history=(*self._status.history, value),
        )

    def _line(self) -> Text:
        """Returns the status line for the terminal's current width."""
        if self._choosing:
            return Text(self._choosing, no_wrap=True, overflow="crop")
        as_written = partial(written, encoding=self._console.encoding)
        return status_line(self._status, self._console.width - 1, as_written)


def progress(console: Console) -> PlainProgress:
    """Returns a `LiveProgress` for a terminal that can redraw a line, else a `PlainProgress`."""
    lively = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console) if lively else PlainProgress(console)


def choosing_line(key: str, count: int, number: int = 0) -> str:
    """Formats a line on the simulated runs by which the value of `key` is chosen.

    The line states that run `number` (from 1) of `count` is in progress or, if `number` is 0, only
    their `count`.
    """
    values = f"simulated run {number} of {count}" if number else f"{count} simulated runs"
    return f'choosing {key} ("auto"): {values}'


def abort_line(round: int, reason: str) -> str:
    """Formats the report of a round whose secure sum was aborted."""
    return f"round {round} aborted; it is charged and not repeated: {reason}"


def measures_line(record: RoundRecord, budget: float | None) -> str:
    """Formats an evaluation: the first test metric, the first metric by clients, and spent ε.

    Metrics that were not measured are left out; for `budget`, see `epsilon_of_budget`.
    """
    name, value = next(iter(record.public.items()))
    if f"{PREFIX}{name}_low" in record.public:  # without a test set, clients measured `name`
        return f"clients' {name} {measure(name, value)}  {epsilon_of_budget(record, budget)}"
    charged = next((key for key in record.public if f"{key}_low" in record.public), None)
    by_clients = ""
    if charged is not None:
        title = charged.removeprefix(PREFIX)
        by_clients = f"  clients' {title} {measure(title, record.public[charged])}"
    return f"{name} {measure(name, value)}{by_clients}  {epsilon_of_budget(record, budget)}"


def epsilon_of_budget(record: RoundRecord, budget: float | None) -> str:
    """Formats the ε spent at an evaluation, and the budget unless it is None or infinite."""
    of_budget = f" of {number(budget)}" if budget is not None and budget != math.inf else ""
    return f"ε {ceiling(record.public['epsilon'])}{of_budget}"
