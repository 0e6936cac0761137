"""What every compression keeps: lengths, linearity and exchanges as it declares them."""

import numpy as np
import torch
from contracts.registered import contract_tests

from privfed.client.compression.compression import Compression, Sending, Space
from privfed.client.compression.linear import RandomMask
from privfed.core.streams import Streams
from privfed.core.vector import Shapes

SHAPES = Shapes(("wide", "bias", "kernel"), ((6, 9), (6,), (4, 2, 3, 3)))
D = SHAPES.length


class Student:
    """A model; 24 of its parameters determine the outputs for 8 examples of 3 classes."""

    def outputs(self, models):
        return models[:, :24].reshape(-1, 8, 3).tanh()

    def distilled(self, models, targets, batches, lr):
        return torch.cat([targets.log().flatten().expand(len(models), -1), models[:, 24:]], dim=1)


SPACE = Space(SHAPES, 7, Student())


def normal(count, seed=0):
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed)).double()


def sending(part, number=1, clients=3):
    """A round as its clients know it, after what the compression asks first."""
    answer, exchanges = None, 0
    params = {"params": torch.zeros(D, dtype=torch.float64)}
    memory = part.init(SPACE)
    exchanges_before = part.exchanges_before(_sending(number, params, clients), memory)
    while True:
        try:
            exchange = exchanges_before.send(answer) if exchanges else next(exchanges_before)
        except StopIteration as finished:
            return _sending(number, {**params, **finished.value}, clients), exchanges, memory
        exchanges += 1
        answer = normal(1, seed=5)[0, : exchange.layout.length]


def _sending(number, broadcast, clients):
    keys = Streams(3, simulated=True).at("shuffle", number, np.arange(clients))
    return Sending(SPACE, number, broadcast, keys)


def sends_rows_of_its_length(part):
    """One for each client, of numbers that are finite, and an update comes back."""
    here, exchanges, memory = sending(part)
    assert exchanges + 1 == part.exchanges
    rows = normal(3)
    before = rows.clone()
    sent, _ = part.encode(rows, None, here)
    assert torch.equal(rows, before)
    assert tuple(sent.shape) == (3, part.length(SHAPES))
    assert sent.isfinite().all()
    assert torch.equal(sent, part.encode(rows, None, here)[0]), (
        "the random numbers are public, or the client's"
    )
    update, after = part.decode(sent.mean(0), here, memory)
    assert tuple(update.shape) == (D,)
    assert after.keys() == memory.keys()
    assert part.length(SHAPES) <= D
    assert (part.bits(SHAPES) is None) == (part.summable or not part.compresses)
    if part.bits(SHAPES) is not None:
        assert 0 < part.bits(SHAPES) < 32 * D
    assert 0 < part.factor(SHAPES) <= 1.0
    assert part.received(SHAPES) >= 0
    assert part.compresses or torch.equal(sent, rows)


def is_linear_where_it_declares(part):
    """The sum of what is sent is the sum of updates, compressed."""
    here, _, _ = sending(part)
    rows = normal(3)
    sent = part.encode(rows, None, here)[0].sum(0)
    alone, _, _ = sending(part, clients=1)
    total = part.encode(rows.sum(0, keepdim=True), None, alone)[0][0]
    same = sent.shape == total.shape and torch.allclose(sent, total, rtol=1e-6, atol=1e-6)
    assert same == part.linear


def is_fresh_where_it_declares(part):
    """Places of a row mean something else in another round."""
    rows = normal(1)
    if part.linear and part.exchanges == 1:
        first, second = (
            part.encode(rows, None, sending(part, number, 1)[0])[0] for number in (1, 2)
        )
        assert torch.equal(first, second) != part.fresh


def remembers_what_it_left_off(part):
    """With error feedback, what comes back and what is left off are the update and the error."""
    if "error_feedback" not in type(part).model_fields:
        assert part.keeps == 0
        return
    part = part.model_copy(update={"error_feedback": True})
    assert part.keeps == 1
    here, _, memory = sending(part)
    rows, error = normal(3), normal(3, seed=1)
    sent, left = part.encode(rows, error, here)
    assert tuple(left.shape) == (3, D)
    if part.exchanges == 1:
        back = torch.stack([part.decode(row, here, memory)[0] for row in sent])
        torch.testing.assert_close(back + left, rows + error)


class Evens(Compression):
    """Every other number, which it declares to be fresh."""

    def length(self, shapes):
        return -(-shapes.length // 2)

    def encode(self, updates, error, sending):
        return updates[:, ::2], error

    def decode(self, released, sending, memory):
        update = released.new_zeros(sending.space.shapes.length)
        update[::2] = released
        return update, memory


class TooLong(Evens):
    """It sends more than it declares."""

    def encode(self, updates, error, sending):
        return updates, error


class Largest(Evens):
    """The largest half of each row, as if that were linear."""

    def encode(self, updates, error, sending):
        return updates.sort(dim=1).values[:, : self.length(sending.space.shapes)], error


class Forgetting(RandomMask):
    """It remembers an error, and loses what was left off before."""

    def encode(self, updates, error, sending):
        return super().encode(updates, torch.zeros_like(updates), sending)


class Twice(Evens):
    """It declares an exchange that it does not ask for."""

    exchanges = 2


test_every_compression_keeps, test_a_wrong_compression_is_rejected_by = contract_tests(
    "compression",
    {
        sends_rows_of_its_length: [TooLong(), Twice()],
        is_linear_where_it_declares: [Largest()],
        is_fresh_where_it_declares: [Evens()],
        remembers_what_it_left_off: [Forgetting()],
    },
)
