"""The bytes of messages: numbers, lists, texts, headers; and the labels of hashed values."""

import hashlib

FORMAT = b"PS4"
INVITATION, KEYS, ROSTER, SHARES, INBOX, MASKED, SURVIVORS, VOTE, VOTES, UNMASK = range(1, 11)
_HASHED = (
    *("invitation", "keys", "roster", "message", "commitment", "share", "acknowledged"),
    *("masked with", "survivors", "graph", "layer", "layer draws", "layer ties"),
)
LABELS = {name: b"privfed " + name.encode() for name in _HASHED}
LABELS |= {name: name.encode() for name in ("self", "channel", "pair")}


class Refusal(Exception):
    """A fault, by name, that the client does not answer; its session has ended."""


def require(holds, fault):
    if not holds:
        raise Refusal(fault)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def u32(number):
    return number.to_bytes(4, "little")


def u64(*numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def records(items):
    return u32(len(items)) + b"".join(items)


def sized(data):
    return u32(len(data)) + data


def texts(by_client):
    size = max(map(len, by_client.values()), default=0)
    return u32(size) + records([u64(client) + by_client[client] for client in sorted(by_client)])


class Reader:
    """Reads a message from its start."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        require(size <= len(self.data) - self.at, "wrong length")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size=8):
        return int.from_bytes(self.take(size), "little")

    def by_client(self, read, fault):
        """Returns the value that `read` takes for each client, in ascending order."""
        pairs = [(self.number(), read()) for _ in range(self.number(4))]
        clients = [client for client, _ in pairs]
        require(clients == sorted(set(clients)), fault)
        return dict(pairs)

    def clients(self, fault):
        return list(self.by_client(lambda: None, fault))

    def texts(self, fault):
        size = self.number(4)
        return self.by_client(lambda: self.take(size), fault)

    def end(self):
        require(self.at == len(self.data), "wrong length")


def message(kind, context, body):
    return FORMAT + bytes([kind]) + context + body


def opened(data, kind, context=None):
    """Returns the context of a message, and a reader of its body."""
    reader = Reader(data)
    require(reader.take(3) == FORMAT, "wrong format")
    require(reader.take(1) == bytes([kind]), "wrong type")
    session = reader.take(32)
    require(context in (None, session), "wrong session")
    return session, Reader(data[reader.at :])
