"""Homomorphic sums: exact, by a server that cannot read, within limits that are kept."""

import dataclasses
import struct

import numpy as np
import pytest
import torch

from privfed.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic import tenseal_library
from privfed.secure.homomorphic.keys import check_parameters, public_half, read_public
from privfed.secure.homomorphic.messages import HEADER, OPENING, SIZE, Opening, Row, Total
from privfed.secure.homomorphic.parameters import DEGREE
from privfed.secure.homomorphic.parties import EncryptingClient, KeyHolder, SummingServer, Terms
from privfed.secure.homomorphic.protocol import Bfv, Ckks, party_directory
from privfed.secure.homomorphic.schemes import BfvScheme, CkksScheme
from privfed.secure.identities import client_identity, office_identity
from privfed.secure.limits import Limits
from privfed.secure.summation import Aborted, Session
from privfed.streams import Streams

pytest.importorskip("tenseal")
THREE = Limits(3)
BOTH = pytest.mark.parametrize("protocol", [Bfv(), Ckks()], ids=["bfv", "ckks"])
SESSION = Session(3, 0, bytes(range(32)), np.arange(10))


def holding(largest, length, bits):
    """A codec whose largest number is `largest`."""
    codec = Codec(np.inf, 1.0, length, bits, reach=largest - 1)
    assert codec.largest == largest
    return codec


def rows(count, codec, seed=0):
    top = codec.largest
    return np.random.default_rng(seed).integers(-top, top, (count, codec.length), endpoint=True)


@dataclasses.dataclass
class Parties:
    """The three parties of a session, opened for rows of up to 50, three of them at most."""

    protocol: object
    length: int = 5
    limits: Limits = THREE
    largest: int = 50

    session: Session = SESSION

    def __post_init__(self):
        self.codec = holding(self.largest, self.length, self.protocol.bits)
        self.terms = Terms(
            self.session,
            self.protocol.scheme,
            self.codec,
            self.limits,
            party_directory(self.session),
        )
        self.holder = KeyHolder(self.terms, office_identity("holder"))
        self.opening = Opening.decode(self.holder.opening)
        self.client = self.answering(self.holder.opening)
        self.server = self.serving()

    def answering(self, opening, **terms):
        return EncryptingClient(opening, dataclasses.replace(self.terms, **terms))

    def serving(self, opening=None, **terms):
        terms = dataclasses.replace(self.terms, **terms)
        return SummingServer(opening or self.holder.opening, terms, office_identity("server"))

    def opened(self, **changes):
        """The opening with changes that the key holder signed."""
        return (
            dataclasses.replace(self.opening, **changes).signed(office_identity("holder")).encode()
        )

    def row(self, client, value=7):
        return self.client.encrypt(client, client_identity(client), np.full(self.length, value))

    def holding(self, *blocks, by):
        """A row of any ciphertexts that its client signed."""
        return Row(self.opening.context, by, blocks).signed(client_identity(by)).encode()


def resigned(message, **changes):
    """A row with changes that the client of its name signed."""
    row = dataclasses.replace(Row.decode(message), **changes)
    return row.signed(client_identity(row.number)).encode()


def total_of(message, **changes):
    """A total with changes that the server signed."""
    return (
        dataclasses.replace(Total.decode(message), **changes)
        .signed(office_identity("server"))
        .encode()
    )


@BOTH
@pytest.mark.parametrize("length", [1, 4096, 4097, 10000])
def test_sums_are_exact(protocol, length):
    largest = (2 ** (protocol.bits - 1) - 1) // 5
    codec = holding(largest, length, protocol.bits)
    sent = rows(4, codec)
    sent[:, 0] = [largest, largest, -largest, 0]
    channel = protocol.channel(SESSION, codec, Limits(5))
    for client, row in enumerate(sent):
        channel.send(2 * client, row)
    total, survivors = channel.total()
    assert survivors == 4
    assert total.dtype == np.int64
    assert np.array_equal(total, sent.sum(0))


@pytest.mark.parametrize(
    "protocol", [Bfv(), Bfv(bits=8), Ckks(), Ckks(bits=28)], ids=lambda p: f"{type(p)}{p.bits}"
)
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_are_exact_at_the_end_of_their_range(protocol, sign):
    """All alike, which is a single coefficient: where CKKS would wrap first, without a trace."""
    capacity = 3
    codec = holding((2 ** (protocol.bits - 1) - 1) // capacity, 3000, protocol.bits)
    channel = protocol.channel(SESSION, codec, Limits(capacity))
    for client in range(capacity):
        channel.send(client, np.full(3000, sign * codec.largest))
    total, _ = channel.total()
    assert np.array_equal(total, np.full(3000, sign * capacity * codec.largest))


@pytest.mark.parametrize(
    "protocol, cohort", [(Bfv(), 4000), (Ckks(), 4000), (Ckks(bits=28), 1887)], ids=str
)
def test_large_sums_are_exact_though_their_noise_is_correlated(protocol, cohort):
    """Each of 100 encrypted rows is sent by many clients: worse than noise that is independent."""
    codec = holding((2 ** (protocol.bits - 1) - 1) // cohort, 2048, protocol.bits)
    scheme = protocol.scheme
    keys = scheme.keys()
    sent = rows(100, codec)
    sent[:, 0], sent[:, 1] = codec.largest, -codec.largest
    ciphertexts = [scheme.read(keys, scheme.encrypt(keys, row), 2048) for row in sent]
    total = ciphertexts[0]
    for client in range(1, cohort):
        total = total + ciphertexts[client % 100]
    times = np.bincount(np.arange(cohort) % 100)
    assert np.array_equal(scheme.decrypt(total), times @ sent)
    assert scheme.decrypt(total)[0] == codec.largest * cohort


def test_the_noise_of_a_bfv_sum_is_below_its_bound():
    """By its budget, log2 of q / 2t over the largest coefficient; it ends where none is left."""
    scheme = Bfv().scheme
    keys = scheme.keys()
    data = [scheme.encrypt(keys, np.full(4096, 1)) for _ in range(256)]
    budget = keys.data.decryptor().invariant_noise_budget

    def left(found):
        return budget(found.ciphertext()[0])

    total = scheme.read(keys, data[0], 4096)
    assert left(total) >= np.floor(21 - np.log2(2049))
    for one in data[1:]:
        total.add_(scheme.read(keys, one, 4096))
    bound = 256 / 2 + 10 * 16 * (np.sqrt(4096 / 12) + 0.5)
    assert left(total) >= np.floor(21 - np.log2(bound))
    assert left(total) <= 12  # as independent errors do: four bits for a factor of 256
    alike = scheme.read(keys, data[0], 4096)
    for _ in range(10):  # 1024 times the same
        alike.add_(alike)
    assert left(alike) > 0
    assert np.array_equal(scheme.decrypt(alike), np.full(4096, 1024))


@pytest.mark.parametrize("bits", [16, 24, 28])
def test_the_noise_of_a_ckks_sum_is_below_its_bound(bits):
    scheme = Ckks(bits=bits).scheme
    keys = scheme.keys()
    row = rows(1, holding(2 ** (bits - 1) // 200, 2048, bits))[0]
    data = [scheme.encrypt(keys, row) for _ in range(100)]
    total = scheme.read(keys, data[0], 2048)
    for one in data[1:]:
        total.add_(scheme.read(keys, one, 2048))
    error = np.array(total.decrypt()) - 100 * row
    assert error.std() * scheme.scale < 10 * np.sqrt(100) * 4096 / np.sqrt(24)
    assert np.abs(error).max() < 0.25 * np.sqrt(100 / scheme.most_rows)
    assert np.array_equal(scheme.decrypt(total), 100 * row)


@BOTH
def test_the_server_has_no_secret_key_and_cannot_decrypt(protocol):
    parties = Parties(protocol)
    for client in range(2):
        parties.server.add(parties.row(client))
    key, (total,) = parties.server._key, parties.server._sum
    assert not key.has_secret_key()
    assert key.is_public()
    with pytest.raises(ValueError, match="hold a secret_key"):
        total.decrypt()
    with pytest.raises(ValueError, match="doesn't support decryption"):
        key.data.decryptor()
    with pytest.raises(ValueError, match="doesn't hold a Secret key"):
        key.secret_key()
    with pytest.raises(ValueError, match="secret_key"):
        key.generate_relin_keys()
    assert not key.has_relin_keys()
    assert not key.has_galois_keys()


@BOTH
def test_another_key_pair_does_not_open_a_total(protocol):
    parties, other = Parties(protocol), Parties(protocol)
    for client in range(2):
        parties.server.add(parties.row(client))
    message = parties.server.total()
    with pytest.raises(BadMessage, match="wrong session"):
        other.holder.open(message)
    with pytest.raises(Aborted, match="limits were broken"):
        other.holder.open(total_of(message, context=other.opening.context))
    assert parties.holder.open(message)[0].tolist() == [14] * 5


@BOTH
def test_a_context_with_the_secret_key_is_refused_by_everybody_else(protocol):
    parties = Parties(protocol)
    leaked = parties.opened(key=parties.holder._keys.serialize(save_secret_key=True))
    for party in (parties.serving, parties.answering):
        with pytest.raises(ValueError, match="only the key holder"):
            party(leaked)


def test_the_public_half_has_no_key_but_the_public_one():
    keys = Bfv().scheme.keys()
    assert keys.has_secret_key()
    assert len(public_half(keys)) < len(keys.serialize(save_secret_key=True)) - 60_000
    read = read_public(public_half(keys), Bfv().scheme)
    assert read.has_public_key()
    without = keys.serialize(save_public_key=False, save_relin_keys=False)
    with pytest.raises(BadMessage, match="without one"):
        read_public(without, Bfv().scheme)


def test_a_symmetric_context_is_no_public_key():
    library = tenseal_library.tenseal()
    symmetric = library.context(
        library.SCHEME_TYPE.BFV,
        DEGREE,
        BfvScheme.modulus,
        [54, 55],
        encryption_type=library.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )
    without = symmetric.serialize(False, False, False, False)
    with pytest.raises(BadMessage, match="no public key"):
        read_public(without, Bfv().scheme)


@BOTH
def test_equal_rows_have_different_ciphertexts(protocol):
    parties = Parties(protocol)
    first, second = (Row.decode(parties.row(1)) for _ in range(2))
    assert first.context == second.context
    assert first.blocks != second.blocks


@BOTH
def test_no_two_sessions_share_a_key_or_a_context(protocol):
    first, second = (Parties(protocol).opening for _ in range(2))
    assert first.key != second.key
    assert first.context != second.context
    assert first.nonce != second.nonce


def _blocks(message, change):
    return resigned(message, blocks=tuple(change(Row.decode(message).blocks)))


def _forged(message, **changes):
    """A row with changes that nobody signed."""
    return dataclasses.replace(Row.decode(message), **changes).encode()


def _instead(message, other, at, changed=lambda block: block, of=None):
    """The row with one ciphertext of another row, of block `of` if not the same, `changed`."""
    copied = changed(Row.decode(other).blocks[at if of is None else of])
    return _blocks(message, lambda own: [*own[:at], copied, *own[at + 1 :]])


UNKNOWN_FIELD = bytes([120, 1])
"""Protocol buffers read over it."""
LARGER_SCALE = struct.pack("<Bd", 25, 2.0**40)
"""Of fields that come twice they read the last one."""


def sized(sizes, block):
    """The vector with other sizes before its ciphertext."""
    return bytes([10, len(sizes), *sizes]) + block[2 + block[1] :]


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
            "no ciphertext: a vector that says other|wrong length",
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
@pytest.mark.parametrize("fault", FAULTS)
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


def flipped(message, rng):
    """The message with a flipped bit: in each byte before the ciphertexts, and in 40 of all."""
    for at in [*range(120), *rng.integers(0, len(message), 40), len(message) - 1]:
        changed = bytearray(message)
        changed[at] ^= 1 << rng.integers(8)
        yield bytes(changed)


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
def test_openings_that_do_not_fit_are_refused_by_clients_and_server(protocol):
    parties = Parties(protocol)
    opening = parties.holder.opening
    for party in (parties.answering, parties.serving):
        for other, name in (
            (holding(50, 6, protocol.bits), "length"),
            (holding(50, 5, protocol.bits - 1), "bits"),
        ):
            with pytest.raises(BadMessage, match=f"wrong {name}"):
                party(opening, codec=other)
        for change in ({"round": 9}, {"exchange": 3}, {"model_hash": b"other"}):
            with pytest.raises(BadMessage, match=f"wrong {next(iter(change)).split('_')[0]}"):
                party(opening, session=dataclasses.replace(SESSION, **change))
        swapped = Ckks(bits=20) if protocol.scheme.name == "bfv" else Bfv(bits=20)
        with pytest.raises(BadMessage, match="wrong scheme"):
            party(Parties(swapped).holder.opening)
        with pytest.raises(BadMessage, match="wrong scheme"):
            party(parties.opened(scheme=b"rot13"))
        for spoiled in (opening[:-1], opening + b"\0"):
            with pytest.raises(BadMessage, match="wrong length"):
                party(spoiled)
        with pytest.raises(BadMessage, match="no public key"):
            party(parties.opened(key=b""))
        with pytest.raises(BadMessage, match="wrong signature"):
            party(parties.opening.signed(office_identity("server")).encode())
    assert Opening.decode(opening).encode() == opening


CONFIGURED = {
    "clip": {"clip": 3.0},
    "step": {"step": 0.5},
    "reach": {"reach": 60.0},
    "noise": {"noise": 2},
    "capacity": {"capacity": 4},
    "minimum": {"minimum": 3},
    "tolerance": {"tolerance": 0.5},
    "hostile": {"hostile": 1},
}


@pytest.mark.parametrize("changed", CONFIGURED)
def test_parties_that_are_configured_differently_refuse_each_other(changed):
    parties, change = Parties(Bfv()), CONFIGURED[changed]
    name = "codec" if hasattr(parties.codec, changed) else "limits"
    terms = {name: dataclasses.replace(getattr(parties.terms, name), **change)}
    for party in (parties.answering, parties.serving):
        party(parties.holder.opening)
        with pytest.raises(BadMessage, match="wrong agreement"):
            party(parties.holder.opening, **terms)


def context(scheme, degree=DEGREE, modulus=BfvScheme.modulus, sizes=(54, 55)):
    library = tenseal_library.tenseal()
    if scheme == "bfv":
        return library.context(library.SCHEME_TYPE.BFV, degree, modulus, list(sizes), n_threads=1)
    return library.context(
        library.SCHEME_TYPE.CKKS, degree, coeff_mod_bit_sizes=list(sizes), n_threads=1
    )


OTHER = {
    "N": ("bfv", "bfv", {"degree": 2 * DEGREE}),
    "t": ("bfv", "bfv", {"modulus": 1032193}),
    "q": ("bfv", "bfv", {"sizes": (53, 55)}),
    "q of as many bits": ("bfv", "bfv", {"sizes": (53, 56)}),
    "q in another order": ("bfv", "bfv", {"sizes": (55, 54)}),
    "a ckks key": ("bfv", "ckks", {}),
    "a bfv key": ("ckks", "bfv", {}),
    "N of ckks": ("ckks", "ckks", {"degree": 2 * DEGREE}),
    "q of ckks": ("ckks", "ckks", {"sizes": (53, 56)}),
}


@pytest.mark.parametrize("other", OTHER)
def test_keys_of_other_parameters_are_refused_by_everybody(other, monkeypatch):
    """Under the right name, and signed: the proof is of one N, q and t."""
    name, handed, change = OTHER[other]
    parties = Parties(Bfv() if name == "bfv" else Ckks())
    keys = context(handed, **change)
    opening = parties.opened(key=public_half(keys))
    for party in (parties.answering, parties.serving):
        with pytest.raises(BadMessage, match=f"wrong parameters.* of {name}"):
            party(opening)
    monkeypatch.setattr(type(parties.protocol.scheme), "keys", lambda scheme: keys)
    with pytest.raises(BadMessage, match="wrong parameters"):
        KeyHolder(parties.terms, office_identity("holder"))


@pytest.mark.parametrize("scheme", [BfvScheme(32), CkksScheme(24)], ids=["bfv", "ckks"])
def test_the_constants_of_the_proof_are_those_of_the_library(scheme):
    check_parameters(scheme.keys(), scheme)
    q, special = scheme.parameters.moduli
    assert (q.bit_length(), special.bit_length()) == (54, 55)
    for prime in (q, special, *([scheme.modulus] if scheme.modulus else ())):
        assert prime % (2 * DEGREE) == 1


@BOTH
def test_nothing_of_another_session_is_accepted(protocol):
    """Of an earlier one of the same round, exchange, model and parties."""
    earlier, parties = Parties(protocol), Parties(protocol)
    for client in range(2):
        earlier.server.add(earlier.row(client))
    with pytest.raises(BadMessage, match="wrong session"):
        parties.server.add(earlier.row(1))
    with pytest.raises(BadMessage, match="wrong session"):
        parties.server.add(
            parties.answering(earlier.holder.opening).encrypt(1, client_identity(1), np.full(5, 1))
        )
    with pytest.raises(BadMessage, match="wrong session"):
        parties.holder.open(earlier.server.total())
    later = dataclasses.replace(SESSION, round=4)
    with pytest.raises(BadMessage, match="wrong round"):
        parties.answering(earlier.holder.opening, session=later)


@BOTH
def test_too_few_senders_abort(protocol):
    codec = holding(50, 5, protocol.bits)
    for sent, minimum in [(0, 0), (1, 0), (2, 3)]:
        channel = protocol.channel(SESSION, codec, Limits(4, minimum))
        for client in range(sent):
            channel.send(client, np.full(5, 1))
        with pytest.raises(Aborted, match="fewer clients sent"):
            channel.total()


def test_a_key_holder_opens_one_total_of_enough_rows_that_the_server_signed():
    parties = Parties(Bfv(), limits=Limits(3, 2))
    for client in range(2):
        parties.server.add(parties.row(client))
    first = parties.server.total()
    for count in (0, 1, 4):
        with pytest.raises(BadMessage, match="wrong number"):
            parties.holder.open(total_of(first, number=count))
    with pytest.raises(BadMessage, match="wrong type"):
        parties.holder.open(parties.row(1))
    unsigned = dataclasses.replace(Total.decode(first), number=3)
    by_another = unsigned.signed(client_identity(0))
    as_a_row = Row(**dataclasses.asdict(unsigned)).signed(office_identity("server"))
    as_a_total = dataclasses.replace(unsigned, signature=as_a_row.signature)
    for forged in (unsigned, by_another, as_a_total):
        with pytest.raises(BadMessage, match="wrong signature: not what the server signed"):
            parties.holder.open(forged.encode())
    parties.server.add(parties.row(2))
    parties.holder.open(first)
    with pytest.raises(BadMessage, match="sent twice"):
        parties.holder.open(parties.server.total())


@BOTH
def test_more_rows_than_the_capacity_are_refused(protocol):
    parties = Parties(protocol)
    for client in range(3):
        parties.server.add(parties.row(client))
    with pytest.raises(BadMessage, match="too many"):
        parties.server.add(parties.row(3))


@BOTH
@pytest.mark.parametrize("value", [51, -51, 2**40, np.iinfo(np.int64).min])
def test_what_is_beyond_the_codec_is_never_encrypted(protocol, value, monkeypatch):
    parties = Parties(protocol)
    row = np.full(5, 50)
    row[3] = value
    monkeypatch.setattr(type(protocol.scheme), "encrypt", None)
    with pytest.raises(ValueError, match="beyond the codec's largest number, 50") as caught:
        parties.client.encrypt(1, client_identity(1), row)
    assert str(abs(int(value))) not in str(caught.value)
    for other in (np.full(4, 1), np.full((1, 5), 1), np.full(5, 1.0)):
        with pytest.raises(ValueError, match="expected int64"):
            parties.client.encrypt(1, client_identity(1), other)


@BOTH
def test_sums_that_do_not_fit_the_bits_are_refused_before_encryption(protocol):
    codec = holding(2 ** (protocol.bits - 1) // 4, 5, protocol.bits)
    protocol.channel(SESSION, codec, Limits(3))
    with pytest.raises(Refused, match=r"secure\.bits"):
        protocol.channel(SESSION, codec, Limits(5))


@pytest.mark.parametrize(
    "protocol, most", [(Bfv(), 3_485_740), (Ckks(), 53_752), (Ckks(bits=28), 1887)], ids=str
)
def test_capacities_beyond_the_noise_are_refused(protocol, most):
    protocol.refuse_limits(Limits(most))
    with pytest.raises(Refused, match=f"at most {most} rows"):
        protocol.refuse_limits(Limits(most + 1))
    with pytest.raises(Refused, match="smaller capacity"):
        protocol.channel(SESSION, holding(2, 5, protocol.bits), Limits(most + 1))


@pytest.mark.parametrize(
    "protocol, bits", [(Bfv, 33), (Bfv, 7), (Ckks, 29), (Ckks, 7)], ids=lambda x: str(x)
)
def test_bits_beyond_the_schemes_are_refused(protocol, bits):
    with pytest.raises(ValueError, match="bits"):
        protocol(bits=bits)


def test_a_ckks_sum_beyond_its_range_is_noticed():
    """Were a limit broken all the same: each row fits, and their sum wraps."""
    parties = Parties(Ckks(), 2048, Limits(3), largest=2**22)
    scheme = parties.protocol.scheme
    rng = np.random.default_rng(1)
    for client in range(3):
        far = rng.integers(2**22, 2**23, 2048)
        block = scheme.encrypt(parties.client._key, far)
        parties.server.add(parties.holding(block, by=client))
    with pytest.raises(Aborted, match="limits were broken"):
        parties.holder.open(parties.server.total())


def test_decrypted_numbers_that_are_not_whole_abort():
    scheme = Ckks().scheme
    keys = scheme.keys()
    with pytest.raises(Aborted, match="not whole"):
        scheme.decrypt(scheme.read(keys, scheme.encrypt(keys, np.array([1.0, 2.4])), 2))


def test_a_sum_that_is_too_large_for_its_rows_is_noticed():
    parties = Parties(Bfv())
    scheme = parties.protocol.scheme
    for client in range(2):
        block = scheme.encrypt(parties.client._key, np.full(5, 51))
        parties.server.add(parties.holding(block, by=client))
    with pytest.raises(Aborted, match="larger than its rows can be"):
        parties.holder.open(parties.server.total())


@BOTH
@pytest.mark.parametrize("length", [1, 4097])
def test_what_a_client_sends_has_the_size_that_is_told(protocol, length):
    parties = Parties(protocol, length)
    sent, opening = len(parties.row(1)), len(parties.holder.opening)
    assert sent == pytest.approx(protocol.upload(parties.codec, 3), rel=2e-3)
    assert opening == pytest.approx(protocol.download(3), rel=1e-3)
    assert len(Row(bytes(32), 1, (b"",) * 3).encode()) == HEADER + 3 * SIZE
    assert opening - len(parties.opening.key) == OPENING - 4 + len(parties.opening.scheme)


def test_bytes_per_parameter_are_as_documented():
    codec = holding(50, 100_000, 24)
    assert Bfv().upload(codec, 10) / 100_000 == pytest.approx(15.4, abs=0.05)
    assert Ckks().upload(codec, 10) / 100_000 == pytest.approx(30.3, abs=0.05)


def test_the_servers_memory_does_not_grow_with_the_cohort():
    """One encrypted sum, and a hash of each ciphertext."""
    session = dataclasses.replace(SESSION, clients=np.arange(20))
    parties = Parties(Bfv(), 4097, Limits(50), session=session)
    for client in range(20):
        parties.server.add(parties.row(client))
    assert len(parties.server._sum) == 2
    assert {len(one) for one in parties.server._hashes} == {32}
    assert len(parties.server._hashes) == 40


def test_without_tenseal_the_protocols_are_refused_with_what_would_work(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(tenseal_library.importlib, "import_module", absent)
    with pytest.raises(Refused, match="pip install tenseal"):
        Bfv().refuse_limits(Limits(3))
    Bfv().refuse_limits(Limits(3, arithmetic=True))


@BOTH
def test_cryptography_sums_what_arithmetic_sums(protocol):
    """Rows through the codec: the same bits with messages and without."""
    sent = torch.nn.functional.normalize(torch.randn(4, 300, dtype=torch.float64), dim=1)
    streams = Streams(1, simulated=True)
    session = dataclasses.replace(SESSION, clients=np.arange(4), streams=streams)
    sums = []
    for arithmetic in (False, True):
        summation = protocol.over(Limits(6, 4, arithmetic))
        total = summation.open(session, 300, Encoding(1.0))
        total.add(np.arange(4), BoundedRows(sent * (1 - 1e-9), 1.0))
        sums.append(total.close())
    assert torch.equal(sums[0].total, sums[1].total)
    assert (sums[0].total - sent.sum(0)).abs().max() < 1e-2
    assert sums[0].bound == sums[1].bound


def test_only_ckks_is_approximate():
    assert Ckks.approximate
    assert not Bfv.approximate


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
    object.__setattr__(wrong, "transformed", not protocol.scheme.transformed)
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
