"""Chunks stay within a device's memory, and a round that runs out of it loses nothing."""

import numpy as np
import pytest
import torch
from helpers import Rounds, population, set_fields, trainer
from lanes import every_case
from small import same_run, small, trained

from accounting.ledger import Ledger
from defenses.on_rows.median import Median
from privfed.client.autotune import fastest
from privfed.client.device_memory import CudaMemory, MemoryNeed, memory_need, memory_of
from privfed.client.trainer import LocalTrainer
from privfed.core.errors import Refused, ran_out_of_memory
from privfed.models.recipes import Mlp
from privfed.run import assemble
from privfed.run.prepare import prepare
from privfed.run.train import resume, train

NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


class Memory:
    """A device with so many bytes free, where c clients take fixed + c * each."""

    def __init__(self, free, each=1000, fixed=500):
        self._free, self.each, self.fixed = free, each, fixed
        self.clients = 0

    def free(self):
        return self._free

    def peak(self, act):
        act()
        taken = self.fixed + self.clients * self.each
        if taken > self._free:
            raise torch.OutOfMemoryError(NO_MEMORY)
        return taken

    def train(self, clients):
        self.clients = clients


@pytest.fixture
def watched(monkeypatch):
    """What any training of c clients tells a memory."""

    def watch(memory):
        real = LocalTrainer.train

        def train(self, ids, *given, **named):
            memory.clients = len(ids)
            return real(self, ids, *given, **named)

        monkeypatch.setattr(LocalTrainer, "train", train)
        return memory

    return watch


def test_what_clients_take_is_measured_on_one_and_on_two():
    memory = Memory(free=10_000)
    assert memory_need(memory.train, memory, length=1) == MemoryNeed(fixed=500, each=1000)
    assert MemoryNeed(500, 1000).clients(10_000, margin=0.2) == 7
    assert MemoryNeed(500, 1000).clients(10_000, held=5_000, margin=0.2) == 2


def test_rows_after_training_count_where_training_takes_less():
    memory = Memory(free=10**9, each=10)
    assert memory_need(memory.train, memory, length=10**4).each == 28 * 10**4


def test_one_client_may_fit_and_two_not():
    memory = Memory(free=1600)
    assert memory_need(memory.train, memory, length=1).clients(1600, margin=0.0) == 1
    memory = Memory(free=1400)
    assert memory_need(memory.train, memory, length=1) is None


def test_other_errors_than_of_memory_are_not_hidden():
    def fails(clients):
        raise RuntimeError("an index is out of range")

    with pytest.raises(RuntimeError, match="out of range"):
        memory_need(fails, Memory(free=10**9), length=1)


def local():
    return trainer(population([6] * 40), model=Mlp(hidden=[6]))


@pytest.mark.parametrize("way", ["auto", "stacked", "loop"])
@pytest.mark.parametrize("asked", [0, 10**6])
def test_no_chunk_is_larger_than_what_fits(watched, way, asked):
    memory = watched(Memory(free=20_000, each=3000))
    speed = fastest(local(), 40, way, asked, memory)
    length = local().network.shapes.length
    assert 28 * length < 3000
    assert speed.chunk <= 5  # (0.8 * 20,000 - 500) / 3000
    if way == "stacked" or asked:
        assert speed.chunk == 5


def test_what_is_held_beside_leaves_less_room(watched):
    memory = watched(Memory(free=20_000, each=3000))
    assert fastest(local(), 40, "stacked", 0, memory, held=9_000).chunk == 2


def test_too_little_for_one_client_is_refused_and_plenty_changes_nothing(watched):
    with pytest.raises(Refused, match=r"run\.device.*a single client does not fit"):
        fastest(local(), 40, "stacked", 0, watched(Memory(free=3000, each=3000)))
    with pytest.raises(Refused, match="a single client does not fit"):
        fastest(local(), 40, "stacked", 7, watched(Memory(free=100)))
    assert fastest(local(), 40, "stacked", 7, watched(Memory(free=10**12))).chunk == 7


def test_a_batch_of_all_examples_is_as_large_as_the_population_is_known_to_be(monkeypatch):
    sizes = []
    real = LocalTrainer.train

    def train(self, ids, *given, **named):
        sizes.append(int(self.federation.sizes(ids).max()))
        return real(self, ids, *given, **named)

    monkeypatch.setattr(LocalTrainer, "train", train)
    for batch, typical, size in ((700, None, 700), (10**9, None, 32), (10**9, 90.0, 180)):
        federation = population([6] * 4)
        set_fields(federation, typical=typical)
        fastest(trainer(federation, batch_size=batch), 4, "loop", 1, Memory(free=10**12))
        assert max(sizes) == size
        sizes.clear()


def test_a_cpu_has_no_end_that_is_looked_for():
    assert memory_of(torch.device("cpu")) is None


@every_case(
    ("processes", "cards", "named", "part"),
    [(1, 1, False, 1), (4, 4, False, 1), (4, 1, False, 4), (3, 2, False, 2), (4, 4, True, 4)],
)
def test_processes_that_share_a_gpu_share_its_memory(processes, cards, named, part, monkeypatch):
    card = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12_000, 99_999))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 900)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert memory_of(card, processes, named).free() == (12_000 + 600) // part


@pytest.mark.parametrize(("device", "named"), [("auto", False), ("cuda:1", True)])
def test_a_run_asks_for_its_part_of_a_gpu(device, named, monkeypatch):
    asked, config = [], small("run.workers=3")
    setup = prepare(config.with_run(device="cpu"))
    monkeypatch.setattr(assemble, "memory_of", lambda *given: asked.append(given))
    trainer = setup.executor.trainer
    assemble._speed(config.with_run(device=device), setup.algorithm, trainer)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assemble._speed(config.with_run(device=device), setup.algorithm, trainer)
    assert asked == [(torch.device("cpu"), 3, named), (torch.device("cpu"), 2, named)]


def test_a_gpus_peak_is_what_an_act_holds_more_than_before(monkeypatch):
    calls = []

    def noting(name, value=None):
        return lambda device: (calls.append(name), value)[1]

    for name, value in (("memory_allocated", 300), ("max_memory_allocated", 1300)):
        monkeypatch.setattr(torch.cuda, name, noting(name, value))
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, noting(name))
    memory = CudaMemory(torch.device("cuda:0"))
    assert memory.peak(lambda: calls.append("act")) == 1000
    assert calls.index("reset_peak_memory_stats") < calls.index("act")
    assert calls[-3:] == ["act", "synchronize", "max_memory_allocated"]


def test_memory_is_decided_before_anything_is_written(tmp_path, watched, monkeypatch):
    memory = watched(Memory(free=100))
    monkeypatch.setattr(assemble, "memory_of", lambda *_: memory)
    with pytest.raises(Refused, match="a single client does not fit"):
        train(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_chunk_that_was_asked_for_is_recorded_as_it_was(watched, monkeypatch):
    memory = watched(Memory(free=5000, each=1500))
    monkeypatch.setattr(assemble, "memory_of", lambda *_: memory)
    setup = prepare(small("run.chunk=5"))
    assert (setup.executor.chunk, setup.plan.config.run.chunk) == (2, 5)
    setup = prepare(small("run.chunk=0"))
    assert (setup.executor.chunk, setup.plan.config.run.chunk) == (2, 2)


def test_rules_on_rows_keep_the_cohorts_rows(monkeypatch):
    held = []
    real = assemble.fastest

    def fastest_way(*given):
        held.append(given[-1])
        return real(*given)

    monkeypatch.setattr(assemble, "fastest", fastest_way)
    prepare(small())
    setup = prepare(small("privacy.mechanism=none", "aggregation.rule=median"))
    assert isinstance(setup.algorithm.rule, Median)
    assert held == [0, 3 * 4 * 4 * setup.network.shapes.length]


def fails_beyond(most, monkeypatch, error=None):
    """Training of more than `most` clients at once runs out of memory; how many were tried."""
    tried, real = [], LocalTrainer.train

    def train(self, ids, *given, **named):
        tried.append(len(ids))
        if len(ids) > most:
            raise error or torch.OutOfMemoryError(NO_MEMORY)
        return real(self, ids, *given, **named)

    monkeypatch.setattr(LocalTrainer, "train", train)
    return tried


def test_a_round_that_runs_out_of_memory_goes_on_in_halves(tmp_path, monkeypatch):
    sizes = [5, 2, 9, 4, 7, 6, 3, 8]
    whole = Rounds(tmp_path / "a", sizes, noise=0.0, size=8, chunk=8).released()
    tried = fails_beyond(2, monkeypatch)
    halves = Rounds(tmp_path / "b", sizes, noise=0.0, size=8, chunk=8)
    np.testing.assert_allclose(halves.released(), whole, rtol=1e-5, atol=1e-8)
    assert tried == [8, 4, 2, 2, 4, 2, 2]


def test_one_client_that_does_not_fit_ends_the_round_and_so_does_any_other_error(
    tmp_path, monkeypatch
):
    rounds = Rounds(tmp_path / "a", [3, 4], size=2, chunk=2)
    with monkeypatch.context() as patch:
        tried = fails_beyond(0, patch)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            rounds.released()
        assert ran_out_of_memory(raised.value)
        assert tried == [2, 1]
    with monkeypatch.context() as patch:
        tried = fails_beyond(1, patch, RuntimeError("an index is out of range"))
        with pytest.raises(RuntimeError, match="out of range"):
            Rounds(tmp_path / "b", [3, 4], size=2, chunk=2).released()
        assert tried == [2]


@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_a_run_that_ran_out_of_memory_in_a_round_has_its_charge_and_goes_on(
    tmp_path, monkeypatch, randomness
):
    """Secret: the round is spent, and the next one follows. Seeded: it is played again."""
    override = f"run.randomness={randomness}"
    from privfed.secure.plain_sum import PlainAccumulator

    closed, real = [], PlainAccumulator.close

    def close(self):
        closed.append(self)
        if len(closed) == 3:
            raise torch.OutOfMemoryError(NO_MEMORY)
        return real(self)

    monkeypatch.setattr(PlainAccumulator, "close", close)
    with pytest.raises(torch.OutOfMemoryError):
        trained(tmp_path / "run", override)
    charges = Ledger.load(tmp_path / "run/ledger.jsonl").charges
    assert [charge.round for charge in charges] == [1, 2, 3]
    outcome = resume(tmp_path / "run", lambda _: small(override))
    charges = Ledger.load(tmp_path / "run/ledger.jsonl").charges
    assert [charge.round for charge in charges] == [1, 2, 3, 4, 5, 6, 7]
    assert outcome.updates == (7 if randomness == "seeded" else 6)
    if randomness == "seeded":
        trained(tmp_path / "whole", override)
        same_run(tmp_path / "whole", tmp_path / "run")
