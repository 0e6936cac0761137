"""The state of a site for its operators: whether its agent answers, ε, and what was declined.

Nothing here depends on a row of the site's table or on which clients were sampled, so that
monitoring may read it: answers are counted by receipts, which precede sampling, and refusals by
their public code, which may depend on the table's header.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accounting import regular
from accounting.documents import Encoded, from_json
from accounting.durable import write_atomically
from privfed.deploy.carriers.local_socket import ask
from privfed.deploy.files.approvals import Approvals
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.site.joining import Membership
from privfed.deploy.site.policy import Code, LocalPolicy
from privfed.store.folders import is_held

_SECONDS = 10.0
"""Seconds within which an agent has to answer an empty question."""


@dataclass(frozen=True)
class DeclinedCounts:
    """The number of declined messages by code, stored in the file `path`.

    A missing or damaged file counts as empty, and a count that cannot be written is lost: the
    counts are statistics, on which no guarantee depends.
    """

    path: Path

    def read(self) -> Mapping[str, int]:
        """Returns the number for each `Code`; 0 if none is stored, or the file is unreadable."""
        stored = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stored = dict(from_json(regular.read_bytes(self.path)).items())
        numbers = {code: stored.get(code.value, 0) for code in Code}
        return {code.value: n if isinstance(n, int) else 0 for code, n in numbers.items()}

    def add(self, code: Code) -> None:
        """Counts one declined message."""
        counts = Counter(self.read())
        counts[code.value] += 1
        with contextlib.suppress(OSError):
            write_atomically(self.path, json.dumps(+counts).encode())


@dataclass(frozen=True)
class SiteStatus(Encoded):
    """The state of a site.

    Attributes:
      site: name of the site.
      federation: name of the federation.
      population: name of the site's population.
      up: whether an agent answers at the site's socket, also while it trains.
      epsilon: epsilon of all receipts, at `delta`; infinite if no bound is known.
      budget: the largest epsilon that the policy allows.
      delta: the policy's delta.
      runs: number of runs that the site has answered.
      answers: number of exchanges that it has answered.
      last_run: hash that identifies the last run; empty if there is none.
      last_round: last round of that run that the site answered; 0 if there is none.
      last_answer: modification time of the receipts, in seconds since 1970; 0 if `runs` is 0.
      pending: number of declared runs without a decision.
      declined: number of declined messages, by code.
    """

    site: str
    federation: str
    population: str
    up: bool
    epsilon: float
    budget: float
    delta: float
    runs: int
    answers: int
    last_run: str
    last_round: int
    last_answer: float
    pending: int
    declined: Mapping[str, int] = field(default_factory=dict)

    def prometheus(self) -> str:
        """Returns the status in Prometheus' text format, for the textfile collector."""
        labels = f'site="{self.site}",federation="{self.federation}"'
        lines = []
        for name, kind, help_text, value in self._metrics():
            lines.append(f"# HELP privfed_site_{name} {help_text}")
            lines.append(f"# TYPE privfed_site_{name} {kind}")
            numbers = value if isinstance(value, Mapping) else {"": value}
            for code, number in numbers.items():
                each = f'{labels},code="{code}"' if code else labels
                lines.append(f"privfed_site_{name}{{{each}}} {_number(number)}")
        return "\n".join(lines) + "\n"

    def _metrics(self) -> Iterator[tuple[str, str, str, float | Mapping[str, int]]]:
        """Yields each metric's name, type, explanation, and value (or values by code)."""
        yield "up", "gauge", "1 if an agent serves the site.", float(self.up)
        yield "epsilon", "gauge", "Epsilon of all receipts at the policy's delta.", self.epsilon
        yield "epsilon_limit", "gauge", "Largest epsilon that the policy allows.", self.budget
        yield "runs_total", "counter", "Runs that the site has answered.", self.runs
        yield "answers_total", "counter", "Exchanges that the site has answered.", self.answers
        yield "last_answer_timestamp_seconds", "gauge", "Time of the last answer.", self.last_answer
        yield "pending_approvals", "gauge", "Runs that wait for approval by hand.", self.pending
        yield "declined_total", "counter", "Declined messages, by code.", self.declined


def _number(value: float) -> str:
    return {float("inf"): "+Inf"}.get(value, repr(value))


def site_status(member: Membership) -> SiteStatus:
    """Returns the state of the site `member`, of which no agent need be running."""
    folder = member.folder
    receipts, limit = member.receipts, LocalPolicy.read(folder.policy).budget
    runs = receipts.runs
    last = runs[-1] if runs else None
    return SiteStatus(
        site=member.key.name,
        federation=member.federation.name,
        population=SiteTable.read(folder.data).population,
        up=_answers(folder),
        epsilon=receipts.guarantees(limit.delta)[0].epsilon,
        budget=limit.epsilon,
        delta=limit.delta,
        runs=len(runs),
        answers=sum(run.exchanges for run in runs),
        last_run=last.run if last else "",
        last_round=last.last_round if last else 0,
        last_answer=folder.receipts.stat().st_mtime if runs else 0.0,
        pending=sum(each.decision == "pending" for each in Approvals(folder.approvals).all()),
        declined=DeclinedCounts(folder.declined).read(),
    )


def _answers(folder: SiteFolder) -> bool:
    """Whether an agent holds the folder and answers at its socket within 10 s, even if busy."""
    try:
        return is_held(folder.path) and ask(folder.socket, b"", _SECONDS) == b""
    except OSError:
        return False
