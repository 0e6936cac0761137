"""The devices on which tests run: the CPU, and a GPU if there is one.

`PRIVFED_TEST_DEVICE=cuda` (`make test-device`) requires a GPU.
"""

import os

import pytest
import torch

ASKED = os.environ.get("PRIVFED_TEST_DEVICE", "")


def require_device(kind: str) -> torch.device:
    """Returns the device of that kind; without one, skips the test, or fails it if it was
    required.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        reason = "no GPU is available"
        pytest.fail(reason) if ASKED == "cuda" else pytest.skip(reason)
    return torch.device(kind)
