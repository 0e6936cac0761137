"""The stability of the machine: one fixed computation, timed repeatedly between measurements."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from pathlib import Path

import torch


def reference() -> float:
    """Returns milliseconds of a fixed computation on one thread: small calls, and matrix
    products.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    small, large = torch.ones(100, 60), torch.ones(512, 512)
    began = time.perf_counter()
    for _ in range(1000):
        small = torch.tanh(small)
    for _ in range(10):
        large = (large @ large).clamp(max=1.0)
    taken = time.perf_counter() - began
    torch.set_num_threads(threads)
    return 1e3 * taken


def spread(times: list[float]) -> str:
    """Returns the range and median of repeats of the reference, in words.

    >>> spread([10.0, 10.0, 12.0, 20.0])
    'a fixed computation took 10.0 to 20.0 ms, median 11.0 (4 times): the slowest 2.0 x the fastest'
    """
    low, high = min(times), max(times)
    return (
        f"a fixed computation took {low:.1f} to {high:.1f} ms, median "
        f"{statistics.median(times):.1f} ({len(times)} times): the slowest {high / low:.1f} x "
        "the fastest"
    )


def machine() -> str:
    """Returns a description of the machine."""
    cores, load = os.cpu_count(), os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    busy = "" if load is None else f", load {load:.1f} before this"
    return f"{cores} cores of {_processor()}, torch {torch.__version__}{busy}"


def _processor() -> str:
    """Returns the processor's name and vector units, which decide between precisions."""
    name, units = platform.processor() or platform.machine(), ""
    with contextlib.suppress(OSError):
        fields = dict(
            line.split(":", 1)
            for line in reversed(Path("/proc/cpuinfo").read_text("utf-8").splitlines())
            if ":" in line
        )
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        name = fields.get("model name", name)
        units = " ".join({"amx_bf16", "avx512_bf16"} & {*fields.get("flags", "").split()})
    return " ".join((name, torch.backends.cpu.get_cpu_capability(), units)).strip()
