"""Who writes a client of its own imports no torch, and a sum can be played from that alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LONG

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "own_client.md"
CLIENT = """
import json, sys
from pathlib import Path
import privfed.privacy.codec, privfed.privacy.noise.shares, privfed.secure.identities
import privfed.secure.masked.client, privfed.secure.masked.committed_party
import privfed.secure.masked.policy, privfed.secure.masked.messages.wire
import privfed.secure.masked.policy, privfed.secure.masked.policy

def loaded():
    return sorted({name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))

def peak():
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]

alone = loaded(), peak()
"""
LIGHT = {"numpy", "cryptography", "privfed", "accounting", "defenses"}
MOST = 60_000
"""Kilobytes of memory."""


@pytest.fixture(scope="module")
def played():
    """What is loaded after the import and after a sum, the peaks of memory, and what was said."""
    blocks = re.findall("```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    report = "print(json.dumps([*alone, loaded(), peak()]))"
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join((CLIENT, *blocks, report))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert ran.returncode == 0, ran.stderr
    page, facts = ran.stdout.splitlines()
    return page, *json.loads(facts)


def of_others(modules):
    """Packages that are neither ours nor what they themselves load, such as their C parts."""
    return {name for name in modules if not name.startswith(("_", "cython"))}


def test_a_client_imports_numpy_and_cryptography_alone(played):
    _, alone, peak, *_ = played
    assert of_others(alone) <= LIGHT
    assert {"numpy", "cryptography"} <= set(alone)
    assert all(size < MOST for size in peak)


def test_a_sum_is_played_from_that_import(played):
    page, _, _, after, peak = played
    assert page in PAGE.read_text("utf-8")
    assert of_others(after) <= LIGHT
    assert all(size < MOST for size in peak)
