"""On what tests of devices run: the CPU, and a GPU where there is one.

`PRIVFED_TEST_DEVICE=cuda` (`make test-device`) says that one has to be there.
"""

import os

import pytest
import torch

ASKED = os.environ.get("PRIVFED_TEST_DEVICE", "")


def require_device(kind: str) -> torch.device:
    """The device of that kind; skips the test where there is none, and fails it if it was asked
    for."""
    if kind == "cuda" and not torch.cuda.is_available():
        reason = "no GPU is at hand"
        pytest.fail(reason) if ASKED == "cuda" else pytest.skip(reason)
    return torch.device(kind)
