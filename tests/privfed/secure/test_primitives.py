"""The primitives against their standards' own vectors, and what we made of them, frozen."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from privfed.secure.masked.derived_keys import channel_key, pair_key, self_key
from privfed.secure.masked.graph import neighbours
from privfed.secure.masked.messages.roster import Advertise, Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox, Masked, Shares
from privfed.secure.masked.messages.sealed_shares import acknowledged, share_hashes, share_text
from privfed.secure.masked.messages.unmasking import Survivors, Unmask, Vote, Votes
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.primitives import (
    Expander,
    KeyPair,
    LowOrder,
    derive,
    seal,
    signing_key,
    unseal,
    verified,
    wipe,
)

raw = bytes.fromhex


def test_x25519_of_rfc_7748_section_6_1():
    bob = KeyPair(raw("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    alice = raw("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert bob.agree(alice).hex() == shared


@pytest.mark.parametrize(
    "public",
    [
        "00" * 32,
        "01" + "00" * 31,
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    ],
)
def test_keys_of_low_order_are_refused(public):
    with pytest.raises(LowOrder):
        KeyPair(b"k" * 32).agree(raw(public))


def test_hkdf_of_rfc_5869_case_1():
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert derive(b"\x0b" * 22, salt, info).hex() == okm


def test_aes_256_ctr_of_sp_800_38a_and_of_the_known_answers_for_zero_text():
    key = raw("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    ctr = Cipher(algorithms.AES(key), modes.CTR(bytes(range(0xF0, 0x100)))).encryptor()
    text = raw("6bc1bee22e409f96e93d7e117393172a")
    assert ctr.update(text).hex() == "601ec313775789a5b7a7f504bbf3d228"
    # Masks start at a counter of zero: AESAVS, KeySbox for 256 bits.
    known = raw("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
    expander = Expander(4, 32)
    words = expander.zeros()
    expander.apply(words, known)
    assert words.tobytes().hex() == "46f2fb342d6f0ab477476fc501242c5f"


def test_ed25519_of_rfc_8032_case_1():
    key = signing_key(raw("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    public = key.public_key().public_bytes_raw()
    assert public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = raw(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e3970"
        "1cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert key.sign(b"") == signature
    assert verified(public, signature, b"")
    assert not verified(public, signature, b"x")
    assert not verified(b"", signature, b"")


def test_chacha20_poly1305_of_rfc_8439_section_2_8_2():
    key, nonce = bytes(range(0x80, 0xA0)), raw("070000004041424344454647")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, raw("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_what_is_sealed_opens_with_its_key_and_its_purpose_only():
    key, other = b"a" * 32, b"b" * 32
    sealed = seal(key, b"secret", b"from 1 to 2")
    assert unseal(key, sealed, b"from 1 to 2") == b"secret"
    assert unseal(key, sealed, b"from 2 to 1") is None
    assert unseal(other, sealed, b"from 1 to 2") is None
    assert unseal(key, bytes([sealed[0] ^ 1]) + sealed[1:], b"from 1 to 2") is None
    assert unseal(key, b"", b"from 1 to 2") is None


@pytest.mark.parametrize("bits, size", [(8, 2), (16, 2), (17, 4), (32, 4), (33, 8), (62, 8)])
@pytest.mark.parametrize("length", [0, 1, 7, 131_072, 300_001])
def test_masks_cancel_at_every_word_size_and_length(bits, size, length):
    expander = Expander(length, bits)
    words = expander.zeros()
    words += 3
    before = words.copy()
    expander.apply(words, b"k" * 32)
    assert words.nbytes == size * length
    if length > 100:
        assert (words != before).mean() > 0.99
    expander.apply(words, b"k" * 32, subtract=True)
    assert np.array_equal(words, before)


def test_two_key_pairs_of_one_process_agree_once_and_as_if_apart():
    def agreed():
        pairs = [KeyPair(bytes([name]) * 32) for name in b"abc"]
        secrets = [one.agree(two.public) for one in pairs for two in pairs if one is not two]
        return secrets, [len(pair._agreed) for pair in pairs]

    together, left = agreed()
    assert left == [0, 0, 0]
    pair, alone = KeyPair(b"a" * 32), []
    for name in b"bc":
        public = KeyPair(bytes([name]) * 32).public
        alone.append(pair.agree(public))
        assert not pair._agreed
    assert alone == together[:2]
    assert [together[at] for at in (0, 1, 3)] == [together[at] for at in (2, 4, 5)]


def test_a_mask_does_not_depend_on_the_blocks_it_is_made_in():
    whole = Cipher(algorithms.AES(b"k" * 32), modes.CTR(bytes(16))).encryptor()
    expander = Expander(300_001, 32)
    words = expander.zeros()
    expander.apply(words, b"k" * 32)
    assert words.tobytes() == whole.update(bytes(4 * 300_001))


def test_a_wiped_secret_is_gone():
    secret = bytearray(b"secret")
    wipe(secret)
    assert secret == bytes(6)


def test_what_we_derive_and_send_is_frozen():
    """Both sides of a deployment have to agree on every byte of these."""
    context = b"c" * 32

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:16]

    everybody, seed = tuple(range(20)), b"g" * 32
    invitation = Invitation(b"s" * 32, 7, 1, b"m" * 32, 32, 650, b"a" * 32)
    keys = Advertise(context, 5, b"n" * 32, b"a" * 32, b"b" * 32, signature=b"s" * 64)
    sealed, signature = ((3, b"x" * 40), (9, b"y" * 40)), b"s" * 64
    hashes = ((3, b"h" * 32), (9, b"i" * 32))
    shares = Shares(context, 5, b"a" * 32, b"b" * 32, hashes, sealed, signature=signature)
    masked = Masked(context, 5, b"w" * 10, (3,), signature=signature)
    vote = Vote(context, 5, signature)
    roster = Roster(context, (3, 5, 9), (b"1" * 32, b"n" * 32, b"2" * 32), 2, 2, seed, (keys,))
    survivors = Survivors(context, (3, 5))
    unmask = Unmask(context, 5, ((1, 2),), ((3, 2**256),), 1, ((1, 7),), b"h" * 32)
    sent = {
        "invitation": invitation,
        "keys": keys,
        "roster": roster,
        "shares": shares,
        "inbox": Inbox(context, sealed, hashes),
        "masked": masked,
        "survivors": survivors,
        "vote": vote,
        "votes": Votes(context, (vote,), 1),
        "unmask": unmask,
    }
    assert all(decode(encode(message)) == message for message in sent.values())
    found = {
        **{name: digest(encode(message)) for name, message in sent.items()},
        "roster, agreed": digest(roster.agreed()),
        "keys, signed": digest(keys.text),
        "shares, signed": digest(shares.text),
        "masked, signed": digest(masked.text),
        "survivors, signed": digest(survivors.vote_text(roster.agreed())),
        "unmask, signed": digest(unmask.text),
        "shares, sealed": digest(share_text(5, 9, (1, 2**256))),
        "shares, hashed": digest(share_hashes(context, 5, 9, (1, 2**256))),
        "acknowledged": digest(acknowledged(context, 5, hashes)),
        "channel": digest(channel_key(context, b"s" * 32, 9, 4)),
        "self": digest(self_key(context, b"b" * 32)),
        "pair": digest(pair_key(context, b"s" * 32, 9, 4)),
        "graph": digest(repr([neighbours(seed, everybody, 6, me) for me in everybody]).encode()),
    }
    assert pair_key(context, b"s" * 32, 4, 9) == pair_key(context, b"s" * 32, 9, 4)
    assert found == {
        "invitation": "a91b95e6319a82fb",
        "keys": "df71f0c23cebc620",
        "roster": "11496986dd8d56ab",
        "shares": "78f49fdb69dab1c4",
        "inbox": "62214e0e090d3437",
        "masked": "55b4e780fa31bd0c",
        "survivors": "48ff07d47e7b01b1",
        "vote": "39673778ad3be31b",
        "votes": "b3f86a28620a9990",
        "unmask": "cc99b4e287aeda87",
        "roster, agreed": "bd833250c3256c46",
        "keys, signed": "310bae3cc60a0eef",
        "shares, signed": "fdb40961af1e0a64",
        "masked, signed": "8b617b40230a16a7",
        "survivors, signed": "cbbb68b3d540af9a",
        "unmask, signed": "def1d82778bdcc82",
        "shares, sealed": "50823cecf5d8f355",
        "shares, hashed": "f0fcbc20222a6f0a",
        "acknowledged": "2dc956188126b9d2",
        "channel": "345b25e1d0c97b1c",
        "self": "3d31ef5483128da5",
        "pair": "362e44011b1b13e9",
        "graph": "8145ee98bd2916e2",
    }
