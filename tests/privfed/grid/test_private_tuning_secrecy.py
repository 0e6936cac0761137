"""Nothing that a private tuning says or prints tells how many candidates there are."""

import pytest
from grids import in_process, write
from private_tunings import BUDGET, TUNED, number, scored, tuned

from privfed.core.errors import Refused
from privfed.grid import private_tuning as tuning
from privfed.grid.cells import STOPPED
from privfed.store.run_directory import RunDirectory

SPEAKING = """
import multiprocessing, os, sys
from torch import nn

def small(features, width):
    print("a network")
    print("a network", file=sys.stderr)
    if multiprocessing.parent_process() is not None:
        os.write(2, b"a network past Python")
    return nn.Sequential(nn.Flatten(), nn.Linear(features[0], width))
"""


def test_what_is_full_or_busy_does_not_say_which_candidate(tmp_path, monkeypatch):
    number(monkeypatch, 5)
    path = write(tmp_path, TUNED, BUDGET)
    full = {"status": STOPPED, "reason": "private/candidates/000003/run/x: No space left"}
    monkeypatch.setattr(tuning, "work", scored(0.5, 0.5, full))
    with pytest.raises(Refused) as refused:
        tuned(path)
    assert "000003" not in str(refused.value)
    assert "No space left" in (tmp_path / "private/log.txt").read_text()
    monkeypatch.setattr(tuning, "work", in_process)
    with (
        RunDirectory.create(tmp_path / "private/candidates/000004/run").locked(),
        pytest.raises(Refused) as refused,
    ):
        tuned(path)
    assert "000004" not in str(refused.value)


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_candidates_print_nothing(tmp_path, capfd, monkeypatch, processes):
    (tmp_path / "speaking.py").write_text(SPEAKING)
    monkeypatch.syspath_prepend(tmp_path)
    if not processes:
        monkeypatch.setattr(tuning, "work", in_process)
    base = BUDGET.replace("[client]", '[model]\nname = "speaking:small"\n[client]')
    counts, logged = [], []
    for count in (1, 4):
        number(monkeypatch, count)
        path = write(tmp_path / str(count), TUNED, base)
        tuned(path, max(processes, 1))
        printed = capfd.readouterr()
        counts.append((printed.out + printed.err).count("a network"))
        logged.append((path.parent / "private/log.txt").read_text().count("a network"))
    assert counts[0] == counts[1]
    assert 0 < logged[0] < logged[1]
