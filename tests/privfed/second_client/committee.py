"""Derivations, shares and samples of a committee's clients, from docs/reference/protocol.md."""

import hmac
from math import floor

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from second_client.arithmetic import PRIME, mask, packed
from second_client.encoding import sha256, u64

LEAF = 16


def derived(salt, secret, label, *clients):
    """Returns D(secret, label | clients), with this salt."""
    info = b"committee " + label + u64(*clients)
    return HKDF(SHA256(), 32, salt=salt, info=info).derive(secret)


def book_hash(run, cards):
    """Returns the hash of cards (client, public key, nonce)."""
    each = (u64(client) + public + nonce for client, public, nonce in sorted(cards))
    return sha256(b"privfed key book", run, *each)


def exchange_secret(run_secret, round, exchange):
    """Returns the secret of an exchange of a round, by hashes from two clients' run secret."""
    link = run_secret
    for _ in range(round):
        link = _linked("round", link)
    link = _linked("exchanges", link)
    for _ in range(exchange):
        link = _linked("next", link)
    return _linked("exchange", link)


def _linked(label, secret):
    return sha256(b"privfed committee " + label.encode() + b" ", secret)


def number(key, which):
    """Returns the number that a member with this key derives for a secret."""
    return int.from_bytes(hmac.digest(key, u64(which), "sha256"), "little")


def dealt(agreed, dealer, secrets, keys, threshold):
    """Returns roots, corrections and commitments."""
    corrections, members = b"", range(1, len(keys) + 1)
    for which, secret in enumerate(secrets):
        fixed = {0: int.from_bytes(secret, "big")}
        fixed |= {place: number(keys[place - 1], which) for place in range(1, threshold)}
        for place in range(threshold, len(keys) + 1):
            correction = (interpolated(fixed, place) - number(keys[place - 1], which)) % PRIME
            corrections += correction.to_bytes(33, "little")
    roots = (tree(agreed, dealer, at, keys[at - 1], len(secrets))[-1][0] for at in members)
    texts = (u64(dealer, which) + secret for which, secret in enumerate(secrets))
    return b"".join(roots), corrections, b"".join(_short("secret", agreed, text) for text in texts)


def interpolated(values, at):
    """Returns the polynomial through `values` by place, at another place."""
    total = 0
    for place, value in values.items():
        above = below = 1
        for other in values:
            if other != place:
                above, below = above * (at - other), below * (place - other)
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def tree(agreed, dealer, place, key, count):
    """Returns the levels of a member's tree for a dealer of `count` secrets, its leaves first."""
    drawn = (number(key, which).to_bytes(32, "little") for which in range(count))
    level = [
        _short("number", agreed, u64(dealer, place, which) + text)
        for which, text in enumerate(drawn)
    ]
    while len(level) & (len(level) - 1):
        level.append(bytes(LEAF))
    levels = [level]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [_short("node", left, right) for left, right in pairs]
        levels.append(level)
    return levels


def proof(levels, opened):
    """Returns the sibling hashes that do not follow from the opened leaves."""
    text, places = b"", set(opened)
    for level in levels[:-1]:
        text += b"".join(level[at ^ 1] for at in sorted(places) if at ^ 1 not in places)
        places = {at // 2 for at in places}
    return text


def _short(label, *parts):
    return sha256(b"privfed " + label.encode(), *parts)[:LEAF]


def masked(agreed, me, row, bits, seeds):
    """Returns a row under masks from `seeds` by client, including the client's own."""
    total = list(row)
    for other, seed in seeds.items():
        sign = -1 if other > me else 1
        added = mask(derived(agreed, seed, b"mask"), len(row), bits)
        total = [number + sign * word for number, word in zip(total, added, strict=True)]
    return packed(total, bits)


def committee(clients, expected, threshold, colluders, least):
    """Returns members, T, fewest survivors and colluders."""
    corrupt = floor(colluders * max(clients, expected) + 1e-9)

    def lost(count):
        return floor((1 - threshold) * count + 1e-9)

    def quorum(members):
        return max((members + corrupt) // 2 + 1, corrupt + 2)

    fits = (m for m in range(min(least, clients), clients) if quorum(m) <= m - lost(m))
    members = next(fits, clients)
    return [members, quorum(members), max(clients - lost(clients), corrupt + 2), corrupt]


def seats(round, exchange, clients, members):
    """Returns the members of the committee."""
    start = b"privfed committee" + u64(round, exchange)
    return sorted(sorted(clients, key=lambda client: sha256(start, u64(client)))[:members])
