"""Homomorphic sums: exact, by a server that cannot read, within limits that are kept."""

import dataclasses

import numpy as np
import pytest
import torch

from privfed.errors import Refused
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.secure import homomorphic_parameters as parameters
from privfed.secure.codec import Codec
from privfed.secure.homomorphic import (
    Bfv,
    Ckks,
    EncryptingClient,
    KeyHolder,
    Opening,
    Row,
    SummingServer,
    Total,
)
from privfed.secure.homomorphic_parameters import DEGREE, read_public
from privfed.secure.limits import Limits
from privfed.secure.messages import BadMessage
from privfed.secure.summation import Aborted, Session
from privfed.streams import Streams

pytest.importorskip("tenseal")
THREE = Limits(3)
BOTH = pytest.mark.parametrize("protocol", [Bfv(), Ckks()], ids=["bfv", "ckks"])
SESSION = Session(3, 0, bytes(range(32)))


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

    def __post_init__(self):
        self.codec = holding(self.largest, self.length, self.protocol.bits)
        self.holder = KeyHolder(SESSION, self.protocol.scheme, self.codec, self.limits)
        self.client = self.answering(self.holder.opening)
        self.server = SummingServer(self.holder.opening, self.limits)

    def answering(self, opening, codec=None, session=SESSION):
        name = self.protocol.scheme.name
        return EncryptingClient(opening, codec or self.codec, session, name)

    def row(self, client, value=7):
        return self.client.encrypt(client, np.full(self.length, value))


@BOTH
@pytest.mark.parametrize("length", [1, 4096, 4097, 10000])
def test_sums_are_exact(protocol, length):
    largest = (2 ** (protocol.bits - 1) - 1) // 5
    codec = holding(largest, length, protocol.bits)
    sent = rows(4, codec)
    sent[:, 0] = [largest, largest, -largest, 0]
    channel = protocol.channel(SESSION, codec, Limits(5))
    for client, row in enumerate(sent):
        channel.send(10 * client, row)
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
    parties = Parties(protocol, 2048, Limits(cohort), codec.largest)
    sent = rows(100, codec)
    sent[:, 0], sent[:, 1] = codec.largest, -codec.largest
    messages = [parties.client.encrypt(0, row) for row in sent]
    expected = np.zeros(2048, dtype=np.int64)
    for client in range(cohort):
        row = dataclasses.replace(Row.decode(messages[client % 100]), number=client)
        parties.server.add(row.encode())
        expected += sent[client % 100]
    total, survivors = parties.holder.open(parties.server.total())
    assert survivors == cohort
    assert np.array_equal(total, expected)
    assert total[0] == codec.largest * cohort


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
    assert np.abs(error).max() < 0.25 * np.sqrt(100 / scheme.most)
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
    theirs = dataclasses.replace(Total.decode(message), context=other.holder._opening.context)
    with pytest.raises(Aborted, match="limits were broken"):
        other.holder.open(theirs.encode())
    assert parties.holder.open(message)[0].tolist() == [14] * 5


@BOTH
def test_a_context_with_the_secret_key_is_refused_by_everybody_else(protocol):
    parties = Parties(protocol)
    opening = Opening.decode(parties.holder.opening)
    leaked = parties.holder._keys.serialize(save_secret_key=True)
    told = dataclasses.replace(opening, key=leaked).encode()
    with pytest.raises(ValueError, match="only the key holder"):
        SummingServer(told, parties.limits)
    with pytest.raises(ValueError, match="only the key holder"):
        parties.answering(told)


def test_the_public_half_has_no_key_but_the_public_one():
    keys = Bfv().scheme.keys()
    assert keys.has_secret_key()
    assert len(parameters.public_half(keys)) < len(keys.serialize(save_secret_key=True)) - 60_000
    read = parameters.read_public(parameters.public_half(keys))
    assert read.has_public_key()
    without = keys.serialize(save_public_key=False, save_relin_keys=False)
    with pytest.raises(BadMessage, match="without one"):
        parameters.read_public(without)


@BOTH
def test_equal_rows_have_different_ciphertexts(protocol):
    parties = Parties(protocol)
    first, second = (Row.decode(parties.row(1)) for _ in range(2))
    assert first.context == second.context
    assert first.blocks != second.blocks


@BOTH
def test_no_two_sessions_share_a_key_or_a_context(protocol):
    first, second = (Parties(protocol).holder._opening for _ in range(2))
    assert first.key != second.key
    assert first.context != second.context
    assert first.nonce != second.nonce


def _readdressed(message, **changes):
    return dataclasses.replace(Row.decode(message), **changes).encode()


def _blocks(message, change):
    return _readdressed(message, blocks=tuple(change(Row.decode(message).blocks)))


FAULTS = {
    "empty": (lambda p, m: b"", "wrong length"),
    "of another format": (lambda p, m: b"XX" + m[2:], "wrong format"),
    "an opening": (lambda p, m: p.holder.opening, "wrong type"),
    "truncated": (lambda p, m: m[:-1], "wrong length"),
    "too long": (lambda p, m: m + b"\0", "wrong length"),
    "of another session": (lambda p, m: Parties(p.protocol).row(9), "wrong session"),
    "of another context": (lambda p, m: _readdressed(m, context=bytes(32)), "wrong session"),
    "the same client": (lambda p, m: p.row(1), "sent twice"),
    "too few ciphertexts": (lambda p, m: _blocks(m, lambda b: b[:-1]), "wrong length"),
    "too many ciphertexts": (lambda p, m: _blocks(m, lambda b: b + b[:1]), "wrong length"),
    "ciphertexts swapped": (lambda p, m: _blocks(m, reversed), "wrong length"),
    "no ciphertexts": (lambda p, m: _blocks(m, lambda b: [b"", b""]), "wrong length"),
    "text": (lambda p, m: _blocks(m, lambda b: [b"x" * 60_000] * 2), "wrong length|no cipher"),
    "a cut ciphertext": (lambda p, m: _blocks(m, lambda b: [b[0][:-99], b[1]]), "no ciphertext"),
    "oversized": (lambda p, m: _blocks(m, lambda b: [b[0] * 2, b[1]]), "wrong length"),
    "of another key": (
        lambda p, m: _readdressed(
            (Parties(Ckks() if p.protocol.scheme.name == "bfv" else Bfv(), p.length)).row(9),
            context=p.holder._opening.context,
        ),
        "no ciphertext|wrong length",
    ),
}


@BOTH
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_messages_are_refused_by_name_and_the_sum_goes_on(protocol, fault):
    parties = Parties(protocol, protocol.scheme.slots + 1)
    spoiled, named = FAULTS[fault]
    parties.server.add(parties.row(1, 20))
    with pytest.raises(BadMessage, match=named) as caught:
        parties.server.add(spoiled(parties, parties.row(9)))
    assert isinstance(caught.value, Aborted)
    parties.server.add(parties.row(2, -50))
    total, survivors = parties.holder.open(parties.server.total())
    assert survivors == 2
    assert np.array_equal(total, np.full(parties.length, -30))


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


def test_changed_bytes_never_crash_the_server():
    parties = Parties(Bfv(), largest=2**20)
    message = parties.row(1)
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(0, 250, 400):
        server = SummingServer(parties.holder.opening, parties.limits)
        changed = bytearray(message)
        changed[at] ^= 1 << rng.integers(8)
        try:
            server.add(bytes(changed))
        except BadMessage:
            refused += 1
    assert refused > 100


@BOTH
def test_openings_that_do_not_fit_are_refused(protocol):
    parties = Parties(protocol)
    opening = parties.holder.opening
    for other, name in (
        (holding(50, 6, protocol.bits), "length"),
        (holding(50, 5, protocol.bits - 1), "bits"),
    ):
        with pytest.raises(BadMessage, match=f"wrong {name}"):
            parties.answering(opening, other)
    for change in ({"round": 9}, {"exchange": 3}, {"model_hash": b"other"}):
        with pytest.raises(BadMessage, match=f"wrong {next(iter(change)).split('_')[0]}"):
            parties.answering(opening, session=dataclasses.replace(SESSION, **change))
    swapped = Ckks(bits=20) if protocol.scheme.name == "bfv" else Bfv(bits=20)
    with pytest.raises(BadMessage, match="wrong scheme"):
        parties.answering(Parties(swapped).holder.opening)
    for spoiled in (opening[:-1], opening + b"\0"):
        with pytest.raises(BadMessage, match="wrong length"):
            SummingServer(spoiled, parties.limits)
    read = Opening.decode(opening)
    assert read.encode() == opening
    with pytest.raises(BadMessage, match="wrong scheme"):
        Opening.decode(dataclasses.replace(read, scheme=b"rot13").encode())
    with pytest.raises(BadMessage, match="no public key"):
        SummingServer(dataclasses.replace(read, key=b"").encode(), parties.limits)


@BOTH
def test_too_few_senders_abort(protocol):
    codec = holding(50, 5, protocol.bits)
    for sent, minimum in [(0, 0), (1, 0), (2, 3)]:
        channel = protocol.channel(SESSION, codec, Limits(4, minimum))
        for client in range(sent):
            channel.send(client, np.full(5, 1))
        with pytest.raises(Aborted, match="fewer clients sent"):
            channel.total()


def test_a_key_holder_opens_one_total_of_enough_rows():
    parties = Parties(Bfv(), limits=Limits(3, 2))
    single = dataclasses.asdict(Row.decode(parties.row(1)))
    for count in (0, 1, 4):
        with pytest.raises(BadMessage, match="wrong number"):
            parties.holder.open(Total(**{**single, "number": count}).encode())
    with pytest.raises(BadMessage, match="wrong type"):
        parties.holder.open(parties.row(1))
    for client in range(2):
        parties.server.add(parties.row(client))
    first = parties.server.total()
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
        parties.client.encrypt(1, row)
    assert str(abs(int(value))) not in str(caught.value)
    for other in (np.full(4, 1), np.full((1, 5), 1), np.full(5, 1.0)):
        with pytest.raises(ValueError, match="expected int64"):
            parties.client.encrypt(1, other)


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
    scheme, context = parties.protocol.scheme, parties.holder._opening.context
    rng = np.random.default_rng(1)
    for client in range(3):
        far = rng.integers(2**22, 2**23, 2048)
        block = scheme.encrypt(parties.client._key, far)
        parties.server.add(Row(context, client, (block,)).encode())
    with pytest.raises(Aborted, match="limits were broken"):
        parties.holder.open(parties.server.total())


def test_decrypted_numbers_that_are_not_whole_abort():
    scheme = Ckks().scheme
    keys = scheme.keys()
    with pytest.raises(Aborted, match="not whole"):
        scheme.decrypt(scheme.read(keys, scheme.encrypt(keys, np.array([1.0, 2.4])), 2))


def test_a_sum_that_is_too_large_for_its_rows_is_noticed():
    parties = Parties(Bfv())
    scheme, context = parties.protocol.scheme, parties.holder._opening.context
    for client in range(2):
        block = scheme.encrypt(parties.client._key, np.full(5, 51))
        parties.server.add(Row(context, client, (block,)).encode())
    with pytest.raises(Aborted, match="larger than its rows can be"):
        parties.holder.open(parties.server.total())


@BOTH
@pytest.mark.parametrize("length", [1, 4097])
def test_what_a_client_sends_has_the_size_that_is_told(protocol, length):
    parties = Parties(protocol, length)
    sent = len(parties.row(1))
    assert sent == pytest.approx(protocol.upload(parties.codec, 3), rel=2e-3)


def test_bytes_per_parameter_are_as_documented():
    codec = holding(50, 100_000, 24)
    assert Bfv().upload(codec, 10) / 100_000 == pytest.approx(15.4, abs=0.05)
    assert Ckks().upload(codec, 10) / 100_000 == pytest.approx(30.3, abs=0.05)


def test_the_servers_memory_does_not_grow_with_the_cohort():
    parties = Parties(Bfv(), 4097, Limits(50))
    for client in range(20):
        parties.server.add(parties.row(client))
    assert len(parties.server._sum) == 2


def test_without_tenseal_the_protocols_are_refused_with_what_would_work(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(parameters.importlib, "import_module", absent)
    with pytest.raises(Refused, match="pip install tenseal"):
        Bfv().refuse_limits(Limits(3))
    Bfv().refuse_limits(Limits(3, arithmetic=True))


@BOTH
def test_cryptography_sums_what_arithmetic_sums(protocol):
    """Rows through the codec: the same bits with messages and without."""
    sent = torch.nn.functional.normalize(torch.randn(4, 300, dtype=torch.float64), dim=1)
    session = dataclasses.replace(SESSION, streams=Streams(1, simulated=True))
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
    key = read_public(Opening.decode(parties.holder.opening).key)
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
