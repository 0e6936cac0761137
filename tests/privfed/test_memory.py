"""A process of privfed's own keeps the memory it frees."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from privfed.core.memory import keep_freed
if sys.argv[1] == "keep":
    assert keep_freed()
def fill():
    np.empty(3 << 20).fill(1.0)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    command = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_that_was_freed_is_used_again_without_page_faults():
    kept, given_back = faults("keep"), faults("leave")
    if given_back < 100:
        pytest.skip("pages are too large here, or faults are not counted")
    assert kept < given_back / 10


def test_another_c_library_is_left_alone(monkeypatch):
    from privfed.core import memory as heap

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(heap.ctypes, "CDLL", None)
    assert heap.keep_freed() is False
