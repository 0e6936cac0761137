"""No message of a homomorphic sum that somebody changed is accepted, and none does harm."""

import dataclasses
import struct

import numpy as np
import pytest
from encrypted_sums import (
    BOTH,
    Parties,
    _blocks,
    _forged,
    _instead,
    flipped,
    resigned,
    sized,
)
from helpers import set_fields
from lanes import every_case

from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic.messages import Row
from privfed.secure.homomorphic.parties import read_public
from privfed.secure.homomorphic.protocol import Bfv, Ckks
from privfed.secure.homomorphic.schemes import DEGREE
from privfed.secure.identities import office_identity
from privfed.secure.limits import Limits
from privfed.secure.summation import Aborted

pytest.importorskip("tenseal")

UNKNOWN_FIELD = bytes([120, 1])
"""Protocol buffers read over it."""


LARGER_SCALE = struct.pack("<Bd", 25, 2.0**40)
"""Of fields that come twice they read the last one."""


def in_other_bytes(block):
    """With SEAL's reserved bytes set, over which it reads."""
    at = 2 + block[1] + 4 + 6
    assert block[at - 6 : at - 3] == b"\x5e\xa1\x10"
    assert block[at : at + 2] == bytes(2)
    return block[:at] + b"\1\1" + block[at + 2 :]


FAULTS = {
    "empty": (lambda p, m, first: b"", "wrong length"),
    "of another format": (lambda p, m, first: b"XX" + m[2:], "wrong format"),
    "of an earlier version": (lambda p, m, first: b"PH1" + m[3:], "wrong format"),
    "an opening": (lambda p, m, first: p.holder.opening, "wrong type"),
    "truncated": (lambda p, m, first: m[:-1], "wrong length"),
    "too long": (lambda p, m, first: m + b"\0", "wrong length"),
    "of another session": (lambda p, m, first: Parties(p.protocol).row(9), "wrong session"),
    "of another context": (lambda p, m, first: resigned(m, context=bytes(32)), "wrong session"),
    "unsigned": (lambda p, m, first: _forged(m, signature=bytes(64)), "wrong signature"),
    "in another's name": (lambda p, m, first: _forged(m, number=8), "wrong signature"),
    "of the key holder": (
        lambda p, m, first: Row.decode(m).signed(office_identity("holder")).encode(),
        "wrong signature",
    ),
    "signed with other ciphertexts": (
        lambda p, m, first: _forged(m, blocks=Row.decode(p.row(9)).blocks),
        "wrong signature",
    ),
    "of nobody": (lambda p, m, first: resigned(m, number=10), "unknown sender"),
    "the same client": (lambda p, m, first: p.row(1), "sent twice"),
    "the same message": (lambda p, m, first: first, "sent twice"),
    "a copied row": (lambda p, m, first: resigned(first, number=9), "duplicate ciphertext"),
    "a first copy": (lambda p, m, first: _instead(m, first, 0), "duplicate ciphertext"),
    "a second copy": (lambda p, m, first: _instead(m, first, 1), "duplicate ciphertext"),
    "a copy in other bytes": (
        lambda p, m, first: _instead(m, first, 1, in_other_bytes),
        "duplicate ciphertext",
    ),
    "a long copy for a short one": (
        lambda p, m, first: _instead(m, first, 1, lambda block: sized([1], block), of=0),
        "duplicate ciphertext",
    ),
    **{
        f"a copy {name}": (
            lambda p, m, first, changed=changed: _instead(m, first, 1, changed),
            "no ciphertext: the vector.s sizes|wrong length",
        )
        for name, changed in {
            "with an unknown field": lambda block: block + UNKNOWN_FIELD,
            "with another size": lambda block: sized([1, 0], block),
            "with one more size": lambda block: sized([1, 1], block),
            "of another scale": lambda block: block + LARGER_SCALE,
        }.items()
    },
    "too few ciphertexts": (lambda p, m, first: _blocks(m, lambda b: b[:-1]), "wrong length"),
    "too many ciphertexts": (lambda p, m, first: _blocks(m, lambda b: b + b[:1]), "wrong length"),
    "ciphertexts swapped": (lambda p, m, first: _blocks(m, reversed), "wrong length"),
    "no ciphertexts": (lambda p, m, first: _blocks(m, lambda b: [b"", b""]), "wrong length"),
    "text": (
        lambda p, m, first: _blocks(m, lambda b: [b"x" * 60_000] * 2),
        "wrong length|no cipher",
    ),
    "a cut ciphertext": (
        lambda p, m, first: _blocks(m, lambda b: [b[0][:-99], b[1]]),
        "no ciphertext",
    ),
    "oversized": (lambda p, m, first: _blocks(m, lambda b: [b[0] * 2, b[1]]), "wrong length"),
    "of another key": (
        lambda p, m, first: resigned(
            (Parties(Ckks() if p.protocol.scheme.name == "bfv" else Bfv(), p.length)).row(9),
            context=p.opening.context,
        ),
        "no ciphertext|wrong length",
    ),
}


@BOTH
@every_case("fault", FAULTS)
def test_faulty_messages_are_refused_by_name_and_the_sum_goes_on(protocol, fault):
    parties = Parties(protocol, protocol.scheme.slots + 1)
    spoiled, named = FAULTS[fault]
    first = parties.row(1, 20)
    parties.server.add(first)
    with pytest.raises(BadMessage, match=named) as caught:
        parties.server.add(spoiled(parties, parties.row(9), first))
    assert isinstance(caught.value, Aborted)
    parties.server.add(parties.row(2, -50))
    total, survivors = parties.holder.open(parties.server.total())
    assert survivors == 2
    assert np.array_equal(total, np.full(parties.length, -30))


def test_a_ciphertext_twice_in_one_row_is_refused():
    parties = Parties(Bfv(), 2 * DEGREE)
    with pytest.raises(BadMessage, match="duplicate ciphertext"):
        parties.server.add(_blocks(parties.row(1), lambda blocks: [blocks[0]] * 2))


@BOTH
def test_no_flipped_bit_of_any_message_is_accepted(protocol):
    parties = Parties(protocol)
    rng = np.random.default_rng(0)
    for changed in flipped(parties.holder.opening, rng):
        for party in (parties.answering, parties.serving):
            with pytest.raises(BadMessage):
                party(changed)
    parties.server.add(parties.row(1, 20))
    row = parties.row(2, -50)
    for changed in flipped(row, rng):
        with pytest.raises(BadMessage):
            parties.server.add(changed)
    parties.server.add(row)
    total = parties.server.total()
    for changed in flipped(total, rng):
        with pytest.raises(BadMessage):
            parties.holder.open(changed)
    whole, survivors = parties.holder.open(total)
    assert (whole.tolist(), survivors) == ([-30] * 5, 2)


SIZES = bytes([10, 2, 128, 32])
"""How TenSEAL's bytes begin: the sizes [4096]."""


def _wrapped(ciphertext, path):
    """The bytes of one of SEAL's ciphertexts, as TenSEAL sends them."""
    ciphertext.save(str(path))
    inner, size = path.read_bytes(), []
    left = len(inner)
    while left > 127:
        size.append(128 + left % 128)
        left //= 128
    return SIZES + bytes([18, *size, left]) + inner


def test_vectors_that_say_more_than_they_hold_are_refused():
    """TenSEAL would read as many numbers as the sender says, past the end of what it decrypted."""
    scheme = Bfv().scheme
    keys = scheme.keys()
    data = scheme.encrypt(keys, np.full(4096, 1))
    assert data.startswith(SIZES)
    one = data[len(SIZES) :]
    for spoiled in (bytes([10, 2, 255, 127]) + one, SIZES + SIZES + one, SIZES, one):
        with pytest.raises(BadMessage, match="not of 4096 numbers"):
            scheme.read(keys, spoiled, 4096)
    with pytest.raises(BadMessage, match=f"of {len(data) + len(one)} bytes"):
        scheme.read(keys, data + one, 4096)


def test_ciphertexts_of_another_form_are_refused(tmp_path):
    """Of three polynomials; of none, which anybody can read; and of another scale."""
    scheme = Bfv().scheme
    keys = scheme.keys()
    vector = scheme.read(keys, scheme.encrypt(keys, np.full(4096, 1)), 4096)
    (whole,) = vector.ciphertext()
    context = keys.seal_context().data
    scheme.read(keys, _wrapped(whole, tmp_path / "whole"), 4096)
    empty = type(whole)(context)
    for count in (2, 3):
        empty.resize(context, count)
        with pytest.raises(BadMessage, match="no ciphertext"):
            scheme.read(keys, _wrapped(empty, tmp_path / str(count)), 4096)
    longer = vector.ciphertext()[0]
    longer.resize(context, 3)
    with pytest.raises(BadMessage, match="another form"):
        scheme.read(keys, _wrapped(longer, tmp_path / "longer"), 4096)
    keys = Ckks().scheme.keys()
    other = Ckks(bits=20).scheme.encrypt(keys, np.full(2048, 1))
    with pytest.raises(BadMessage, match="another form"):
        Ckks().scheme.read(keys, other, 2048)


def test_ciphertexts_that_their_client_spoiled_never_crash_the_server():
    parties = Parties(Bfv(), largest=2**20, limits=Limits(2**20))
    (block,) = Row.decode(parties.row(1)).blocks
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(0, 200, 400):
        changed = bytearray(block)
        changed[at] ^= 1 << rng.integers(8)
        parties.server._senders.clear()
        try:
            parties.server.add(parties.holding(bytes(changed), by=1))
        except BadMessage:
            refused += 1
    assert refused > 100


@BOTH
def test_uncompressed_ciphertexts_of_another_form_are_refused_and_change_nothing(protocol):
    """The form's flag lies in the clear; a row of two blocks is added whole, or not at all."""
    parties = Parties(protocol, length=DEGREE + 5)
    server, row = parties.server, Row.decode(parties.row(1))
    server.add(parties.row(2))
    key = read_public(parties.opening.key, protocol.scheme)
    sizes = protocol.scheme.blocks(parties.length)
    for block in range(2):
        found = protocol.scheme.read(key, row.blocks[block], sizes[block])
        assert found.ciphertext()[0].is_ntt_form() is protocol.scheme.transformed
    wrong = dataclasses.replace(type(protocol)(bits=protocol.bits).scheme)
    set_fields(wrong, transformed=not protocol.scheme.transformed)
    with pytest.raises(BadMessage, match="another form"):
        wrong.read(key, row.blocks[0], sizes[0])

    class Breaking:
        def __add__(self, other):
            raise ValueError("NTT form mismatch")

    before = list(server._sum)
    server._sum[1] = Breaking()
    with pytest.raises(BadMessage, match="cannot be added"):
        server.add(row.encode())
    assert server._sum[0] is before[0]
    assert 1 not in server._senders
