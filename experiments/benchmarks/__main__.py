"""Runs every benchmark in a separate process, in a short setting, and writes a dated file of
results.

python -m experiments.benchmarks --peers
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from experiments.benchmarks.peers.environments import DEFAULT, ROOT
from experiments.benchmarks.pictures import draw_all
from experiments.benchmarks.work import steadiness

RESULTS = Path(__file__).parent / "results"
SHORT: dict[str, list[str]] = {
    "rounds": ["--repeats", "3"],
    "scaling": ["--repeats", "9"],
    "scale.bottlenecks": ["--clients", "100000", "--parameters", "1e7"],
    "scale.reading_ahead": ["--clients", "50000", "--turns", "5"],
    "ten_runs": ["--runs", "3", "--rounds", "3"],
    "choices": ["--runs", "3"],
    "workers": ["--repeats", "1"],
    "local_training": ["--rounds", "15"],
    "language_models": ["--turns", "5"],
    "device": ["--repeats", "5"],
    "accounting_speed": ["--rounds", "1000", "--queries", "50"],
    "start_up": ["--repeats", "5"],
    "secure_sums": [],
    "sums.layered": [],
    "sums.packing": ["--lengths", "1000000"],
    "sites": ["--rounds", "5"],
    "distributed_noise": ["--count", "500000", "--clients", "20"],
    "aggregation": ["--turns", "3"],
}


@dataclass(frozen=True)
class Report:
    """A benchmark's output, and its exit code."""

    name: str
    output: str
    code: int

    def markdown(self) -> str:
        failed = f" (stopped with exit code {self.code})" if self.code else ""
        return f"## {self.name}{failed}\n\n```\n{self.output.strip()}\n```\n"


def run(name: str, options: list[str]) -> Report:
    """Runs the benchmark in a separate process."""
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110", "NO_COLOR": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    output = ran.stdout if ran.returncode == 0 else f"{ran.stdout}\n{ran.stderr[-1000:]}"
    return Report(name, output, ran.returncode)


def reports(names: list[str], more: dict[str, list[str]], spread: list[float]) -> Iterator[Report]:
    """Yields reports one after the other; the machine's reference is timed after each."""
    for name in names:
        report = run(name, SHORT[name] + more.get(name, []))
        spread += [steadiness.reference() for _ in range(3)]
        yield report


def written(today: str, machine: str, spread: list[float], reports: list[Report]) -> str:
    """Returns the content of the dated file."""
    steady = steadiness.spread(spread)
    head = f"# Benchmarks, {today}\n\n{machine}. Between the benchmarks, {steady}.\n"
    return "\n".join([head, *(each.markdown() for each in reports)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=[*SHORT], default=[*SHORT])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--peers", nargs="?", type=Path, const=DEFAULT, help="see rounds")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    today, machine = date.today().isoformat(), steadiness.machine()
    table = arguments.out / f"{today}.csv"
    table.unlink(missing_ok=True)  # of an earlier attempt today
    more = {name: ["--table", str(table)] for name in ("rounds", "scaling", "ten_runs")}
    if arguments.peers:
        for name in ("rounds", "secure_sums", "ten_runs"):
            more[name] = [*more.get(name, []), "--peers", str(arguments.peers)]
    spread: list[float] = []
    finished: list[Report] = []
    path = arguments.out / f"{today}.md"
    for report in reports(arguments.only, more, spread):
        print(f"{report.name}\n{report.output}", flush=True)
        finished.append(report)
        path.write_text(written(today, machine, spread, finished), "utf-8")  # so far
    print(f"written to {path}")
    for picture in draw_all(table) if table.exists() else ():
        print(f"drawn: {picture}")
    if any(each.code for each in finished):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
