"""The primitives against their standards' own vectors."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from lanes import every_case

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


@every_case(
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


@every_case("bits, size", [(8, 2), (16, 2), (17, 4), (32, 4), (33, 8), (62, 8)])
@every_case("length", [0, 1, 7, 131_072, 300_001])
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
