"""The time of commands before any training, against importing torch alone.

python -m experiments.benchmarks.start_up --repeats 5

Plans, an audit of 10^5 charges and a list of 500 runs are timed without the imports of the process.
Modules are compiled once, as those of an installation are, into a folder of the benchmark's own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accounting import chain
from accounting.ledger import Ledger

NOTHING, REFERENCE = "pass", "import torch"
FIRST_ROUND = "privfed train, to its first round"
AIM = 1.5
"""Target for the seconds of `FIRST_ROUND` beyond those of the reference."""
_PRIVFED = ("-m", "privfed")
_RUN = ("run.rounds=3", "data.clients=100", "cohort.size=20", "privacy.delta=1e-3")
_TRAIN = (*_PRIVFED, "train", "--set", "run.rounds=1", "--out")


_CHARGES, _FOLDERS = 100_000, 500
_CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=10", "cohort.size=0")
_PLANS = {
    "check": (),
    "check, 500 canaries": ("audit.canaries=500",),
    "check, banded": (*_CYCLIC, "privacy.mechanism=banded"),
    "check, blt": (*_CYCLIC, "privacy.mechanism=blt"),
}
_WITHOUT_IMPORTS = """
import builtins, importlib, sys, time

importing, spent = False, 0.0

def timed(load):
    def loaded(*arguments, **named):
        global importing, spent
        if importing:
            return load(*arguments, **named)
        importing, began = True, time.process_time()
        try:
            return load(*arguments, **named)
        finally:
            importing, spent = False, spent + time.process_time() - began
    return loaded

builtins.__import__, importlib.import_module = map(
    timed, (builtins.__import__, importlib.import_module)
)
began = time.process_time()
try:
    from privfed.cli.main import main
    main()
finally:
    print(time.process_time() - began - spent, file=sys.stderr)
"""
"""Runs a command; prints its processor seconds outside imports to the standard error."""


@dataclass(frozen=True)
class Taken:
    """The time of a process: seconds from start to exit, and processor seconds."""

    seconds: float
    cpu: float


def commands(run: Path) -> dict[str, tuple[str, ...]]:
    """Returns the timed commands as arguments of a Python interpreter; `run` is a run directory."""
    arguments = ("--sampling-rate", "0.1", "--rounds", "100", "--delta", "1e-5", "--epsilon", "2")
    return {
        NOTHING: ("-c", NOTHING),
        REFERENCE: ("-c", REFERENCE),
        "import torch, dp_accounting": ("-c", "import torch, dp_accounting"),
        "privfed --help": (*_PRIVFED, "--help"),
        "privfed list": (*_PRIVFED, "list"),
        "privfed calibrate": (*_PRIVFED, "calibrate", *arguments),
        "privfed audit": (*_PRIVFED, "audit", str(run)),
        "privfed check": (*_PRIVFED, "check"),
    }


def taken(arguments: tuple[str, ...], compiled: Path) -> Taken:
    """Returns the time of a Python process with `arguments`; `compiled` caches compiled modules."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    here = {**inherited, "PYTHONPYCACHEPREFIX": str(compiled)}
    start, cpu = time.perf_counter(), _cpu_of_children()
    subprocess.run([sys.executable, *arguments], env=here, check=True, capture_output=True)
    return Taken(time.perf_counter() - start, _cpu_of_children() - cpu)


def first_round(compiled: Path) -> Taken:
    """Returns the time of the default `privfed train` until its ledger is charged for the first
    round.

    The run has one round, so its charge is the last write to the ledger. The processor time is that
    of the whole run, with that round, its evaluation and its files.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.time()
        process = taken((*_TRAIN, str(out)), compiled)
        return Taken((out / "ledger.jsonl").stat().st_mtime - began, process.cpu)


def measured(
    commands: Mapping[str, tuple[str, ...]], repeats: int, compiled: Path
) -> dict[str, list[Taken]]:
    """Returns the times of each command and `FIRST_ROUND`, in turn, after one uncounted turn."""
    turns: dict[str, list[Taken]] = {name: [] for name in (*commands, FIRST_ROUND)}
    for _ in range(repeats + 1):
        for name, arguments in commands.items():
            turns[name].append(taken(arguments, compiled))
        turns[FIRST_ROUND].append(first_round(compiled))
    return {name: each[1:] for name, each in turns.items()}


def lines(turns: Mapping[str, list[Taken]]) -> list[str]:
    """Returns a line each: medians, and the median of the ratios to the reference, turn by turn."""
    width = max(map(len, turns))
    return [
        f"{name:{width}s} {_median(turns[name]):6.2f} s  {_median_cpu(turns[name]):6.2f} CPU s  "
        f"{statistics.median(_over_reference(turns, name)):5.2f} x {REFERENCE}"
        for name in turns
    ]


def beyond(turns: Mapping[str, list[Taken]]) -> str:
    """Returns the time of the first round beyond the reference, turn by turn, next to the aim."""
    pairs = list(zip(turns[FIRST_ROUND], turns[REFERENCE], strict=True))
    seconds = statistics.median(mine.seconds - its.seconds for mine, its in pairs)
    cpu = statistics.median(mine.cpu - its.cpu for mine, its in pairs)
    return (
        f"train to its first round, beyond {REFERENCE}: {seconds:.2f} s (aim: {AIM:g}); "
        f"{cpu:.2f} CPU s with that round"
    )


def without_imports(folder: Path, run: Path) -> dict[str, tuple[str, ...]]:
    """Returns commands as arguments of `privfed`, on copies of `run` that it makes in `folder`."""
    long = folder / "long"
    for copy in (long, *(folder / "runs" / str(number) for number in range(_FOLDERS))):
        shutil.copytree(run, copy)
    ledger = Ledger.load(long / "ledger.jsonl")
    head, lines = ledger.head().hex(), []
    for round in range(len(ledger.charges) + 1, _CHARGES + 1):
        line, link = chain.sealed(head, {"type": "charge", "round": round, "event": 0})
        head = link["hash"]
        lines.append(line)
    with ledger.path.open("ab") as file:
        file.writelines(lines)
    keys = {
        name: [word for key in each for word in ("--set", key)] for name, each in _PLANS.items()
    }
    return {
        **{name: ("check", *words) for name, words in keys.items()},
        "check --advise": ("check", "--advise"),
        "audit, 10^5 charges": ("audit", str(long)),
        "runs, 500 folders": ("runs", str(folder / "runs")),
        "runs, 500 folders and 10^5 charges": ("runs", str(folder)),
    }


def _without_imports(arguments: tuple[str, ...]) -> float:
    words = [sys.executable, "-c", _WITHOUT_IMPORTS, *arguments]
    run = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(run.stderr.split()[-1])


def _over_reference(turns: Mapping[str, list[Taken]], name: str) -> list[float]:
    pairs = zip(turns[name], turns[REFERENCE], strict=True)
    return [mine.seconds / its.seconds for mine, its in pairs]


def _median(turns: list[Taken]) -> float:
    return statistics.median(each.seconds for each in turns)


def _median_cpu(turns: list[Taken]) -> float:
    return statistics.median(each.cpu for each in turns)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        run, compiled = Path(folder) / "run", Path(folder) / "compiled"
        keys = [word for key in _RUN for word in ("--set", key)]
        taken((*_PRIVFED, "train", *keys, "--out", str(run)), compiled)
        turns = measured(commands(run), repeats, compiled)
        print("\n".join([*lines(turns), "", beyond(turns), "", "CPU s without imports:"]))
        for name, words in without_imports(Path(folder) / "copies", run).items():
            print(f"{name:35s} {min(_without_imports(words) for _ in range(repeats)):6.2f}")


if __name__ == "__main__":
    main()
