"""The cost of charging and of computing epsilon, next to simple references.

    python -m experiments.benchmarks.accounting_speed

The ledger is compared with bare fsynced lines, and epsilon from counted events with the library's
composition one by one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dp_accounting
from dp_accounting import rdp as library_rdp
from rich.console import Console
from rich.table import Table

from accounting.accountants import epsilon
from accounting.events import Event
from accounting.guarantee import Gate
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled

EVENT = Event(PoissonSampled(0.01, Gaussian(1.0)), "poisson")
DELTA = 1e-5


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def charges(path: Path, rounds: int) -> None:
    """Charges every round through a budget gate, as a run does."""
    ledger = Ledger.create(path, {})
    ledger.gate = Gate(1e3, DELTA, "tightest", rounds)
    for round in range(1, rounds + 1):
        ledger.charge(round, EVENT)


def bare_lines(path: Path, rounds: int) -> None:
    """Performs the minimum of durable charges: appends and fsyncs a line of the same length."""
    line = b"x" * 112 + b"\n"
    for _ in range(rounds):
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def after_every_round(rounds: int) -> None:
    """Computes epsilon by RDP after each round, from counts."""
    for round in range(1, rounds + 1):
        epsilon({EVENT: round}, DELTA, "rdp")


def one_by_one(rounds: int) -> None:
    """Computes the same with the library's accountant as commonly used: one `compose` per round."""
    accountant = library_rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    for _ in range(rounds):
        accountant.compose(event)
        accountant.get_epsilon(DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=10_000, help="ledger charges (and bare lines)"
    )
    parser.add_argument("--queries", type=int, default=200, help="epsilon after each of so many")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    measured: dict[str, list[float]] = {
        name: [] for name in ("ledger", "bare", "counted", "singly")
    }
    epsilon({EVENT: 1}, DELTA, "rdp")  # the library's own start-up
    for repeat in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            ledger, bare = Path(folder) / f"l{repeat}.jsonl", Path(folder) / f"b{repeat}"
            measured["ledger"].append(seconds(lambda path=ledger: charges(path, arguments.rounds)))  # type: ignore[misc]
            measured["bare"].append(seconds(lambda path=bare: bare_lines(path, arguments.rounds)))  # type: ignore[misc]
        measured["counted"].append(seconds(lambda: after_every_round(arguments.queries)))
        measured["singly"].append(seconds(lambda: one_by_one(arguments.queries)))
    took = {name: statistics.median(times) for name, times in measured.items()}
    pld = seconds(lambda: epsilon({EVENT: 12_345}, DELTA, "pld"))
    table = Table(
        title=f"medians of {arguments.repeats}; PLD of 12,345 rounds once: {pld * 1e3:.0f} ms"
    )
    for name in ("what", "seconds", "per round", "ratio"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for name, reference, count, words in (
        ("ledger", "bare", arguments.rounds, f"{arguments.rounds:,} charges: gate, chain, fsync"),
        ("bare", "bare", arguments.rounds, f"{arguments.rounds:,} bare fsynced lines (reference)"),
        (
            "counted",
            "singly",
            arguments.queries,
            f"ε after each of {arguments.queries} rounds, counted",
        ),
        ("singly", "singly", arguments.queries, "dp-accounting, one compose a round (reference)"),
    ):
        per_round = took[name] / count * 1e3
        ratio = took[name] / took[reference]
        table.add_row(words, f"{took[name]:.3f}", f"{per_round:.3f} ms", f"{ratio:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
