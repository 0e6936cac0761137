"""The content of the coordinator's log: finished or aborted rounds, seconds, and bytes."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from datetime import datetime

_LINE = re.compile(r"^(\S+ \S+) (INFO|WARNING|ERROR) (.*)$")
_CARRIED = re.compile(r"site (\d+): (\d+) bytes, (\d+) back, ([\d.]+) s")


@dataclass(frozen=True)
class Journal:
    """The lines of a coordinator's log: time, level, and message."""

    lines: tuple[tuple[datetime, str, str], ...]

    @classmethod
    def read(cls, text: str) -> Journal:
        """Returns the log `text`; lines of another form, such as tracebacks, are left out."""
        matches = filter(None, map(_LINE.match, text.splitlines()))
        return cls(
            tuple((datetime.strptime(m[1], "%Y-%m-%d %H:%M:%S,%f"), m[2], m[3]) for m in matches)
        )

    @property
    def over(self) -> list[int]:
        """The rounds that moved the model."""
        return self._rounds(r"round (\d+) is over")

    @property
    def aborted(self) -> dict[int, str]:
        """The rounds that were charged and not opened, with their reasons."""
        matches = (re.match(r"round (\d+) aborted: (.*)", what) for _, _, what in self.lines)
        return {int(match[1]): match[2] for match in matches if match}

    @property
    def errors(self) -> list[str]:
        """Messages of failed runs."""
        return [what for _, grave, what in self.lines if grave == "ERROR"]

    @property
    def done(self) -> bool:
        """Whether the run finished."""
        return any(what.startswith("done: ") for _, _, what in self.lines)

    def exchanged(self) -> int:
        """Returns the number of answers since the last finished or aborted round or program
        start.
        """
        count = 0
        for _, _, what in self.lines:
            if re.match(r"round \d+ (is over|aborted)|begins after|done: ", what):
                count = 0
            count += bool(_CARRIED.match(what))
        return count

    def seconds_per_round(self) -> list[float]:
        """Returns the times between the ends of consecutive rounds of one program."""
        took, before = [], None
        for when, _, what in self.lines:
            if match := re.fullmatch(r"round (\d+) is over", what):
                if before and before[1] + 1 == int(match[1]):
                    took.append((when - before[0]).total_seconds())
                before = when, int(match[1])
            elif "aborted" in what or (what.startswith("site ") and "is at node" in what):
                before = None
        return took

    def seconds_per_exchange(self) -> float:
        """Returns the median time of an exchange with a site, training included."""
        return statistics.median(float(match[4]) for match in self._carried())

    def seconds_per_greeting(self) -> float:
        """Returns the median round-trip time to a node when the agent has almost no work."""
        matches = (re.search(r"is at node \d+, after ([\d.]+) s", what) for *_, what in self.lines)
        return statistics.median(float(match[1]) for match in matches if match)

    def bytes_per_site(self, rounds: int) -> tuple[float, float]:
        """Returns bytes to a site and back, each divided by the number of `rounds`."""
        sent, back, sites = 0, 0, set()
        for match in self._carried():
            sites.add(match[1])
            sent, back = sent + int(match[2]), back + int(match[3])
        return sent / rounds / len(sites), back / rounds / len(sites)

    def _carried(self) -> list[re.Match[str]]:
        return [match for _, _, what in self.lines if (match := _CARRIED.match(what))]

    def _rounds(self, pattern: str) -> list[int]:
        matches = (re.fullmatch(pattern, what) for _, _, what in self.lines)
        return [int(match[1]) for match in matches if match]
