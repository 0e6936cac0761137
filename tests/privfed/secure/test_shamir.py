"""Secret sharing: enough shares give the secret, fewer say nothing, and nothing else is taken."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from privfed.secure.masked.shamir import PRIME, reconstruct, share


def test_the_field_is_prime():
    """Miller-Rabin with forty fixed bases."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, PRIME)
        seen = [x := x * x % PRIME if step else x for step in range(twos)]
        assert seen[0] == 1 or PRIME - 1 in seen


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 5), st.randoms())
@settings(max_examples=60)
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, chance):
    places = tuple(chance.sample(range(1, 500), threshold + more))
    shares = share(secret, threshold, places)
    for _ in range(3):
        some = chance.sample(places, threshold)
        assert reconstruct({place: shares[place] for place in some}, threshold) == secret
    assert reconstruct(shares, threshold) == secret


def test_fewer_shares_fit_every_secret_alike():
    """In exact counting: over all coefficients, t - 1 shares take each value for each secret."""
    drawn = iter(())

    def below(_):
        return next(drawn)

    seen = {}
    for secret, coefficient in itertools.product((0, 7, 255), range(40)):
        drawn = iter([coefficient * (PRIME // 40)])
        value = share(secret.to_bytes(32, "big"), 2, (1, 2), below)[1]
        seen.setdefault(secret, []).append((value - secret) % PRIME)
    assert seen[0] == seen[7] == seen[255]
    # and one share beside the secret 0 is completed to any other secret by some second share
    one = share(bytes(32), 2, (1, 2))
    for wanted in (1, 2**255):
        second = (2 * one[1] - wanted) % PRIME
        assert reconstruct({1: one[1], 2: second}, 2) == wanted.to_bytes(32, "big")


def test_shares_are_drawn_afresh_and_spread_over_the_field():
    values = [share(bytes(32), 2, (1, 2))[1] for _ in range(400)]
    assert len(set(values)) == 400
    quarters = [sum(value // (PRIME // 4 + 1) == q for value in values) for q in range(4)]
    assert min(quarters) > 55


def test_a_frozen_vector():
    rng = random.Random(3)
    shares = share(bytes(range(32)), 3, (1, 2, 5), lambda n: rng.getrandbits(300) % n)
    assert reconstruct(shares, 3) == bytes(range(32))
    line = share(bytes(31) + b"\x05", 2, (1, 3), lambda _: 10)
    assert line == {1: 15, 3: 35}


@every_case(
    "call",
    [
        lambda: share(bytes(31), 2, (1, 2)),
        lambda: share(bytes(32), 3, (1, 2)),
        lambda: share(bytes(32), 0, (1, 2)),
        lambda: share(bytes(32), 2, (1, 1)),
        lambda: share(bytes(32), 2, (0, 1)),
        lambda: reconstruct({1: 5}, 2),
        lambda: reconstruct({0: 5, 1: 5}, 2),
        lambda: reconstruct({1: PRIME, 2: 5}, 2),
        lambda: reconstruct({1: PRIME - 1, 2: PRIME - 1}, 2),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError, match=r"secret|share|threshold|place"):
        call()
