"""Compressed updates by themselves: what is sent, what comes back, and what that takes."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lanes import every_case

from privfed.client.compression.compressed import compressed
from privfed.client.compression.compression import NoCompression, Sending, Space
from privfed.client.compression.count_sketch import CountSketch
from privfed.client.compression.linear import RandomMask
from privfed.client.compression.low_rank import LowRank
from privfed.client.compression.power_sgd import PowerSgd
from privfed.client.compression.qsgd import Qsgd, Sign
from privfed.client.compression.top_k import TopK
from privfed.client.objective import Sgd, Work
from privfed.client.trainer import _MEASURING, DROPOUT
from privfed.config.catalog import example_keys
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.core.streams import Streams, uniforms
from privfed.core.vector import Shapes

SHAPES = Shapes(("wide", "bias", "kernel", "high"), ((6, 9), (6,), (4, 2, 3, 3), (11, 5)))
D = SHAPES.length
SPACE = Space(SHAPES, 7)
LINEAR = {
    "random_mask": RandomMask(fraction=0.25),
    "low_rank": LowRank(rank=2),
    "count_sketch": CountSketch(fraction=0.4, sketch_rows=3),
}
PROJECTIONS = {name: LINEAR[name] for name in ("random_mask", "low_rank")}


def cases(parts):
    return pytest.mark.parametrize("part", parts.values(), ids=parts.keys())


def normal(count, seed=0, d=D):
    return torch.randn(count, d, generator=torch.Generator().manual_seed(seed)).double()


def sending(number=1, broadcast=None, clients=3, space=SPACE):
    keys = Streams(3).at("shuffle", number, np.arange(clients))
    return Sending(space, number, broadcast or {}, keys)


def test_every_compression_is_tested_here():
    elsewhere = {"none", "soft_labels"}  # test_soft_labels.py
    others = {"power_sgd", "qsgd", "top_k", "sign"}
    assert BUILT_IN["compression"].keys() == {*elsewhere, *LINEAR, *others}


REMEMBERING = {
    "mask-memory": RandomMask(fraction=0.25, error_feedback=True),
    "low_rank-memory": LowRank(rank=2, error_feedback=True),
    "power_sgd-memory": PowerSgd(rank=1, error_feedback=True),
    "sign-memory": Sign(error_feedback=True),
}
EVERY = {
    **LINEAR,
    "power_sgd": PowerSgd(rank=1),
    "qsgd": Qsgd(levels=2, bucket=16),
    "top_k": TopK(),
    "sign": Sign(),
    **REMEMBERING,
}


def broadcasts(part):
    """What clients are sent in each exchange in which they send a row."""
    sent = {"params": torch.zeros(D).double(), "compression_number": torch.tensor(1)}
    if part.exchanges == 1:
        return [sent]
    asking = part.exchanges_before(sending(1, sent), part.init(SPACE))
    first = next(asking).broadcast
    row, _ = part.encode(normal(1, seed=5), None, sending(1, first))
    with pytest.raises(StopIteration) as end:
        asking.send(row[0])
    return [first, {**sent, **end.value.value}]


@cases(EVERY)
def test_what_a_client_sends_and_keeps_follows_from_its_own_update_alone(part):
    """With others in its chunk, whose updates and memories are larger, it is what it is alone."""
    objective = compressed(Sgd(), part, SPACE.seed, SHAPES.by_name)
    size = torch.tensor([1.0, 30.0, 0.1]).double()[:, None]
    updates, kept = size * normal(3), size.flip(0) * normal(3, seed=1) if part.keeps else None

    def answer(clients, broadcast):
        keys = Streams(3).at("shuffle", 1, np.arange(3)[clients])
        work = Work(torch.ones(len(updates[clients])), 0.1, keys=keys)
        state = None if kept is None else kept[clients]
        return objective.message(updates[clients], broadcast, state, work)

    for broadcast in broadcasts(part):
        rows, left = answer(slice(None), broadcast)
        for client in range(3):
            row, mine = answer(slice(client, client + 1), broadcast)
            torch.testing.assert_close(row[0], rows[client])
            if part.keeps:
                torch.testing.assert_close(mine[0], left[client])


@cases(LINEAR)
def test_the_sum_of_what_is_sent_is_the_sum_compressed(part):
    rows = normal(3)
    sent, _ = part.encode(rows, None, sending())
    total, _ = part.encode(rows.sum(0, keepdim=True), None, sending())
    assert sent.shape == (3, part.length(SHAPES))
    torch.testing.assert_close(sent.sum(0), total[0], rtol=1e-6, atol=1e-6)


@cases(PROJECTIONS)
def test_a_decoded_release_is_right_on_average_over_the_coins(part):
    """Each coordinate's mean over 1000 rounds, within five of its own standard errors."""
    row, rounds = normal(1), 3000
    decoded = []
    for number in range(rounds):
        exchanges_before = sending(number)
        decoded.append(
            part.decode(part.encode(row, None, exchanges_before)[0][0], exchanges_before, {})[0]
        )
    mean, error = torch.stack(decoded).mean(0), torch.stack(decoded).std(0) / math.sqrt(rounds)
    assert ((mean - row[0]).abs() <= 5 * error + 1e-6).all()
    unscaled = mean * part.length(SHAPES) / D
    assert ((unscaled - row[0]).abs() > 5 * error + 1e-6).any()


@cases(PROJECTIONS)
def test_nothing_that_is_sent_is_longer_than_the_update_and_its_factor_is_that(part):
    rows = normal(400)
    sent, _ = part.encode(rows, None, sending())
    assert (sent.norm(dim=1) <= rows.norm(dim=1) * (1 + 1e-12)).all()
    usual = (sent.square().sum() / rows.square().sum()).sqrt()
    assert usual == pytest.approx(part.factor(SHAPES), rel=0.1)


@cases(PROJECTIONS)
def test_what_is_left_off_is_what_did_not_come_back(part):
    part = part.model_copy(update={"error_feedback": True})
    rows, error = normal(2), normal(2, seed=1)
    sent, left = part.encode(rows, error, sending())
    back = torch.stack([part.decode(row, sending(), {})[0] for row in sent])
    torch.testing.assert_close(back + left, rows + error)
    assert (left.norm(dim=1) < (rows + error).norm(dim=1)).all()


def test_another_round_has_another_mask_and_all_clients_the_same():
    masks = [LINEAR["random_mask"].projection(SPACE, number).places for number in (1, 1, 2)]
    assert masks[0].equal(masks[1])
    assert not masks[0].equal(masks[2])
    assert len(set(masks[0].tolist())) == round(0.25 * D)


def test_all_of_a_model_comes_back_from_a_mask_and_a_rank_that_leave_nothing_off():
    row = normal(1)
    for part in (RandomMask(fraction=1.0), LowRank(rank=50), NoCompression()):
        sent, _ = part.encode(row, None, sending())
        torch.testing.assert_close(part.decode(sent[0], sending(), {})[0], row[0])


def test_low_rank_sends_the_shorter_side_of_each_matrix_and_vectors_whole():
    assert LowRank(rank=2).length(SHAPES) == 2 * (6 + 4 + 5) + 6


def test_a_collision_lengthens_a_sketch_so_that_a_clip_before_it_bounds_nothing():
    part = CountSketch(fraction=0.1, sketch_rows=1)
    hashes = part.hashes(SPACE)
    bucket = hashes.buckets[0].mode().values
    row = torch.where(hashes.buckets[0] == bucket, hashes.signs[0], 0.0)[None]
    sent, _ = part.encode(row / row.norm(), None, sending())
    assert sent.norm() > 2.0


@every_case("fails", [False, True])
@every_case("before", [False, True])
def test_a_sketch_is_added_up_in_one_order_and_nothing_else_is_asked_to_be(
    before, fails, monkeypatch
):
    """On a GPU additions to one place come in any order, unless PyTorch is asked for one."""
    plain, exchanges_before = torch.Tensor.index_add_, []

    def noting(*given):
        exchanges_before.append(torch.are_deterministic_algorithms_enabled())
        if fails:
            raise MemoryError
        return plain(*given)

    monkeypatch.setattr(torch.Tensor, "index_add_", noting)
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with pytest.raises(MemoryError) if fails else nullcontext():
            LINEAR["count_sketch"].hashes(SPACE).sketch(torch.ones(2, D))
        assert exchanges_before == [True] * (1 if fails else 3)
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_sketch_gives_the_largest_coordinates_and_empties_their_cells():
    part = CountSketch(fraction=0.9, sketch_rows=5, top=2 / D)
    row = normal(1) / 100
    row[0, 3], row[0, 70] = 5.0, -4.0
    sent, _ = part.encode(row, None, sending())
    memory = part.init(SPACE)
    update, after = part.decode(sent[0], sending(), memory)
    assert update.nonzero().flatten().tolist() == [3, 70]
    assert update[[3, 70]].tolist() == pytest.approx([5.0, -4.0], abs=0.2)
    waiting = part.hashes(SPACE).estimate(after["error"])
    assert waiting[[3, 70]].tolist() == [0.0, 0.0]
    assert after["error"].norm() > 0
    again, _ = part.decode(torch.zeros_like(sent[0]), sending(), after)
    assert not again[[3, 70]].any()  # what waited comes next
    assert again.any()


def test_momentum_and_what_waits_add_up_in_sketches():
    part = CountSketch(fraction=0.4, sketch_rows=3, top=1 / D, momentum=0.5)
    first, second = (part.encode(normal(1, seed), None, sending())[0][0] for seed in (0, 1))
    once = part.decode(first, sending(), part.init(SPACE))[1]
    twice = part.decode(second, sending(), once)[1]
    expected = 0.5 * once["momentum"] + second
    moved = twice["momentum"] != 0
    torch.testing.assert_close(twice["momentum"][moved], expected[moved])
    torch.testing.assert_close(twice["error"][moved], (once["error"] + expected)[moved])


def played(part, updates, memory):
    """A round of two exchanges over the mean of `updates`: the update, and the memory after it."""
    asking = part.exchanges_before(sending(broadcast={"params": torch.zeros(D).double()}), memory)
    exchange = next(asking)
    first, _ = part.encode(updates, None, sending(broadcast=exchange.broadcast))
    with pytest.raises(StopIteration) as end:
        asking.send(first.mean(0))
    exchanges_before = sending(broadcast={**sending().broadcast, **end.value.value})
    second, _ = part.encode(updates, None, exchanges_before)
    assert first.shape == second.shape == (len(updates), part.length(SHAPES))
    assert (first.norm(dim=1) <= updates.norm(dim=1) + 1e-6).all()
    return part.decode(second.mean(0), exchanges_before, memory)


def test_power_sgd_is_its_papers_algorithm():
    """Algorithm 1 written out for each layer, and a round after it from the basis it released."""
    part, memory = PowerSgd(rank=1), PowerSgd(rank=1).init(SPACE)
    sizes = {name: math.prod(shape[1:]) for name, shape in SHAPES.by_name.items() if shape[1:]}
    bases = dict(zip(sizes, memory["basis"].double().split(list(sizes.values())), strict=True))
    for seed in (0, 1):
        updates = normal(4, seed)
        update, memory = played(part, updates, memory)
        mean, got = SHAPES.views(updates.mean(0)), SHAPES.views(update)
        torch.testing.assert_close(got["bias"], mean["bias"])
        for name in bases:
            matrix = mean[name].reshape(len(mean[name]), -1)
            left = matrix @ bases[name]
            left = left / left.norm()
            right = matrix.T @ left
            torch.testing.assert_close(got[name].reshape(matrix.shape), torch.outer(left, right))
            sign = torch.sign(right @ memory_of(memory, sizes, name))
            bases[name] = right / right.norm()
            torch.testing.assert_close(sign * memory_of(memory, sizes, name), bases[name])


def memory_of(memory, sizes, name):
    return dict(zip(sizes, memory["basis"].split(list(sizes.values())), strict=True))[name]


def test_power_sgd_of_one_low_rank_update_is_exact_and_leaves_nothing_off():
    update = torch.zeros(1, D).double()
    matrix = SHAPES.views(update)["wide"]
    matrix.copy_(torch.outer(torch.arange(1.0, 7), torch.arange(9.0) - 3)[None])
    part = PowerSgd(rank=1, error_feedback=True)
    got, _ = played(part, update, part.init(SPACE))
    torch.testing.assert_close(got, update[0])


def test_qsgd_is_right_on_average_and_within_its_variance():
    """Lemma 3.1, at s = 2 levels, over 2000 clients who round the same bucket."""
    part, row = Qsgd(levels=2, bucket=D), normal(1)
    sent, _ = part.encode(row.expand(2000, -1), None, sending(clients=2000))
    step = row.norm() / 2
    chance = (row[0].abs() / step).frac()
    error = step * (chance * (1 - chance) / 2000).sqrt()
    assert ((sent.mean(0) - row[0]).abs() <= 5 * error + 5 * step / 2000).all()
    variance = (sent - row).square().sum(1).mean() / row.square().sum()
    assert 0 < variance <= min(D / 4, math.sqrt(D) / 2)
    levels = (sent / row.norm() * 2).abs()
    assert levels.round().sub(levels).abs().max() < 1e-9


def test_qsgd_has_a_norm_for_each_bucket_and_none_for_zeros():
    row = torch.cat([torch.zeros(1, 50), torch.full((1, D - 50), 3.0)], dim=1)
    sent, _ = Qsgd(levels=1, bucket=50).encode(row, None, sending(clients=1))
    assert not sent[:, :50].any()
    assert set(sent[0, 50:100].abs().unique().tolist()) <= {0.0, row[0, 50:100].norm().item()}


def test_qsgd_rounds_by_coins_that_nobody_and_nothing_else_has():
    """Three clients, four buckets and two rounds: halves, which go up at heads."""
    part, ids = Qsgd(levels=4, bucket=64), np.arange(3)
    rounded = []
    for round in (1, 2):
        keys = Streams(3, simulated=True).at("shuffle", round, ids)
        sent, _ = part.encode(torch.ones(3, 256), None, Sending(SPACE, 1, {}, keys))
        assert set(sent.unique().tolist()) == {0.0, 2.0}
        up = (sent > 0).numpy()
        rounded += [tuple(bucket) for bucket in up.reshape(12, 64)]
        for salt in (*range(5), DROPOUT, _MEASURING):
            others = uniforms(keys.per_client(256, salt=salt)) >= 0.5
            assert 0.35 < (up == others).mean() < 0.65, f"the coins of salt {salt}"
    assert len(set(rounded)) == 24


def test_top_k_and_signs_send_what_they_say_and_remember_the_rest():
    row, error = torch.tensor([[3.0, -4.0, 0.5, 1.0]]), torch.tensor([[0.0, 0.0, 0.0, 9.0]])
    sent, left = TopK(fraction=0.5).encode(row, error, sending())
    assert sent.tolist() == [[0.0, -4.0, 0.0, 10.0]]
    assert left.tolist() == [[3.0, 0.0, 0.5, 0.0]]
    sent, left = Sign(error_feedback=True).encode(row, torch.zeros_like(row), sending())
    assert sent.tolist() == [[2.125, -2.125, 2.125, 2.125]]
    assert (sent + left).tolist() == row.tolist()


@every_case(
    ("part", "bits"),
    [
        (RandomMask(), None),
        (Qsgd(levels=4, bucket=100), 4 * D + 32 * 2),
        (TopK(fraction=0.1), 19 * (32 + 8)),
        (Sign(), D + 32),
    ],
    ids=["random_mask", "qsgd", "top_k", "sign"],
)
def test_bits_are_those_of_how_a_row_is_written_down(part, bits):
    assert part.bits(SHAPES) == bits


def test_who_is_summed_sends_fewer_numbers_and_who_is_not_all_of_them():
    for name in BUILT_IN["compression"]:
        kind = find("compression", name, "compression.name")
        part = kind(**example_keys(kind))
        wide = Shapes(("layer",), ((100, 200),))
        fewer = part.length(wide) < wide.length
        assert fewer == (part.summable and part.compresses), name
        assert (part.bits(wide) is not None) == (not part.summable), name
