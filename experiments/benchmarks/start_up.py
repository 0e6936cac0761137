"""How long a command takes to answer where nothing is trained, against importing torch alone.

python -m experiments.benchmarks.start_up --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

REFERENCE = "import torch"
_PRIVFED = ("-m", "privfed")
_RUN = ("run.rounds=3", "data.clients=100", "cohort.size=20", "privacy.delta=1e-3")


def commands(run: Path) -> dict[str, tuple[str, ...]]:
    """What is timed, as arguments of a Python; `run` is a run directory."""
    asked = ("--sampling-rate", "0.1", "--rounds", "100", "--delta", "1e-5", "--epsilon", "2")
    return {
        REFERENCE: ("-c", REFERENCE),
        "privfed --help": (*_PRIVFED, "--help"),
        "privfed list": (*_PRIVFED, "list"),
        "privfed calibrate": (*_PRIVFED, "calibrate", *asked),
        "privfed audit": (*_PRIVFED, "audit", str(run)),
        "privfed check": (*_PRIVFED, "check"),
    }


def seconds(arguments: tuple[str, ...]) -> float:
    """How long a Python with `arguments` takes from start to exit."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def measured(asked: Mapping[str, tuple[str, ...]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, who take turns."""
    times: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, arguments in asked.items():
            times[name].append(seconds(arguments))
    return times


def lines(times: Mapping[str, list[float]]) -> list[str]:
    """A line each: the median, and the median of its ratios to the reference, turn by turn."""
    reference = times[REFERENCE]
    lines_shown = []
    for name, taken in times.items():
        ratio = statistics.median(mine / its for mine, its in zip(taken, reference, strict=True))
        lines_shown.append(
            f"{name:20s} {statistics.median(taken):6.2f} s  {ratio:5.2f} x {REFERENCE}"
        )
    return lines_shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        keys = [word for key in _RUN for word in ("--set", key)]
        seconds((*_PRIVFED, "train", *keys, "--out", str(run)))
        print("\n".join(lines(measured(commands(run), repeats))))


if __name__ == "__main__":
    main()
