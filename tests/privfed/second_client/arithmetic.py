"""Keys, sealed texts, signatures, shares, masks and packed rows."""

import math
import secrets

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from second_client.encoding import LABELS, Refusal, sha256, sized, u64

PRIME = 2**256 + 297


def agreed_secret(private, public):
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refusal("low-order key") from error


def derive(agreed, secret, label, *clients):
    """Returns D(secret, label | clients), with the roster's hash as salt."""
    return HKDF(SHA256(), 32, salt=agreed, info=LABELS[label] + u64(*clients)).derive(secret)


def seal(key, text, bound_to):
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, bound_to)


def unseal(key, sealed, bound_to):
    """Returns the text; empty if it does not open."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, bound_to)
    except InvalidTag:
        return b""


def signed_by(public, signature, text):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def polynomial(secret, threshold):
    """Returns coefficients; the first one is the secret."""
    return [int.from_bytes(secret, "big"), *map(secrets.randbelow, [PRIME] * (threshold - 1))]


def share(coefficients, place):
    """Returns the polynomial's value, as transmitted `[33]`."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value.to_bytes(33, "little")


def is_share(value):
    return int.from_bytes(value, "little") < PRIME


def share_hashes(agreed, dealer, holder, shares):
    start = LABELS["share"] + agreed + u64(dealer, holder)
    every = (sha256(start, at.to_bytes(9, "little"), value) for at, value in enumerate(shares))
    return b"".join(text[:16] for text in every)


def acknowledged(agreed, holder, hashes):
    pairs = [u64(dealer) + sized(text) for dealer, text in sorted(hashes.items())]
    return sha256(LABELS["acknowledged"], agreed, u64(holder), *pairs)


def commitment(agreed, secret):
    return sha256(LABELS["commitment"], agreed, secret)


def key_stream(key, size, counter=0):
    cipher = Cipher(algorithms.AES256(key), modes.CTR(counter.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(size))


def numbers(data, size):
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def width(bits):
    return next(word for word in (16, 32, 64) if word >= bits)


def mask(key, length, bits):
    size = width(bits) // 8
    return numbers(key_stream(key, size * length), size)


def packed(row, bits):
    word = width(bits)
    lanes = word // math.gcd(word, bits)
    columns, words = len(row) // lanes, lanes * bits // word
    inside, rest = row[: lanes * columns], row[lanes * columns :]
    wide = [_joined(inside[at::columns], bits) for at in range(columns)]
    parts = [(number >> (word * lane)) % 2**word for lane in range(words) for number in wide]
    full = b"".join(part.to_bytes(word // 8, "little") for part in parts)
    return full + _joined(rest, bits).to_bytes(-(-len(rest) * bits // 8), "little")


def _joined(row, bits):
    return sum((number % 2**bits) << (at * bits) for at, number in enumerate(row))
