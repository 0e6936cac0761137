"""Settings that all tests share, mostly for speed; they do not change what is asserted.

One thread per process: two threads make small models several times slower, and results less stable.
Temporary files are in memory if there is room: runs sync tens of thousands of writes, and a disk
takes milliseconds for each. Compiled modules are kept, because each worker and command would
otherwise compile them again.

Binomial coefficients of dp-accounting are remembered: they take half the time of its Rényi curves.

Global generators are seeded before each module is imported and before each test, so that no result
depends on the tests that ran before it in the same process.
"""

import functools
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from devices import require_device
from lanes import seed_global_generators
from spelling import asked_in_every_spelling

MEMORY, ROOM = Path("/dev/shm"), 4 << 30

torch.set_num_threads(1)
os.environ["PRIVFED_CACHE"] = ""  # speeds are measured, not remembered
roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
if roomy and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collectstart(collector):
    if isinstance(collector, pytest.Module):
        seed_global_generators()


def pytest_collection_finish():
    if library := sys.modules.get("dp_accounting.rdp.rdp_privacy_accountant"):
        library._log_comb = functools.cache(library._log_comb)
    gc.collect()
    gc.freeze()  # thousands of tests and their modules stay: no collection has to walk them again


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    seed_global_generators()


@pytest.fixture(autouse=True)
def every_spelling(monkeypatch):
    """Checks that the decision to refuse a plan does not depend on the spelling of its parts."""
    asked_in_every_spelling(monkeypatch)


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """The CPU, and a GPU if there is one; a test with this fixture runs on each."""
    return require_device(request.param)
