"""Homomorphic sums are exact within their limits, and refused or aborted beyond them."""

import dataclasses

import numpy as np
import pytest
import torch
from encrypted_sums import BOTH, SESSION, Parties, holding, rows, total_of
from lanes import every_case

from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.privacy.mechanism import BoundedRows, Encoding
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic import schemes
from privfed.secure.homomorphic.messages import HEADER, OPENING, SIZE, Row, Total
from privfed.secure.homomorphic.protocol import Bfv, Ckks
from privfed.secure.identities import client_identity, office_identity
from privfed.secure.limits import Limits
from privfed.secure.summation import Aborted

pytest.importorskip("tenseal")


@BOTH
@every_case("length", [1, 4096, 4097, 10000])
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


@every_case(
    "protocol", [Bfv(), Bfv(bits=8), Ckks(), Ckks(bits=28)], ids=lambda p: f"{type(p)}{p.bits}"
)
@every_case("sign", [1, -1])
def test_sums_are_exact_at_the_end_of_their_range(protocol, sign):
    """All alike, which is a single coefficient: where CKKS would wrap first, without a trace."""
    capacity = 3
    codec = holding((2 ** (protocol.bits - 1) - 1) // capacity, 3000, protocol.bits)
    channel = protocol.channel(SESSION, codec, Limits(capacity))
    for client in range(capacity):
        channel.send(client, np.full(3000, sign * codec.largest))
    total, _ = channel.total()
    assert np.array_equal(total, np.full(3000, sign * capacity * codec.largest))


@every_case("protocol, cohort", [(Bfv(), 4000), (Ckks(), 4000), (Ckks(bits=28), 1887)], ids=str)
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


@every_case("bits", [16, 24, 28])
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
        with pytest.raises(BadMessage, match="the message is not what the server signed"):
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
@every_case("value", [51, -51, 2**40, np.iinfo(np.int64).min])
def test_what_is_beyond_the_codec_is_never_encrypted(protocol, value, monkeypatch):
    parties = Parties(protocol)
    row = np.full(5, 50)
    row[3] = value
    monkeypatch.setattr(type(protocol.scheme), "encrypt", None)
    with pytest.raises(ValueError, match=r"beyond the largest number .*, 50") as caught:
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


@every_case(
    "protocol, most", [(Bfv(), 3_485_740), (Ckks(), 53_752), (Ckks(bits=28), 1887)], ids=str
)
def test_capacities_beyond_the_noise_are_refused(protocol, most):
    protocol.refuse_limits(Limits(most))
    with pytest.raises(Refused, match=f"at most {most} rows"):
        protocol.refuse_limits(Limits(most + 1))
    with pytest.raises(Refused, match="smaller capacity"):
        protocol.channel(SESSION, holding(2, 5, protocol.bits), Limits(most + 1))


@every_case("protocol, bits", [(Bfv, 33), (Bfv, 7), (Ckks, 29), (Ckks, 7)], ids=lambda x: str(x))
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
    with pytest.raises(Aborted, match="limits were exceeded"):
        parties.holder.open(parties.server.total())


def test_decrypted_numbers_that_are_not_whole_abort():
    scheme = Ckks().scheme
    keys = scheme.keys()
    with pytest.raises(Aborted, match="not integers"):
        scheme.decrypt(scheme.read(keys, scheme.encrypt(keys, np.array([1.0, 2.4])), 2))


def test_a_sum_that_is_too_large_for_its_rows_is_noticed():
    parties = Parties(Bfv())
    scheme = parties.protocol.scheme
    for client in range(2):
        block = scheme.encrypt(parties.client._key, np.full(5, 51))
        parties.server.add(parties.holding(block, by=client))
    with pytest.raises(Aborted, match="larger than its rows permit"):
        parties.holder.open(parties.server.total())


@BOTH
@every_case("length", [1, 4097])
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

    monkeypatch.setattr(schemes.importlib, "import_module", absent)
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
