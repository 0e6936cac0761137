"""Packed rows, beside plain big integers that are put together as the layout is defined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from privfed.secure import packing
from privfed.secure.packing import PackedRows


def packed_by_definition(numbers, bits):
    """The bytes of a row, number by number."""
    width = next(width for width in (16, 32, 64) if width >= bits)
    lanes = width // math.gcd(width, bits)
    words, columns = lanes * bits // width, len(numbers) // lanes
    rows = [b""] * words
    for column in range(columns):
        joined = sum(numbers[lane * columns + column] << lane * bits for lane in range(lanes))
        data = joined.to_bytes(words * width // 8, "little")
        for word in range(words):
            rows[word] += data[word * width // 8 : (word + 1) * width // 8]
    left = numbers[lanes * columns :]
    rest = sum(number << at * bits for at, number in enumerate(left))
    return b"".join(rows) + rest.to_bytes(-(-len(left) * bits // 8), "little")


def row(length, bits, seed):
    """Numbers `[length]`, a third of them the smallest or the largest there are."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2**bits, length, dtype=np.uint64)
    highest = np.uint64(2**bits - 1)
    numbers[rng.random(length) < 0.2] = highest
    return np.where(rng.random(length) < 0.2, np.uint64(0), numbers)


@pytest.mark.parametrize("bits", range(8, 63))
@settings(max_examples=8)
@given(data=st.data())
def test_rows_are_packed_as_defined_and_unpacked_again(bits, data):
    lanes, stretch = len({piece.lane for piece in PackedRows(0, bits)._pieces}), 3
    columns, more = data.draw(st.integers(0, 2 * stretch + 1)), data.draw(st.integers(-1, 1))
    length = max(0, columns * lanes + more)
    rows = PackedRows(length, bits)
    rows._stretch = stretch
    numbers = row(length, bits, data.draw(st.integers(0, 2**32))).astype(rows.word)
    above = rows.word.type(-(2**bits) % 2 ** (8 * rows.word.itemsize))
    packed = rows.pack(numbers | above)  # what is above a number is no part of it
    assert bytes(packed) == packed_by_definition(numbers.tolist(), bits)
    assert len(packed) == rows.size == -(-length * bits // 8)
    shifted = memoryview(b"x" + packed)[1:]  # at an odd address
    assert np.array_equal(rows.unpack(shifted), numbers)
    total = np.full(length, 2**bits - 3, rows.word)
    assert rows.add(total, shifted)
    assert np.array_equal(rows.reduce(total), rows.reduce(numbers - rows.word.type(3)))


@every_case("bits", [9, 20, 31, 33, 62])
def test_other_lengths_and_bits_that_are_no_numbers_are_refused_and_change_nothing(bits):
    rows = PackedRows(201, bits)
    packed = bytes(rows.pack(np.arange(201).astype(rows.word)))
    unknown = 8 * len(packed) - 201 * bits
    assert unknown
    total = rows.zeros()
    for wrong in (packed[:-1], packed + b"x", b""):
        assert not rows.add(total, wrong)
        assert rows.unpack(wrong) is None
    for bit in range(8 - unknown, 8):
        wrong = packed[:-1] + bytes([packed[-1] | 1 << bit])
        assert not rows.add(total, wrong)
    assert not total.any()


def test_the_bytes_of_a_row_are_frozen():
    """Both sides of a deployment have to agree on every byte of these."""
    numbers = (np.arange(1, 19) * 0x9E377 % 2**20).astype("<u4")
    expected = (
        "77e359a6eec6c3ddda53711178ca548b84532fffbbf1a6e2d861cc0b42996a828d903f45700a77e3e71ae8e51f"
    )
    assert PackedRows(18, 20).pack(numbers).hex() == expected


def test_the_bytes_do_not_depend_on_the_stretches_they_are_made_in(monkeypatch):
    rows, numbers = PackedRows(300_001, 20), row(300_001, 20, 1).astype("<u4")
    packed = rows.pack(numbers)
    monkeypatch.setattr(packing, "_STRETCH", 1 << 12)
    assert PackedRows(300_001, 20).pack(numbers) == packed
    assert np.array_equal(rows.unpack(packed), numbers)
