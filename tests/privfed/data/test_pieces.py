"""Arrays in pieces: the same rows as of one array, and nothing is joined or copied as a whole."""

import numpy as np
import pytest
import torch
from lanes import every_case

from privfed.data.pieces import Mapped, Pieces


def pieces_of(array, *bounds):
    return Pieces(tuple(np.split(array, bounds)))


@every_case("kind", ["u1", "u2", "u4", "i8", "f4", "f8", "?"])
def test_rows_are_those_of_the_joined_array_in_any_order(kind):
    array = (np.arange(40).reshape(10, 4) % 7).astype(kind)
    pieces = pieces_of(array, 3, 3, 9)
    rows = np.array([9, 0, 2, 3, 3, 8, 0])
    assert len(pieces) == 10
    assert pieces.shape == (10, 4)
    assert np.array_equal(pieces.take(rows), array[rows])
    assert np.array_equal(torch.from_numpy(pieces.take(rows)).float(), array[rows].astype("f4"))
    assert pieces.take(rows[:0]).shape == (0, 4)
    assert np.array_equal(np.stack([*pieces]), array)


def test_a_row_beyond_the_last_is_none_of_them():
    with pytest.raises(IndexError):
        pieces_of(np.zeros((4, 1)), 2).take(np.array([4]))


def test_only_the_pieces_that_are_asked_for_are_read():
    class Unread:
        shape, dtype = (5, 2), np.dtype("u1")

        def __len__(self):
            return 5

        def __getitem__(self, rows):
            raise AssertionError("nobody asked for these rows")

    pieces = Pieces((np.arange(6, dtype="u1").reshape(3, 2), Unread()))
    assert pieces.take(np.array([2, 1])).tolist() == [[4, 5], [2, 3]]


def test_features_are_bit_for_bit_those_of_one_array():
    array = np.random.default_rng(0).integers(0, 256, (12, 2, 3), dtype=np.uint8)
    array.flags.writeable = False  # as a file is mapped
    whole = Mapped(torch.from_numpy(array.copy()), torch.arange(12), (3.0, 250.0), (-1.0, 1.0))
    parts = Mapped(pieces_of(array, 5, 11), torch.arange(12), (3.0, 250.0), (-1.0, 1.0))
    index = torch.tensor([[11, 4, 4], [0, 5, 10]])
    assert parts.shape == whole.shape
    assert torch.equal(parts[index], whole[index])
    some = torch.tensor([7, 2, 11])
    assert torch.equal(parts.take(some)[torch.arange(3)], whole[some])
