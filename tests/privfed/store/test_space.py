"""Files that are mapped have all their blocks before a round is charged, or the run is refused."""

import errno
import os

import numpy as np
import pytest
from lanes import every_case
from small import same_run, trained

from accounting.ledger import Ledger
from privfed.canary.drawing import CanaryRequest
from privfed.client.client_states import ClientStates
from privfed.core.errors import Refused
from privfed.run.train import resume

RETURNING = "data.setting=cross_silo"
OPEN = "privacy.mechanism=none"
REMEMBERING = {
    **{name: (RETURNING, f"client.objective={name}") for name in ("scaffold", "feddyn", "ditto")},
    "apfl": (RETURNING, "client.objective=apfl"),
    "error feedback": (
        *(RETURNING, OPEN),
        *("compression.name=top_k", "compression.error_feedback=true"),
    ),
    "histories": (OPEN, "aggregation.rule=foolsgold"),
}


def settled(path):
    return [*(path / "private").rglob("settled.f32")]


@every_case("kind", REMEMBERING)
def test_a_full_disk_refuses_a_run_before_its_first_charge(tmp_path, monkeypatch, kind):
    words, full = (*REMEMBERING[kind], "run.rounds=2", "run.randomness=seeded"), tmp_path / "full"

    def no_space(descriptor, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_space)
        with pytest.raises(Refused, match=r"No space left on device.*free space there and resume"):
            trained(full, *words)
    assert not Ledger.load(full / "ledger.jsonl").charges
    resume(full, lambda stored: stored)
    trained(tmp_path / "roomy", *words)
    same_run(full, tmp_path / "roomy")


@every_case("kind", REMEMBERING)
def test_what_is_mapped_has_all_its_blocks(tmp_path, kind):
    trained(tmp_path, *REMEMBERING[kind], "run.rounds=1")
    for path in settled(tmp_path):
        assert path.stat().st_blocks * 512 >= path.stat().st_size > 0
    assert len(settled(tmp_path)) == 1


def test_blocks_that_an_older_version_left_out_are_taken_on_a_resume(tmp_path):
    ClientStates(tmp_path, "a", 500, 200, 0)
    path = tmp_path / "settled.f32"
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
    assert path.stat().st_blocks * 512 < size
    ClientStates(tmp_path, "a", 500, 200, 3)
    assert path.stat().st_blocks * 512 >= size


def test_canaries_are_written_without_a_map_as_numpy_reads_them(tmp_path, monkeypatch):
    monkeypatch.delattr(np.lib.format, "open_memmap")
    directions = (
        CanaryRequest(40, 50, 0.5, "zero-out", 1).write(tmp_path / "canaries").directions_path
    )
    again = tmp_path / "again.npy"
    np.save(again, np.load(directions))
    assert again.read_bytes() == directions.read_bytes()
