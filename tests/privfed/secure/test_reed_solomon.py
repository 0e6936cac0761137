"""Shares as a Reed-Solomon word: as many wrong ones as can be are corrected, and no more."""

import inspect
import random

import pytest
from lanes import every_case

from privfed.secure.masked import shamir
from privfed.secure.masked.shamir import PRIME, corrected, share


def words(count, seed=0):
    """Words at random: the secret, the shares, the threshold, and how many can be corrected."""
    chance = random.Random(seed)
    for _ in range(count):
        threshold = chance.randint(1, 9)
        places = tuple(sorted(chance.sample(range(1, 60), threshold + chance.randint(0, 8))))
        secret = chance.randbytes(32)
        yield secret, share(secret, threshold, places), threshold, chance


def spoiled(shares, wrong, chance):
    """So many of them changed, a little or to anything."""
    changed = dict(shares)
    for place in chance.sample(sorted(shares), wrong):
        step = chance.choice([1, chance.randrange(1, PRIME)])
        changed[place] = (changed[place] + step) % PRIME
    return changed


def judge(decode, count=60):
    """Up to half of what is more than the threshold is corrected; beyond, nothing is as near."""
    for secret, shares, threshold, chance in words(count):
        half = (len(shares) - threshold) // 2
        for wrong in range(half + 1):
            assert decode(spoiled(shares, wrong, chance), threshold) == secret
        if half + 1 <= len(shares) - threshold:
            assert decode(spoiled(shares, half + 1, chance), threshold) is None


def test_half_of_what_is_more_than_the_threshold_is_corrected():
    judge(corrected)


def test_a_zero_polynomial_and_too_few_shares():
    zero = dict.fromkeys(range(1, 8), 0)
    assert corrected({**zero, 3: 5}, 4) == bytes(32)
    assert corrected({1: 5}, 2) is None


def test_what_is_no_secret_of_32_bytes_is_none():
    assert corrected(dict.fromkeys(range(1, 6), 2**256 + 1), 1) is None


FAULTS = {
    "stops a step early": ("len(places) + threshold)", "len(places) + threshold + 2)"),
    "stops a step late": ("len(places) + threshold)", "len(places) + threshold - 2)"),
    "takes any degree": ("rest or len(quotient) > threshold", "rest"),
    "takes any remainder": ("rest or len(", "len("),
}


@every_case("right, wrong", FAULTS.values(), ids=FAULTS.keys())
def test_a_decoder_that_is_off_by_one_is_found(right, wrong):
    source, names = inspect.getsource(shamir), {}
    assert source.count(right) == 1
    exec(source.replace(right, wrong), names)
    with pytest.raises(AssertionError):
        judge(names["corrected"])
