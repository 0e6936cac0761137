"""Finds the fastest of several computations by timing them in turn, and remembers the times.

Load on a machine comes and goes, and only lengthens times. So contenders alternate, the shortest
time of each counts, and a contender is given up only when it is slower than the best by a margin
that becomes smaller with each turn.

Times are remembered in a file per question, in the folder `$PRIVFED_CACHE`, or `privfed` in
`$XDG_CACHE_HOME` or `~/.cache`. If `PRIVFED_CACHE` is empty, nothing is read or written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from accounting import regular
from accounting.documents import from_json
from accounting.durable import write_atomically

_MARGINS = (math.inf, 4.0, 2.0, 1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.1, 1.05, 1.05)
"""Largest ratio to the shortest time, after each turn, at which a contender stays in the race. The
first turn may compile or load code, so all contenders take a second one."""
_FEWEST, _SECONDS = 3, 2.0
"""Least number of turns, unless one contender remains, and seconds after which no turn begins."""


def race(contenders: Sequence[Callable[[], float]]) -> list[float]:
    """Returns the shortest time of each contender; a call of it returns the time of one turn."""
    shortest = [float("inf")] * len(contenders)
    remaining, began = list(range(len(contenders))), time.perf_counter()
    for turn, margin in enumerate(_MARGINS):
        for place in remaining:
            shortest[place] = min(shortest[place], contenders[place]())
        remaining = [place for place in remaining if shortest[place] <= margin * min(shortest)]
        late = turn + 1 >= _FEWEST and time.perf_counter() - began > _SECONDS
        if len(remaining) == 1 or late:
            break
    return shortest


def remembered(
    question: Mapping[str, object], count: int, measure: Callable[[], list[float]]
) -> list[float]:
    """Returns the times that were remembered for `question` on this machine, or measures them.

    Args:
      question: what the times depend on, apart from the machine and versions.
      count: number of times.
      measure: measures the times, which are then remembered.
    """
    text = json.dumps({**question, "machine": _machine()}, sort_keys=True, default=repr)
    folder = _folder()
    if folder is None:
        return measure()
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    try:
        known = [float(each) for each in from_json(regular.read_bytes(path))["seconds"]]
        if len(known) == count and all(0 < each < math.inf for each in known):
            return known
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        pass  # nothing is remembered, or the file is damaged and will be replaced
    times = measure()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"seconds": times, "of": text}).encode())
    except OSError:
        pass  # the next run measures again
    return times


def _folder() -> Path | None:
    given = os.environ.get("PRIVFED_CACHE")
    if given is not None:
        return Path(given) if given else None
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # there is no home
        return None
    return base / "privfed"


def _machine() -> list[object]:
    """Returns the processor, its cores, the GPUs, and the versions of PyTorch and privfed."""
    try:
        lines = regular.read_text(Path("/proc/cpuinfo")).splitlines()
        processor = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    except OSError:
        processor = {platform.processor()}
    cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = torch.__version__, version("privfed")
    return [platform.machine(), sorted(processor), cores, cards, *versions]
