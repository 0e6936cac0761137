"""Denormals are zero where time would tell of them, and as before afterwards."""

import threading

import pytest
import torch

from privfed.deploy.site.site_work import flushed_denormals, flushes_denormals

LEAST = torch.finfo(torch.float32).tiny


def halved():
    """Half of the least normal number, as torch computes it."""
    return float((torch.tensor([LEAST]) / 2).view(torch.int32)[0])


@pytest.fixture(autouse=True)
def as_before():
    assert not flushes_denormals()
    yield
    torch.set_flush_denormal(False)


def test_they_are_zero_in_the_block_alone():
    assert halved() != 0
    with flushed_denormals():
        assert flushes_denormals()
        assert halved() == 0
    assert not flushes_denormals()
    assert halved() != 0


def test_a_block_in_a_block_leaves_it_as_it_was():
    with flushed_denormals():
        with flushed_denormals():
            pass
        assert flushes_denormals()
        assert halved() == 0
    assert not flushes_denormals()


def test_what_fails_in_it_leaves_no_trace():
    with pytest.raises(ValueError), flushed_denormals():
        raise ValueError
    assert not flushes_denormals()


def test_threads_that_it_starts_do_so_too():
    states = []
    with flushed_denormals():
        thread = threading.Thread(target=lambda: states.append((flushes_denormals(), halved())))
        thread.start()
        thread.join()
    assert states == [(True, 0.0)]
