"""Benchmarks measure what they say: the same arithmetic, rounds that happen, lines that fit."""

import threading
import time

import numpy as np
import pytest
import torch

from experiments.benchmarks import device, sites
from experiments.benchmarks.bare import BareLoop
from experiments.benchmarks.contenders import RULES
from experiments.benchmarks.growth import Growth, draw
from experiments.benchmarks.rounds import WHOLE
from experiments.benchmarks.running import Running
from experiments.benchmarks.scale import bottlenecks
from experiments.benchmarks.scale.bottlenecks import tabulated
from experiments.benchmarks.scale.phases import AHEAD, Phases
from experiments.benchmarks.scaling import crowd, grown
from experiments.benchmarks.task import Task
from experiments.benchmarks.workloads import LOGISTIC, task

TINY = LOGISTIC.with_("data.clients=12", "cohort.size=4", "data.features=5", "run.trainer=stacked")


def test_a_task_survives_its_file(tmp_path):
    work = task(TINY, 2)
    work.save(tmp_path / "task.npz")
    again = Task.load(tmp_path / "task.npz")
    assert (again.clip, again.batch_size, again.name) == (0.4, 10, "logistic")
    assert (again.x == work.x).all()
    assert again.cohorts.shape == (2, 4)


def test_the_bare_loop_and_privfed_agree_where_nothing_is_random():
    work = task(TINY, 3, *WHOLE)
    start = work.start.copy()
    bare = BareLoop(work, private=False, threads=1)
    bare.go(3)
    with Running(TINY.setup(*WHOLE)) as run:
        assert len(run.go(3)) == 3
    theirs = torch.cat([part.ravel() for part in bare.model])
    assert theirs.norm() > 0.01
    assert torch.allclose(run.state.params, theirs, atol=1e-6)
    assert (work.start == start).all()  # peers start from it after this


def test_private_rounds_of_the_bare_loop_are_clipped_and_noised():
    still = task(TINY, 1, "client.lr=0.0", "privacy.clip=0.01")
    bare = BareLoop(still, private=True, threads=1)
    bare.go()
    noise = torch.cat([part.ravel() for part in bare.model]) - torch.from_numpy(still.start)
    assert float(noise.std()) == pytest.approx(0.01 / 4, rel=0.6)


def test_growth_is_drawn(tmp_path):
    times = (1.0, 2.0, 3.0)
    growth = Growth("clients", (1.0, 2.0, 3.0), times, times, times)
    draw([growth, growth], tmp_path / "growth.svg")
    assert (tmp_path / "growth.svg").read_text().startswith("<?xml")
    assert growth.line.slope == pytest.approx(1.0)


def test_a_device_is_timed_and_what_it_could_do():
    assert min(device.limits(torch.device("cpu"), 1)) > 0
    setup, stacked, looped = device.both((4,), "cpu", threads=1, repeats=1)
    assert len(setup.network.initial_params) == 60 * 4 + 4 + 4 * 10 + 10
    assert setup.federation.sizes(np.arange(device.COHORT)).tolist() == [20] * device.COHORT
    assert 0 < stacked < looped


def test_rounds_are_timed():
    growth = grown("clients", [(n, TINY.with_(f"cohort.size={n}")) for n in (2, 8)], repeats=2)
    assert growth.xs == (2, 8)
    assert all(0 < low <= high for low, high in zip(growth.low, growth.high, strict=True))
    assert all(0 < seconds < 60 for seconds in crowd(200, 2))


def test_rounds_by_sites_are_timed_beside_those_without_a_protocol():
    together, central = sites.side_by_side(20, rounds=1)
    assert 0 < central[0] < together[0] < 60
    setups = [sites.workload(20, *way).setup() for way in (sites.TOGETHER, sites.CENTRAL)]
    assert [setup.algorithm.sites for setup in setups] == [sites.SITES, 0]
    assert [len(setup.network.initial_params) for setup in setups] == [100_004] * 2


def test_people_on_disk_are_measured_and_the_phases_of_their_rounds():
    scale = bottlenecks.people(40, 10, 1)
    assert (scale.clients, scale.cohort, scale.parameters) == (40, 10, 65 * 4)
    assert scale.on_disk > 40 * 8 * 64
    assert {"drawing", "reading", "training", "clipping", "noise", "writing"} <= {*scale.parts}
    assert sum(scale.parts.values()) == pytest.approx(100.0, abs=1.0)
    assert tabulated([scale]).row_count == 1


def test_seconds_count_to_the_innermost_phase():
    phases = Phases()
    inner = phases._timed("inner", lambda: time.sleep(0.02))
    outer = phases._timed("outer", inner)
    outer()
    assert phases.seconds["inner"] >= 0.02
    assert phases.seconds["outer"] < phases.seconds["inner"]
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    assert phases.seconds[AHEAD] >= 0.02
    assert AHEAD not in phases.parts(1.0)


LEAN = sorted(name for name, each in RULES.items() if each.lean)


@pytest.mark.parametrize("name", LEAN)
def test_lean_references_compute_what_rules_do(name):
    rows = 50 * torch.randn(11, 40, generator=torch.Generator().manual_seed(0))
    rows[-2:] += 300.0
    contenders = RULES[name]
    aggregate = contenders.lean(2)(rows.clone())
    tolerance = 1.0 if name == "geometric median" else 1e-3  # three passes, and until it stands
    torch.testing.assert_close(aggregate, contenders.ours(2)(rows), atol=tolerance, rtol=1e-4)
