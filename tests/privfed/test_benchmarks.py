"""Benchmarks measure what they say: the same arithmetic, rounds that happen, lines that fit."""

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lanes import every_case
from tolerance import assert_same_sums

from experiments.benchmarks import device, pictures, sites, ten_runs
from experiments.benchmarks.rounds import WHOLE
from experiments.benchmarks.scale import bottlenecks
from experiments.benchmarks.scale import phases as timing
from experiments.benchmarks.scale.bottlenecks import tabulated
from experiments.benchmarks.scale.phases import AHEAD, Phases
from experiments.benchmarks.scaling import crowd, grown, rows_of
from experiments.benchmarks.work import device_rules
from experiments.benchmarks.work.bare import BareLoop
from experiments.benchmarks.work.contenders import RULES
from experiments.benchmarks.work.device_clients import many_clients
from experiments.benchmarks.work.growth import Growth, draw
from experiments.benchmarks.work.measured import Measured, add_rows, read_rows
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.task import Task
from experiments.benchmarks.work.workloads import CNN, GRU, LOGISTIC, LSTM, TRANSFORMER, task

TINY = LOGISTIC.with_("data.clients=12", "cohort.size=4", "data.features=5", "run.trainer=stacked")
NETWORKS = [work.with_("data.clients=4", "cohort.size=2") for work in (CNN, TRANSFORMER, LSTM, GRU)]


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


@pytest.mark.slow
@pytest.mark.parametrize("work", NETWORKS, ids=lambda work: work.name)
def test_networks_are_the_same_in_plain_pytorch(work, tmp_path):
    """Whatever trains them: each way of privfed's, and a loop over a task that was read back."""
    task(work, 2, *WHOLE).save(tmp_path / "task.npz")
    plain = Task.load(tmp_path / "task.npz")
    bare = BareLoop(plain, private=False, threads=1)
    before = bare.loss()
    bare.go(2)
    moved = torch.cat([part.ravel() for part in bare.model])
    assert bare.loss() < before
    for trainer in work.trainers:
        with Running(work.setup(*WHOLE, f"run.trainer={trainer}")) as run:
            run.go(2)
        way = (moved - torch.from_numpy(plain.start)).abs().max().item()
        assert_same_sums(run.state.params, moved, sums_of(plain), 2 * way)


def sums_of(plain):
    """How many numbers a weight adds up: those of all examples' positions, each of which is a sum
    over the inputs of a layer, forward and backward.
    """
    weights = (weight for weight in plain.module().parameters() if weight.dim() > 1)
    positions = math.prod(plain.x.shape[-2:]) if plain.x.ndim > 3 else plain.x.shape[-1]
    return len(plain.x) * positions + 2 * max(weight[0].numel() for weight in weights)


def test_a_networks_loss_is_over_examples_and_positions():
    plain = task(NETWORKS[1], 1)
    assert (plain.x.dtype, plain.x.shape, plain.y.shape) == (np.int64, (80, 20), (80, 20))
    logits = plain.module()(torch.from_numpy(plain.x)).log_softmax(-1).detach()
    expected = -logits.gather(-1, torch.from_numpy(plain.y)[..., None]).mean()
    assert plain.loss(plain.module()) == pytest.approx(float(expected), rel=1e-5)


def test_a_transformer_does_not_look_ahead():
    plain = task(NETWORKS[1], 1)
    module, x = plain.module(), torch.from_numpy(plain.x[:1])
    later = x.clone()
    later[0, 12:] = (later[0, 12:] + 1) % 64
    alike = (module(x) == module(later)).all(-1)[0]
    assert alike.tolist() == [place < 12 for place in range(20)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
def test_language_models_do_the_work_of_a_plain_loop(monkeypatch):
    pytest.importorskip("peft")
    from experiments.benchmarks import language_models

    small = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    work = language_models.Work("small", "GPT2LMHeadModel", small | ends, ("c_attn",), 20.0)
    assert language_models.check(work, False).startswith("256 examples, ")
    length, taken = language_models.turns(work, True, 1)
    assert length == 4 * 16
    assert min(taken[0]) > 0
    monkeypatch.setattr(language_models.PlainLoop, "_hold", lambda self: None)
    with pytest.raises(SystemExit, match="should be equal"):
        language_models.check(work, False)


def test_private_rounds_of_the_bare_loop_are_clipped_and_noised():
    still = task(TINY, 1, "client.lr=0.0", "privacy.clip=0.01")
    bare = BareLoop(still, private=True, threads=1)
    bare.go()
    noise = torch.cat([part.ravel() for part in bare.model]) - torch.from_numpy(still.start)
    assert float(noise.std()) == pytest.approx(0.01 / 4, rel=0.6)


@pytest.mark.slow
def test_growth_is_drawn(tmp_path):
    times = (1.0, 2.0, 3.0)
    growth = Growth("clients", (1.0, 2.0, 3.0), times, times, times)
    draw([growth, growth], tmp_path / "growth.svg")
    assert (tmp_path / "growth.svg").read_text().startswith("<?xml")
    assert growth.line.slope == pytest.approx(1.0)


def measured(way, seconds, private=True, work="logistic, cohort 100"):
    times = (seconds / 2, seconds, 2 * seconds)
    return Measured("rounds", work, way, "1 process of 1", private, 0.0, *times)


ROWS = [
    measured("privfed auto, stacked by 32", 0.2),
    measured("privfed auto, loop", 0.1),
    measured("privfed, loop", 0.05),  # not what it chose
    measured("privfed mixed precision", 0.01),
    measured("bare loop", 0.3),
    measured("bare loop", 0.02, private=False),
    measured("a peer 1.0", 0.25),
    measured("a peer 1.0", 0.4, work="another"),
]


def test_a_table_gives_back_what_was_measured(tmp_path):
    table = tmp_path / "day.csv"
    growth = Growth("clients", (1.0, 2.0), (0.1, 0.2), (0.2, 0.3), (0.3, 0.4))
    add_rows(table, ROWS[:3])
    add_rows(table, [*ROWS[3:], *rows_of(growth)])
    stored = read_rows(table)
    assert stored[: len(ROWS)] == ROWS
    assert pictures.growths(stored[len(ROWS) :]) == [growth]
    assert Measured.of("rounds", "a", "b", "c", True, [1.0, 2.0, 3.0]).seconds == 2.0


def test_frameworks_are_drawn_at_their_best_under_dp(tmp_path):
    table = tmp_path / "day.csv"
    add_rows(table, ROWS)
    fastest = pictures.best(ROWS[:-1])
    assert [(row.way, row.seconds) for row in fastest] == [
        ("privfed auto, loop", 0.1),
        ("a peer 1.0", 0.25),
        ("bare loop", 0.3),
    ]
    assert [path.name for path in pictures.draw_all(table)] == ["rounds.svg"]
    picture = (tmp_path / "rounds.svg").read_text()
    for words in ("logistic, cohort 100", "another", "privfed", "a peer 1.0", "2.5 x", "3.0 x"):
        assert f">{words}<" in picture, words
    again = tmp_path / "again"
    again.mkdir()
    add_rows(again / "day.csv", ROWS)
    pictures.draw_all(again / "day.csv")
    assert (again / "rounds.svg").read_text() == picture


def test_ratios_of_ten_runs_are_drawn(tmp_path):
    table = tmp_path / "day.csv"

    def row(way, seconds, run, private=True):
        times = (seconds, seconds, seconds)
        return Measured("ten_runs", "CNN", way, "2 threads", private, float(run), *times)

    rows = [
        each
        for run, bare in enumerate((3.0, 5.0, 4.0))
        for each in (
            *(row(ten_runs.OURS, 2.0, run), row(ten_runs.OURS, 1.0, run)),
            *(row(ten_runs.BARE, bare, run), row(ten_runs.FAST, 0.8, run)),
            *(row(ten_runs.ADDED, 1.1, run), row(ten_runs.ADDED, 1.0, run, private=False)),
        )
    ]
    assert ten_runs.ratios(rows) == {
        ten_runs.BARE: [3.0, 5.0, 4.0],
        ten_runs.FAST: [1.25] * 3,
        ten_runs.ADDED: [1.1] * 3,
    }
    add_rows(table, rows)
    assert [path.name for path in pictures.draw_all(table)] == ["ten_runs.svg"]
    picture = (tmp_path / "ten_runs.svg").read_text()
    for words in ("CNN", "bare PyTorch loop", "4.0 x"):
        assert f">{words}<" in picture, words


def test_a_device_is_timed_and_what_it_could_do():
    assert min(device.limits(torch.device("cpu"), 1)) > 0
    setup, stacked, looped = device.both((4,), "cpu", threads=1, repeats=1)
    assert len(setup.network.initial_params) == 60 * 4 + 4 + 4 * 10 + 10
    assert setup.federation.sizes(np.arange(device.COHORT)).tolist() == [20] * device.COHORT
    assert 0 < stacked < looped


@pytest.mark.slow
def test_clients_at_once_are_timed_and_their_operations_counted():
    pair, more = many_clients(TINY, "cpu", (2, 4), repeats=1)
    assert (pair.clients, more.clients) == (2, 4)
    assert min(pair.stacked, pair.alone, more.stacked) > 0
    assert pair.operations == more.operations > 0
    assert pair.ratio == pytest.approx(2 * pair.alone / pair.stacked)
    assert pair.held == 0  # a CPU does not tell


def test_a_device_benchmark_says_what_it_ran_on(monkeypatch, capsys):
    monkeypatch.setattr(device, "HIDDEN", ((),))
    monkeypatch.setattr(device, "NETWORKS", (TINY,))
    monkeypatch.setattr(device, "ROWS", {"cpu": (10, 300)})
    monkeypatch.setattr(device_rules, "LOGISTIC", TINY.with_("model.hidden=[4]"))
    few = {"a round, masked sums": device_rules.ROUNDS["a round, masked sums"]}
    monkeypatch.setattr(device_rules, "ROUNDS", few)
    monkeypatch.setattr("sys.argv", ["device", "--device=cpu", "--repeats=1", "--clients", "2"])
    device.main()
    printed = capsys.readouterr().out
    assert printed.startswith("no accelerator: CPU")
    for words in ("GFLOP/s", "geometric median", "trimmed mean", "noise", "masked sums", "clients"):
        assert words in printed, words


def test_rounds_are_timed():
    growth = grown("clients", [(n, TINY.with_(f"cohort.size={n}")) for n in (2, 8)], repeats=2)
    assert growth.xs == (2, 8)
    assert all(0 < low <= high for low, high in zip(growth.low, growth.high, strict=True))
    began = time.perf_counter()
    taken = crowd(200, 2)
    assert min(taken) > 0
    assert sum(taken) < time.perf_counter() - began


@pytest.mark.slow
def test_rounds_by_sites_are_timed_beside_those_without_a_protocol():
    began = time.process_time()
    together, central = sites.side_by_side(20, rounds=1)
    assert 0 < central[0] < together[0]
    assert central[0] + together[0] < time.process_time() - began
    setups = [sites.workload(20, *way).setup() for way in (sites.TOGETHER, sites.CENTRAL)]
    assert [setup.algorithm.sites for setup in setups] == [sites.SITES, 0]
    assert [len(setup.network.initial_params) for setup in setups] == [100_004] * 2


@pytest.mark.slow
def test_clients_on_disk_are_measured_and_the_phases_of_their_rounds():
    scale = bottlenecks.population(40, 10, 1)
    assert (scale.clients, scale.cohort, scale.parameters) == (40, 10, 65 * 4)
    assert scale.on_disk > 40 * 8 * 64
    assert {"drawing", "reading", "training", "clipping", "noise", "writing"} <= {*scale.parts}
    assert sum(scale.parts.values()) == pytest.approx(100.0, abs=1.0)
    assert tabulated([scale]).row_count == 1


def test_seconds_count_to_the_innermost_phase(monkeypatch):
    now = [0.0]

    def work(seconds, further=lambda: None):
        now[0] += seconds
        further()

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    phases = Phases()
    inner = phases._timed("inner", lambda: work(5.0))
    phases._timed("outer", lambda: work(3.0, inner))()
    assert phases.seconds == {"inner": 5.0, "outer": 3.0}
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    assert phases.seconds[AHEAD] == 5.0
    assert AHEAD not in phases.parts(1.0)


LEAN = sorted(name for name, each in RULES.items() if each.lean)


@every_case("name", LEAN)
def test_lean_references_compute_what_rules_do(name):
    rows = 50 * torch.randn(11, 40, generator=torch.Generator().manual_seed(0))
    rows[-2:] += 300.0
    contenders = RULES[name]
    aggregate = contenders.lean(2)(rows.clone())
    tolerance = 1.0 if name == "geometric median" else 1e-3  # three passes, and until it stands
    torch.testing.assert_close(aggregate, contenders.ours(2)(rows), atol=tolerance, rtol=1e-4)
