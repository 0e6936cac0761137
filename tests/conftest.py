"""One thread per process: two make small models several times slower, and results noisier."""

import pytest
import torch
from spelling import asked_in_every_spelling

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def every_spelling(monkeypatch):
    """Whatever a test plans is refused or not, however its parts are spelt."""
    asked_in_every_spelling(monkeypatch)
