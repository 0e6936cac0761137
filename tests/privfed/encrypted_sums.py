"""Small homomorphic sums for tests: three parties in one process, and spoiled messages."""

import dataclasses

import numpy as np
import pytest

from privfed.privacy.codec import Codec
from privfed.secure.homomorphic import schemes
from privfed.secure.homomorphic.messages import Opening, Row, Total
from privfed.secure.homomorphic.parties import EncryptingClient, KeyHolder, SummingServer, Terms
from privfed.secure.homomorphic.protocol import Bfv, Ckks, party_directory
from privfed.secure.homomorphic.schemes import DEGREE, BfvScheme
from privfed.secure.identities import client_identity, office_identity
from privfed.secure.limits import Limits
from privfed.secure.summation import Session

THREE = Limits(3)


BOTH = pytest.mark.parametrize("protocol", [Bfv(), Ckks()], ids=["bfv", "ckks"])


SESSION = Session(3, 0, bytes(range(32)), np.arange(10))


def holding(largest, length, bits):
    """Returns a codec whose largest number is `largest`."""
    codec = Codec(np.inf, 1.0, length, bits, reach=largest - 1)
    assert codec.largest == largest
    return codec


def rows(count, codec, seed=0):
    top = codec.largest
    return np.random.default_rng(seed).integers(-top, top, (count, codec.length), endpoint=True)


@dataclasses.dataclass
class Parties:
    """The three parties of a session, opened for rows of entries up to 50, at most three of
    them.
    """

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
        """Returns the opening with changes, signed by the key holder."""
        return (
            dataclasses.replace(self.opening, **changes).signed(office_identity("holder")).encode()
        )

    def row(self, client, value=7):
        return self.client.encrypt(client, client_identity(client), np.full(self.length, value))

    def holding(self, *blocks, by):
        """Returns a row of arbitrary ciphertexts, signed by its client."""
        return Row(self.opening.context, by, blocks).signed(client_identity(by)).encode()


def resigned(message, **changes):
    """Returns a row with changes, signed by the client of its name."""
    row = dataclasses.replace(Row.decode(message), **changes)
    return row.signed(client_identity(row.number)).encode()


def total_of(message, **changes):
    """Returns a total with changes, signed by the server."""
    return (
        dataclasses.replace(Total.decode(message), **changes)
        .signed(office_identity("server"))
        .encode()
    )


def _blocks(message, change):
    return resigned(message, blocks=tuple(change(Row.decode(message).blocks)))


def _forged(message, **changes):
    """Returns a row with changes and without a valid signature."""
    return dataclasses.replace(Row.decode(message), **changes).encode()


def _instead(message, other, at, changed=lambda block: block, of=None):
    """Returns the row with one ciphertext of another row, of block `of` if given, `changed`."""
    copied = changed(Row.decode(other).blocks[at if of is None else of])
    return _blocks(message, lambda own: [*own[:at], copied, *own[at + 1 :]])


def sized(sizes, block):
    """Returns the vector with other sizes before its ciphertext."""
    return bytes([10, len(sizes), *sizes]) + block[2 + block[1] :]


def flipped(message, rng):
    """Yields the message with a flipped bit: in each byte before the ciphertexts, and in 40 of
    all.
    """
    for at in [*range(120), *rng.integers(0, len(message), 40), len(message) - 1]:
        changed = bytearray(message)
        changed[at] ^= 1 << rng.integers(8)
        yield bytes(changed)


def context(scheme, degree=DEGREE, modulus=BfvScheme.modulus, sizes=(54, 55)):
    library = schemes.tenseal()
    if scheme == "bfv":
        return library.context(library.SCHEME_TYPE.BFV, degree, modulus, list(sizes), n_threads=1)
    return library.context(
        library.SCHEME_TYPE.CKKS, degree, coeff_mod_bit_sizes=list(sizes), n_threads=1
    )
