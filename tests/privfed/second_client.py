"""A second client of masked sums, written from docs/reference/protocol.md: nothing of privfed's.

Complete and circle graphs. Random graphs and noise in layers are left out.
"""

import hashlib
import math
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FORMAT = b"PS3"
PRIME = 2**256 + 297
_BEGIN = ("invitation", "keys", "roster", "message", "commitment", "share", "acknowledged")
LABELS = {name: b"privfed " + name.encode() for name in (*_BEGIN, "survivors")}
LABELS |= {name: name.encode() for name in ("self", "channel", "pair")}
INVITATION, KEYS, ROSTER, SHARES, INBOX, MASKED, SURVIVORS, VOTE, VOTES, UNMASK = range(1, 11)


class Refusal(Exception):
    """What the client does not answer, by the name of the fault; its session has ended."""


def require(holds: bool, fault: str) -> None:
    if not holds:
        raise Refusal(fault)


@dataclass(frozen=True)
class Sum:
    """What a client knows of a sum before it is invited; `agreement` stands for all settings."""

    round: int
    exchange: int
    model_hash: bytes
    bits: int
    length: int
    agreement: bytes


@dataclass(frozen=True)
class Shape:
    """The graph of a cohort, and the fewest survivors, by settings alone."""

    degree: int
    threshold: int
    least: int


class Cursor:
    """Reads a message from its start, to its end exactly."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        require(count <= len(self.data) - self.at, "wrong length")
        self.at += count
        return self.data[self.at - count : self.at]

    def read(self, form: str) -> tuple:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def records(self, form: str) -> list[tuple]:
        (count,) = self.read("I")
        return list(struct.iter_unpack("<" + form, self.take(count * struct.calcsize("<" + form))))

    def texts(self) -> list[tuple[int, bytes]]:
        (size,) = self.read("I")
        return self.records(f"Q{size}s")

    def end(self) -> None:
        require(self.at == len(self.data), "wrong length")


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def records(items: list[bytes]) -> bytes:
    return u32(len(items)) + b"".join(items)


def texts(pairs: list[tuple[int, bytes]]) -> bytes:
    """Texts of one length, each with a client."""
    size = max((len(text) for _, text in pairs), default=0)
    return u32(size) + records([u64(client) + text for client, text in pairs])


def value(number: int) -> bytes:
    return number.to_bytes(33, "little")


def derive(secret: bytes, agreed: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=agreed, info=purpose).derive(secret)


def exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refusal("low-order key") from error


def signed_by(public: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def share(secret: bytes, threshold: int, places: list[int]) -> dict[int, int]:
    rising = [int.from_bytes(secret, "big")]
    rising += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {
        place: sum(number * pow(place, power, PRIME) for power, number in enumerate(rising)) % PRIME
        for place in places
    }


def share_hashes(agreed: bytes, dealer: int, holder: int, shares: tuple[int, ...]) -> bytes:
    start = LABELS["share"] + agreed + u64(dealer, holder)
    each = (start + which.to_bytes(9, "little") + value(one) for which, one in enumerate(shares))
    return b"".join(sha256(text)[:16] for text in each)


def acknowledged(agreed: bytes, holder: int, hashes: dict[int, bytes]) -> bytes:
    pairs = [u64(dealer) + u32(len(text)) + text for dealer, text in sorted(hashes.items())]
    return sha256(LABELS["acknowledged"], agreed, u64(holder), *pairs)


def word_bits(bits: int) -> int:
    return next(word for word in (16, 32, 64) if bits <= word)


def mask(key: bytes, length: int, bits: int) -> tuple[int, ...]:
    word = word_bits(bits)
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(length * word // 8))
    return struct.unpack(f"<{length}{'HIQ'[word // 32]}", stream)


def packed(row: list[int], bits: int) -> bytes:
    word = word_bits(bits)
    lanes = word // math.gcd(word, bits)
    columns, numbers = len(row) // lanes, [number % 2**bits for number in row]
    lane_words: list[list[bytes]] = [[] for _ in range(lanes * bits // word)]
    for at in range(columns):
        column = sum(numbers[lane * columns + at] << (lane * bits) for lane in range(lanes))
        for lane, words in enumerate(lane_words):
            words.append(((column >> (lane * word)) % 2**word).to_bytes(word // 8, "little"))
    left = numbers[lanes * columns :]
    rest = sum(number << (at * bits) for at, number in enumerate(left))
    full = b"".join(b"".join(words) for words in lane_words)
    return full + rest.to_bytes(-(-len(left) * bits // 8), "little")


def neighbours(seed: bytes, clients: list[int], degree: int, me: int) -> list[int]:
    if degree == len(clients) - 1:
        return [client for client in clients if client != me]
    circle = sorted(clients, key=lambda client: sha256(seed, u64(client)))
    at = circle.index(me)
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    return sorted(circle[(at + step) % len(circle)] for step in steps)


class SecondClient:
    """Answers invitation, roster, inbox, survivors and votes, as bytes, in this order."""

    def __init__(
        self,
        me: int,
        identity: Ed25519PrivateKey,
        directory: Mapping[int, bytes],
        shape: Callable[[int], Shape],
        expected: Sum,
        row: list[int],
    ) -> None:
        self.me, self.identity, self.directory = me, identity, directory
        self.shape, self.expected, self.row = shape, expected, row
        self.step, self.context = 0, b""
        self.nonce, self.seed, self.channel_secret, self.mask_secret = (
            secrets.token_bytes(32) for _ in range(4)
        )
        self.channel = X25519PrivateKey.from_private_bytes(self.channel_secret)
        self.mask = X25519PrivateKey.from_private_bytes(self.mask_secret)

    def handle(self, data: bytes) -> bytes:
        try:
            cursor = Cursor(data)
            require(cursor.take(3) == FORMAT, "wrong format")
            require(self.step < 5 and cursor.take(1)[0] == 2 * self.step + 1, "wrong type")
            context = cursor.take(32)
            require(self.context in (b"", context), "wrong session")
            self.context, self.step = context, self.step + 1
            steps = (self.advertise, self.deal, self.masked, self.vote, self.unmask)
            return steps[self.step - 1](cursor)
        except Refusal:
            self.step = 5
            raise

    def answer(self, kind: int, body: bytes) -> bytes:
        return FORMAT + bytes([kind]) + self.context + body

    def signed(self, kind: int, content: bytes, covered: bytes | None = None) -> bytes:
        """A signed message; what is `covered` is its content, if nothing else is given."""
        said = content if covered is None else covered
        text = LABELS["message"] + sha256(bytes([kind]), self.context, u64(self.me), said)
        return self.answer(kind, self.identity.sign(text) + u64(self.me) + content)

    def advertise(self, cursor: Cursor) -> bytes:
        body = cursor.data[cursor.at :]
        _, model, agreement = (cursor.take(32) for _ in range(3))
        numbers = cursor.read("4Q")
        cursor.end()
        require(sha256(LABELS["invitation"], body) == self.context, "wrong session")
        said = self.expected
        require(numbers == (said.round, said.exchange, said.bits, said.length), "wrong sum")
        require(model == said.model_hash, "wrong model_hash")
        require(agreement == said.agreement, "wrong agreement")
        public = [pair.public_key().public_bytes_raw() for pair in (self.channel, self.mask)]
        content = u64(self.me) + self.nonce + b"".join(public)
        text = LABELS["keys"] + self.context + content
        return self.answer(KEYS, content + self.identity.sign(text))

    def deal(self, cursor: Cursor) -> bytes:
        start = cursor.at
        nonces = dict(members := cursor.records("Q32s"))
        degree, threshold, seed = cursor.read("QQ32s")
        common = cursor.data[start : cursor.at]
        keys = cursor.records("Q32s32s32s64s")
        cursor.end()
        self.agreed = sha256(LABELS["roster"], self.context, common)
        self.clients = [client for client, _ in members]
        self.take_graph(degree, threshold, nonces)
        near = neighbours(seed, self.clients, degree, self.me)
        self.take_keys(near, keys, nonces)
        holders = sorted([*near, self.me]) if self.complete else near
        places = {client: place for place, client in enumerate(self.clients, start=1)}
        at = [places[holder] for holder in holders]
        dealt = [share(secret, threshold, at) for secret in (self.seed, self.mask_secret)]
        mine = {who: (dealt[0][places[who]], dealt[1][places[who]]) for who in holders}
        self.opened = {self.me: mine[self.me]} if self.complete else {}
        sealed = [(who, self.seal(who, mine[who])) for who in near]
        hashes = [(who, share_hashes(self.agreed, self.me, who, mine[who])) for who in holders]
        commit = LABELS["commitment"] + self.agreed
        first = sha256(commit, self.seed) + sha256(commit) + texts(hashes)
        return self.signed(SHARES, first + texts(sealed), first + sha256(texts(sealed)))

    def take_graph(self, degree: int, threshold: int, nonces: dict[int, bytes]) -> None:
        require(self.clients == sorted(nonces) and self.me in nonces, "wrong roster")
        require(nonces.keys() <= self.directory.keys(), "wrong roster")
        require(nonces[self.me] == self.nonce, "wrong nonce")
        self.terms = self.shape(len(self.clients))
        given = (self.terms.degree, self.terms.threshold)
        require((degree, threshold) == given, "wrong threshold")
        self.complete = degree == len(self.clients) - 1

    def take_keys(self, near: list[int], keys: list[tuple], nonces: dict[int, bytes]) -> None:
        require([sender for sender, *_ in keys] == near, "wrong neighbours")
        public = [pair.public_key().public_bytes_raw() for pair in (self.channel, self.mask)]
        public += [key for _, _, *pair, _ in keys for key in pair]
        require(len(set(public)) == len(public), "duplicate key")
        for sender, nonce, channel, mask_key, signature in keys:
            text = LABELS["keys"] + self.context + u64(sender) + nonce + channel + mask_key
            require(signed_by(self.directory[sender], signature, text), "wrong signature")
            require(nonce == nonces[sender], "wrong nonce")
        self.secrets = {sender: exchange(self.channel, key) for sender, _, key, *_ in keys}
        self.mask_keys = {sender: key for sender, _, _, key, _ in keys}

    def channel_key(self, other: int, way: bytes) -> bytes:
        return derive(self.secrets[other], self.agreed, LABELS["channel"] + way)

    def seal(self, other: int, shares: tuple[int, ...]) -> bytes:
        way = u64(self.me, other)
        text = way + b"".join(map(value, shares))
        return ChaCha20Poly1305(self.channel_key(other, way)).encrypt(
            bytes(12), text, self.agreed + way
        )

    def unseal(self, other: int, sealed: bytes) -> tuple[int, ...] | None:
        way = u64(other, self.me)
        cipher = ChaCha20Poly1305(self.channel_key(other, way))
        try:
            text = cipher.decrypt(bytes(12), sealed, self.agreed + way)
        except InvalidTag:
            return None
        if len(text) != 82 or text[:16] != way:
            return None
        shares = tuple(int.from_bytes(text[at : at + 33], "little") for at in (16, 49))
        return shares if max(shares) < PRIME else None

    def masked(self, cursor: Cursor) -> bytes:
        sealed, hashes = cursor.texts(), cursor.texts()
        cursor.end()
        self.shared = {sender for sender, _ in sealed}
        known = len(self.shared) == len(sealed) and self.shared <= self.mask_keys.keys()
        require(known and [who for who, _ in hashes] == sorted(self.shared), "wrong senders")
        received = dict(hashes)
        for sender, text in sealed:
            shares = self.unseal(sender, text)
            if shares and share_hashes(self.agreed, sender, self.me, shares) == received[sender]:
                self.opened[sender] = shares
        self.require_enough(set(self.clients))
        if self.complete:
            mine = self.opened[self.me]
            received[self.me] = share_hashes(self.agreed, self.me, self.me, mine)
        self.acknowledged = acknowledged(self.agreed, self.me, received)
        complaints = records([u64(who) for who in sorted(self.shared - self.opened.keys())])
        return self.signed(MASKED, u32(0) + complaints + self.masked_row())

    def require_enough(self, clients: set[int]) -> None:
        """Who is only named is not counted."""
        counted = clients - (self.mask_keys.keys() - self.opened.keys())
        enough = len(self.opened.keys() & clients) >= self.terms.threshold
        require(enough and len(counted) >= self.terms.least, "too few")

    def masked_row(self) -> bytes:
        length, bits = self.expected.length, self.expected.bits
        keys = [(1, derive(self.seed, self.agreed, LABELS["self"]))]
        for other in self.shared:
            purpose = LABELS["pair"] + u64(min(self.me, other), max(self.me, other))
            secret = exchange(self.mask, self.mask_keys[other])
            keys.append((-1 if other > self.me else 1, derive(secret, self.agreed, purpose)))
        masks = [(sign, mask(key, length, bits)) for sign, key in keys]
        row = [
            number + sum(sign * words[at] for sign, words in masks)
            for at, number in enumerate(self.row)
        ]
        return packed(row, bits)

    def vote(self, cursor: Cursor) -> bytes:
        clients = [client for (client,) in cursor.records("Q")]
        require(cursor.read("I") == (0,), "wrong survivors")
        cursor.end()
        require(clients == sorted(set(clients) & set(self.clients)), "wrong survivors")
        self.near = set(clients) & {self.me, *self.mask_keys}
        require(self.me in self.near and self.near - {self.me} <= self.shared, "wrong survivors")
        self.require_enough(set(clients))
        self.vote_text = LABELS["survivors"] + self.agreed + u64(*clients)
        return self.answer(VOTE, u64(self.me) + self.identity.sign(self.vote_text))

    def unmask(self, cursor: Cursor) -> bytes:
        votes = cursor.records("Q64s")
        cursor.read("Q")  # how many are gone: of layers of noise
        cursor.end()
        voters = self.near if self.complete else self.near - {self.me}
        require(len(dict(votes)) == len(votes) and dict(votes).keys() <= voters, "wrong voters")
        require(len(votes) >= self.terms.threshold, "too few")
        for voter, signature in votes:
            agrees = signed_by(self.directory[voter], signature, self.vote_text)
            require(agrees, "inconsistent")
        shares = sorted(self.opened.items())
        seeds = [u64(who) + value(seed) for who, (seed, _) in shares if who in self.near]
        keys = [u64(who) + value(key) for who, (_, key) in shares if who not in self.near]
        content = self.acknowledged + u64(0) + records(seeds) + records(keys) + records([])
        return self.signed(UNMASK, content)
