"""Examples are read one chunk ahead: in order, of nobody else, and the same as without."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from lanes import every_case
from waiting import LONG

from privfed.client import batches, executor
from privfed.client.batches import as_read, in_memory, read_ahead
from privfed.data.federation import Examples, Federation
from privfed.data.pieces import Mapped

SIZES = [3, 0, 5, 1, 2, 4]


def on_disk():
    """Six clients whose features are bytes in a store, of a shuffled order, and three classes."""
    rng = np.random.default_rng(0)
    total = sum(SIZES)
    store = torch.from_numpy(rng.integers(0, 256, (total, 4), dtype=np.uint8))
    x = Mapped(store, torch.from_numpy(rng.permutation(total)), (0.0, 255.0), (-1.0, 1.0))
    examples = Examples(x, torch.from_numpy(rng.integers(0, 3, total)), 3)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    identities = np.array([70, 10, 30, 20, 60, 50])
    return Federation(examples, offsets, examples, identities, sites=np.array([0, 0, 1, 1, 2, 2]))


def readers():
    return [each for each in threading.enumerate() if each.name.startswith("reading")]


def test_pieces_come_in_order_and_are_read_one_ahead_in_a_thread_that_ends():
    began = [threading.Event() for _ in range(4)]
    done, places = [], []

    def read(place):
        began[place].set()
        done.append(threading.current_thread().name)
        return place * place

    for place, square in read_ahead(range(4), read):
        places.append((place, square))
        if place < 3:
            assert began[place + 1].wait(LONG)  # while this piece is worked on
        assert not any(each.is_set() for each in began[place + 2 :])
    assert places == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert all(name.startswith("reading") for name in done)
    assert readers() == []
    assert list(read_ahead([], read)) == []


def test_what_reading_raises_comes_in_the_place_of_its_piece():
    def read(place):
        if place == 2:
            raise OSError("the disk is gone")
        return place

    pieces = read_ahead(range(4), read)
    assert [next(pieces), next(pieces)] == [(0, 0), (1, 1)]
    with pytest.raises(OSError, match="gone"):
        next(pieces)
    assert readers() == []


@every_case("how", [KeyboardInterrupt, RuntimeError, GeneratorExit])
def test_nothing_is_read_once_it_is_interrupted(how):
    read = []

    def interrupted():
        pieces = read_ahead(range(100), read.append)
        for place, _ in pieces:
            if place == 1:
                if how is GeneratorExit:
                    pieces.close()
                    return
                raise how

    if how is GeneratorExit:
        interrupted()
    else:
        with pytest.raises(how):
            interrupted()
    assert readers() == []
    assert read == [0, 1, 2]


def test_clients_in_memory_have_their_own_examples_and_numbers():
    population, ids = on_disk(), np.array([4, 1, 2])
    here = in_memory(population, ids)
    assert here.sizes(np.arange(3)).tolist() == [2, 0, 5]
    assert here.identify(np.arange(3)).tolist() == [60, 10, 30]
    assert here.sites.tolist() == [2, 0, 1]
    rows = np.concatenate([np.arange(9, 11), np.arange(3, 8)])
    x, y = population.gather(torch.from_numpy(rows))
    assert torch.equal(here.examples.x, x)
    assert torch.equal(here.examples.y, y)


def test_who_has_nothing_is_given_nobodys_example():
    population = on_disk()
    here = in_memory(population, np.array([1]))
    assert here.sizes(np.array([0])).tolist() == [0]
    assert len(here.examples) == 1
    assert not torch.isin(here.examples.x, population.examples.x[torch.arange(15)]).any()


def test_too_many_numbers_are_left_where_they_are(monkeypatch):
    population, ids = on_disk(), np.array([2, 0])
    assert as_read(population, ids)[1].tolist() == [0, 1]
    monkeypatch.setattr(batches, "MOST_AHEAD", 31)
    federation, same = as_read(population, ids)  # 8 examples of 4 numbers
    assert federation is population
    assert same is ids


def test_rows_of_examples_that_are_not_read_are_of_nobody_in_the_cohort(monkeypatch):
    population, asked = on_disk(), []
    gather = Federation.gather

    def watched(self, rows):
        asked.append(rows)
        return gather(self, rows)

    monkeypatch.setattr(Federation, "gather", watched)
    list(
        read_ahead(iter([np.array([2]), np.array([0, 5])]), lambda ids: in_memory(population, ids))
    )
    assert sorted(torch.cat(asked).tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14]


def test_rows_are_the_same_bits_ahead_and_step_by_step(monkeypatch):
    from privfed.config.reading import load
    from privfed.run.prepare import prepare

    sizes = ("data.clients=12", "cohort.size=12", "cohort.sampler=full", "client.epochs=2")
    more = ("run.randomness=seeded", "run.chunk=5", "client.batch_size=4", "run.trainer=stacked")
    setup = prepare(load(None, ("data.source=digits", *sizes, *more)))
    x = setup.federation.examples.x
    store = (x * 16).round().to(torch.uint8)
    mapped = Mapped(store, torch.arange(len(store)), (0.0, 16.0), (0.0, 1.0))
    population = replace(setup.federation, examples=replace(setup.federation.examples, x=mapped))
    setup = setup.over(population)

    def sums(ahead):
        with monkeypatch.context() as patch:
            used = []
            patch.setattr(executor, "as_read", lambda *given: used.append(1) or as_read(*given))
            patch.setattr(batches, "MOST_AHEAD", 1 << 24 if ahead else 0)
            return sent(setup), len(used)

    (first, count), (second, _) = sums(True), sums(False)
    assert count == 3
    assert len(first) == len(second) == 3
    for ours, theirs in zip(first, second, strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert torch.equal(ours.rows, theirs.rows)


def sent(setup):
    """What all clients answer to the first exchange of round 1, chunk by chunk."""
    from privfed.round.round import play

    algorithm = setup.algorithm
    exchange = next(play(algorithm, 1, setup.initial_state()))
    cohort = algorithm.draw(1, setup.federation.population(), setup.streams)
    return list(setup.executor.chunks(exchange, cohort))
