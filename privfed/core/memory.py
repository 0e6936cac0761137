"""Memory that a process keeps, to use it again."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

from privfed.core.errors import Refused

_TRIM, _MAPPED = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of `mallopt(3)`."""
_MEMORY = Path("/proc/meminfo")
_NEVER, _SELDOM = 1 << 30, 32 << 20
"""Bytes; some versions take no more than the second for what they map."""

_BASE, _OF_A_THREAD = 200 << 20, 40 << 20
"""Bytes that libraries need in all, and for each thread of theirs."""


def keep_freed() -> bool:
    """Have this process keep the memory it frees, where its C library is glibc; whether it does.

    A chunk of stacked models takes megabytes, which glibc hands back to the system and asks for
    again, with a page fault for every 4 KB: up to a quarter of a round. The price is memory that
    lies idle (600 MB where it was 530, whatever the cohort). For processes of privfed's own.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    mapped = library.mallopt(_MAPPED, _NEVER) or library.mallopt(_MAPPED, _SELDOM)
    return bool(library.mallopt(_TRIM, _NEVER) and mapped)


def refuse_little_memory() -> None:
    """Raises `Refused` where the process may use less memory than its libraries need to begin.

    With less, NumPy's linear algebra asks for a buffer per thread again and again, without end.
    """
    try:
        import resource
    except ImportError:  # of systems that have no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    least = _BASE + _OF_A_THREAD * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < least:
        raise Refused(
            f"the process may use {limit >> 20} MiB of memory (ulimit -v), but its libraries need "
            f"{least >> 20} MiB to begin with; raise the limit"
        )


def free_memory() -> int | None:
    """The bytes that the system can give without swapping; None where it does not say."""
    try:
        available = re.search(
            r"^MemAvailable: +(\d+) kB$", _MEMORY.read_text("ascii"), re.MULTILINE
        )
    except OSError:
        return None
    return int(available[1]) << 10 if available else None


def refuse_too_large(what: str, size: int, instead: str) -> None:
    """Raises `Refused` where `what` unpacks to `size` bytes, more than are free.

    Args:
      what: names the file and the part of it.
      size: bytes that it will take.
      instead: what to do.
    """
    free = free_memory()
    if free is not None and size > free:
        raise Refused(
            f"{what} unpacks to {size / 2**30:,.1f} GiB, but {free / 2**30:,.1f} GiB of memory are "
            f"free; {instead}"
        )
