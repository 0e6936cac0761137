"""Who has which key of a homomorphic sum, and which openings and sessions are refused."""

import dataclasses

import numpy as np
import pytest
from encrypted_sums import BOTH, SESSION, Parties, context, holding, total_of
from lanes import every_case

from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic import schemes
from privfed.secure.homomorphic.messages import Opening, Row
from privfed.secure.homomorphic.parties import KeyHolder, check_parameters, public_half, read_public
from privfed.secure.homomorphic.protocol import Bfv, Ckks
from privfed.secure.homomorphic.schemes import DEGREE, BfvScheme, CkksScheme
from privfed.secure.identities import client_identity, office_identity
from privfed.secure.summation import Aborted

pytest.importorskip("tenseal")


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
    with pytest.raises(Aborted, match="limits were exceeded"):
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
    with pytest.raises(BadMessage, match="has no public key"):
        read_public(without, Bfv().scheme)


def test_a_symmetric_context_is_no_public_key():
    library = schemes.tenseal()
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
    "byzantine": {"byzantine": 1},
}


@every_case("changed", CONFIGURED)
def test_parties_that_are_configured_differently_refuse_each_other(changed):
    parties, change = Parties(Bfv()), CONFIGURED[changed]
    name = "codec" if hasattr(parties.codec, changed) else "limits"
    terms = {name: dataclasses.replace(getattr(parties.terms, name), **change)}
    for party in (parties.answering, parties.serving):
        party(parties.holder.opening)
        with pytest.raises(BadMessage, match="wrong agreement"):
            party(parties.holder.opening, **terms)


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


@every_case("other", OTHER)
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
