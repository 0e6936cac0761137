"""A second client of masked sums, as docs/reference/protocol.md has them: nothing of privfed's.

Complete and circle graphs. Random graphs and noise in layers are left out.
"""

import functools
import hashlib
import math
import secrets
import struct

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FORMAT, PRIME = b"PS4", 2**256 + 297
_BEGIN = ("invitation", "keys", "roster", "message", "commitment", "share", "acknowledged")
LABELS = {name: b"privfed " + name.encode() for name in (*_BEGIN, "survivors")}
LABELS |= {name: name.encode() for name in ("self", "channel", "pair")}
u32 = struct.Struct("<I").pack
value = functools.partial(int.to_bytes, length=33, byteorder="little")
INVITATION, KEYS, ROSTER, SHARES, INBOX, MASKED, SURVIVORS, VOTE, VOTES, UNMASK = range(1, 11)


class Refusal(Exception):
    """What the client does not answer, by the name of the fault; its session has ended."""


def require(holds, fault):
    if not holds:
        raise Refusal(fault)


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        require(count <= len(self.data) - self.at, "wrong length")
        self.at += count
        return self.data[self.at - count : self.at]

    def read(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def records(self, form):
        (count,) = self.read("I")
        return list(struct.iter_unpack("<" + form, self.take(count * struct.calcsize("<" + form))))

    def texts(self):
        (size,) = self.read("I")
        return self.records(f"Q{size}s")


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def u64(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def records(items):
    return u32(len(items)) + b"".join(items)


def texts(pairs):
    size = max((len(text) for _, text in pairs), default=0)
    return u32(size) + records([u64(client) + text for client, text in pairs])


def exchange(private, public):
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refusal("low-order key") from error


def signed_by(public, signature, text):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def share(secret, threshold, count):
    rising = [int.from_bytes(secret, "big"), *map(secrets.randbelow, [PRIME] * (threshold - 1))]
    return [
        sum(number * pow(place, power, PRIME) for power, number in enumerate(rising)) % PRIME
        for place in range(1, count + 1)
    ]


def share_hashes(agreed, dealer, holder, shares):
    start = LABELS["share"] + agreed + u64(dealer, holder)
    each = (start + which.to_bytes(9, "little") + value(one) for which, one in enumerate(shares))
    return b"".join(sha256(text)[:16] for text in each)


def acknowledged(agreed, holder, hashes):
    pairs = [u64(dealer) + u32(len(text)) + text for dealer, text in sorted(hashes.items())]
    return sha256(LABELS["acknowledged"], agreed, u64(holder), *pairs)


def mask(key, length, bits):
    word = max(16, 1 << (bits - 1).bit_length())
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16)))
    stream = cipher.encryptor().update(bytes(length * word // 8))
    return struct.unpack(f"<{length}{'HIQ'[word // 32]}", stream)


def packed(row, bits):
    word = max(16, 1 << (bits - 1).bit_length())
    lanes = word // math.gcd(word, bits)
    size, numbers = len(row) // lanes, [number % 2**bits for number in row]
    columns = [
        sum(numbers[lane * size + at] << (lane * bits) for lane in range(lanes))
        for at in range(size)
    ]
    shifts = range(0, lanes * bits, word)
    words = [(column >> shift) % 2**word for shift in shifts for column in columns]
    rest = sum(each << (at * bits) for at, each in enumerate(numbers[lanes * size :]))
    full = b"".join(each.to_bytes(word // 8, "little") for each in words)
    return full + rest.to_bytes(-(-len(row) * bits // 8) - len(full), "little")


def neighbours(seed, clients, degree, me):
    if degree == len(clients) - 1:
        return [client for client in clients if client != me]
    circle = sorted(clients, key=lambda client: sha256(seed, u64(client)))
    at, half = circle.index(me), degree // 2
    return sorted(circle[(at + step) % len(circle)] for step in range(-half, half + 1) if step)


class SecondClient:
    """Answers invitation, roster, inbox, survivors and votes, as bytes, in this order.

    The invitation has to end in `expected`: all beside the session. `graph` gives degree, threshold
    and the fewest survivors, for a number of clients up to the capacity.
    """

    def __init__(self, me, identity, directory, graph, expected, row):
        self.me, self.identity, self.directory = me, identity, directory
        self.graph, self.expected, self.row = graph, expected, row
        self.bits, self.length = struct.unpack("<2Q", expected[-16:])
        self.step, self.context = 0, b""
        self.nonce, self.seed = secrets.token_bytes(32), secrets.token_bytes(32)
        self.channel, self.mask = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self.public = [key.public_key().public_bytes_raw() for key in (self.channel, self.mask)]

    def handle(self, data):
        try:
            cursor = Cursor(data)
            require(cursor.take(3) == FORMAT, "wrong format")
            require(self.step < 5 and cursor.take(1)[0] == 2 * self.step + 1, "wrong type")
            context = cursor.take(32)
            require(self.context in (b"", context), "wrong session")
            self.context, self.step = context, self.step + 1
            steps = (self.advertise, self.deal, self.masked, self.vote, self.unmask)
            answer = steps[self.step - 1](cursor)
            require(cursor.at == len(data), "wrong length")
        except Refusal:
            self.__dict__ = {"step": 5}
            raise
        return answer

    def answer(self, kind, body):
        return FORMAT + bytes([kind]) + self.context + body

    def signed(self, kind, content, covered=None):
        hashed = sha256(bytes([kind]), self.context, u64(self.me), covered or content)
        signature = self.identity.sign(LABELS["message"] + hashed)
        return self.answer(kind, signature + u64(self.me) + content)

    def advertise(self, cursor):
        body = cursor.take(len(self.expected) + 32)
        require(sha256(LABELS["invitation"], body) == self.context, "wrong session")
        require(body[32:] == self.expected, "wrong sum")
        content = u64(self.me) + self.nonce + b"".join(self.public)
        signature = self.identity.sign(LABELS["keys"] + self.context + content)
        return self.answer(KEYS, content + signature)

    def deal(self, cursor):
        start = cursor.at
        nonces = dict(members := cursor.records("Q32s"))
        degree, threshold, seed = cursor.read("QQ32s")
        common = cursor.data[start : cursor.at]
        keys = cursor.records("Q32s32s32s64s")
        self.agreed = sha256(LABELS["roster"], self.context, common)
        self.clients = [client for client, _ in members]
        self.take_graph(degree, threshold, nonces)
        near = neighbours(seed, self.clients, degree, self.me)
        self.take_keys(near, keys, nonces)
        holders = sorted([*near, self.me]) if self.complete else near
        private = (self.seed, self.mask.private_bytes_raw())
        dealt = [share(secret, threshold, len(self.clients)) for secret in private]
        mine = dict(zip(self.clients, zip(*dealt, strict=True), strict=True))
        self.opened = {self.me: mine[self.me]} if self.complete else {}
        sealed = [(who, self.seal(who, mine[who])) for who in near]
        hashes = [(who, share_hashes(self.agreed, self.me, who, mine[who])) for who in holders]
        commit = LABELS["commitment"] + self.agreed
        first = sha256(commit, self.seed) + sha256(commit) + texts(hashes)
        return self.signed(SHARES, first + texts(sealed), first + sha256(texts(sealed)))

    def take_graph(self, degree, threshold, nonces):
        require(self.clients == sorted(nonces.keys() & self.directory.keys()), "wrong roster")
        require(nonces.get(self.me) == self.nonce, "wrong nonce")
        *given, self.least = self.graph(len(self.clients))
        require([degree, threshold] == given, "wrong threshold")
        self.threshold, self.complete = threshold, degree == len(self.clients) - 1

    def take_keys(self, near, keys, nonces):
        require([sender for sender, *_ in keys] == near, "wrong neighbours")
        public = self.public + [key for _, _, *pair, _ in keys for key in pair]
        require(len(set(public)) == len(public), "duplicate key")
        for sender, nonce, channel, mask_key, signature in keys:
            text = LABELS["keys"] + self.context + u64(sender) + nonce + channel + mask_key
            require(signed_by(self.directory[sender], signature, text), "wrong signature")
            require(nonce == nonces[sender], "wrong nonce")
        self.secrets = {sender: exchange(self.channel, key) for sender, _, key, *_ in keys}
        self.mask_keys = {sender: key for sender, _, _, key, _ in keys}

    def derive(self, secret, label, names=b""):
        return HKDF(SHA256(), 32, salt=self.agreed, info=LABELS[label] + names).derive(secret)

    def seal(self, other, shares):
        way = u64(self.me, other)
        cipher = aead.ChaCha20Poly1305(self.derive(self.secrets[other], "channel", way))
        text = way + b"".join(map(value, shares))
        return cipher.encrypt(bytes(12), text, self.agreed + way)

    def unseal(self, other, sealed):
        way = u64(other, self.me)
        cipher = aead.ChaCha20Poly1305(self.derive(self.secrets[other], "channel", way))
        try:
            text = cipher.decrypt(bytes(12), sealed, self.agreed + way)
        except InvalidTag:
            return None
        shares = tuple(int.from_bytes(text[at : at + 33], "little") for at in (16, 49))
        right = len(text) == 82 and text[:16] == way and max(shares) < PRIME
        return shares if right else None

    def masked(self, cursor):
        sealed, hashes = cursor.texts(), cursor.texts()
        received, self.shared = dict(hashes), dict(sealed).keys()
        known = len(self.shared) == len(sealed) and self.shared <= self.mask_keys.keys()
        require(known and [who for who, _ in hashes] == sorted(self.shared), "wrong senders")
        for sender, text in sealed:
            shares = self.unseal(sender, text)
            if shares and share_hashes(self.agreed, sender, self.me, shares) == received[sender]:
                self.opened[sender] = shares
        self.require_enough(set(self.clients))
        if self.complete:
            received[self.me] = share_hashes(self.agreed, self.me, self.me, self.opened[self.me])
        self.acknowledged = acknowledged(self.agreed, self.me, received)
        complaints = records([u64(who) for who in sorted(self.shared - self.opened.keys())])
        return self.signed(MASKED, u32(0) + complaints + self.masked_row())

    def require_enough(self, clients):
        counted = clients - (self.mask_keys.keys() - self.opened.keys())
        enough = len(self.opened.keys() & clients) >= self.threshold
        require(enough and len(counted) >= self.least, "too few")

    def masked_row(self):
        keys = {self.me: self.derive(self.seed, "self")}
        for other in self.shared:
            secret = exchange(self.mask, self.mask_keys[other])
            keys[other] = self.derive(secret, "pair", u64(*sorted((self.me, other))))
        masks = [self.row]
        for other, key in keys.items():
            words = mask(key, self.length, self.bits)
            masks.append([-word for word in words] if other > self.me else words)
        return packed([sum(each) for each in zip(*masks, strict=True)], self.bits)

    def vote(self, cursor):
        clients = [client for (client,) in cursor.records("Q")]
        require(cursor.read("I") == (0,), "wrong survivors")
        require(clients == sorted(set(clients) & set(self.clients)), "wrong survivors")
        self.near = set(clients) & {self.me, *self.mask_keys}
        require(self.me in self.near and self.near - {self.me} <= self.shared, "wrong survivors")
        self.require_enough(set(clients))
        self.vote_text = LABELS["survivors"] + self.agreed + u64(*clients)
        return self.answer(VOTE, u64(self.me) + self.identity.sign(self.vote_text))

    def unmask(self, cursor):
        votes, _ = cursor.records("Q64s"), cursor.read("Q")  # who is gone is for layers
        voters = self.near if self.complete else self.near - {self.me}
        require(len(dict(votes)) == len(votes) and dict(votes).keys() <= voters, "wrong voters")
        require(len(votes) >= self.threshold, "too few")
        for voter, signature in votes:
            require(signed_by(self.directory[voter], signature, self.vote_text), "inconsistent")
        shares = sorted(self.opened.items())
        seeds = [u64(who) + value(seed) for who, (seed, _) in shares if who in self.near]
        keys = [u64(who) + value(key) for who, (_, key) in shares if who not in self.near]
        content = self.acknowledged + records(seeds) + records(keys) + records([])
        return self.signed(UNMASK, content)
