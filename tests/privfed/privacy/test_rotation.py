"""Rotations change no norm and are undone; their signs are public and fresh."""

import math

import numpy as np
import torch
from distributed_noise import SETTING
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.client.objective import Sgd
from privfed.core.streams import Keys
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms.distributed import SkellamNoise
from privfed.privacy.rotation import hadamard, padded, rotate, signs, unrotate


@given(st.integers(1, 70), st.integers(0, 10**6), st.sampled_from(["any", "one", "aligned"]))
@settings(max_examples=80)
def test_no_rotated_and_encoded_row_is_longer_than_the_bound(length, seed, shape):
    rng = np.random.default_rng(seed)
    flips = signs(Keys(seed.to_bytes(16, "little")), length)
    row = torch.from_numpy(rng.normal(size=(1, length)))
    if shape == "one":
        row = torch.zeros(1, length, dtype=torch.float64)
        row[0, seed % length] = 1.0
    elif shape == "aligned":  # the rotation gathers all of it in one coordinate
        row = (hadamard(torch.eye(padded(length), dtype=torch.float64)[:1]) * flips)[:, :length]
    row = row / row.norm()
    turned = rotate(BoundedRows(row, 1.0), flips)
    assert turned.rows.norm() <= 1.0
    for step in (0.01, 0.3):
        codec = Codec(1.0, step, padded(length), 32)
        whole = codec.encode(turned.rows[0].numpy(), Keys(None))
        assert np.linalg.norm(whole.astype(float)) <= codec.bound
    assert torch.allclose(unrotate(turned.rows[0], flips, length), row[0], atol=1e-9)


def test_the_rotation_is_walsh_and_hadamards():
    from scipy.linalg import hadamard as matrix

    for size in (1, 2, 16, 64, 512):
        rows = torch.randn(3, size, dtype=torch.float64)
        expected = rows.numpy() @ matrix(size) / math.sqrt(size)
        np.testing.assert_allclose(hadamard(rows).numpy(), expected, atol=1e-10)


def test_signs_are_public_and_fresh_after_every_release():
    mechanism = SkellamNoise(noise_multiplier=1.0).resolved(SETTING)
    rows, layout = torch.randn(2, 10), Sgd().layout(10)
    first, second = mechanism.init(), {"rotation": torch.tensor(1)}
    one, again = (mechanism.bound(rows, layout, Keys(None), first).rows for _ in range(2))
    other = mechanism.bound(rows, layout, Keys(None), second).rows
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    total = BoundedSum(one.sum(0), 1.0, 2)
    _, after = mechanism.release(total, 1.0, Keys(None), first)
    assert int(after["rotation"]) == 1
