"""Randomness: named counter-based streams keyed by (stream, round, client).

A draw depends on its key alone, never on what was drawn before, so a result does not change with
the chunk size, the rank or a resume, and two methods can be compared on the same cohorts.

Streams in `PRIVATE` carry the privacy proof, or must not be foreseen by attackers. Unless the run
is a seeded simulation they read the operating system's CSPRNG, and nothing of them is ever
persisted. Those in `KEPT` have to be drawn again after a resume: they follow by SHAKE-256 from a
secret key of 32 such bytes, which lies under private/. Those in `PUBLIC` (initialisation, splits,
shuffling) derive from the run's seed by BLAKE2b (keys) and Philox or a 64-bit mixer (draws). A
stream that nobody listed is refused, so that none is public by an oversight. Every name hashes to
its own key, so no two streams share randomness.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIVATE = frozenset({"cohort", "noise", "rule"})
KEPT = frozenset({"slots", "matrix", "canaries", "candidates"})
PUBLIC = frozenset(
    {
        *("init", "shuffle", "root", "measure", "personal"),  # training
        "compression",  # which part of an update is sent, as everybody repeats it
        *("synthetic", "partition", "shift", "holdout", "sites"),  # simulated data
        *("availability", "dropout", "stragglers"),  # coins that read nobody's data
        *("attack", "inversion", "membership", "property"),  # attackers and what they try
        "outside",  # parts from outside privfed: "outside/..."
    }
)

Words = NDArray[np.uint64]
Reals = NDArray[np.float64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def coins(words: Words, rate: float | Reals) -> NDArray[np.bool_]:
    """Coins that fall True at `rate`, a number or one per word: by the first 53 bits of `words`.

    Of all 2^64 words, True are those below floor(rate 2^53) 2^11, and the product is exact: no coin
    falls True more often than its rate, as a float, and less often by under 2^-53 only.
    """
    below = np.floor(np.clip(rate, 0.0, 1.0) * 2.0**53).astype(np.uint64)
    return np.asarray((words >> np.uint64(11)) < below)


def uniforms(words: Words) -> Reals:
    """Numbers in [0, 1), of the first 53 bits of `words`. To compare with a rate, take `coins`."""
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass(frozen=True)
class Keys:
    """Draws of one (stream, round), or of one stream per client when `clients` is given.

    `seed` None means the operating system's CSPRNG: every call draws afresh. With a seed every
    call repeats the same numbers; take each kind of draw once. A `secret` seed draws by SHAKE-256.
    """

    seed: bytes | None
    clients: Words | None = None
    secret: bool = False
    start: int = 0
    """The place of the first word that `bits` gives."""

    def bits(self, count: int) -> Words:
        """`count` independent uniform 64-bit words."""
        if self.seed is None:
            return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        if self.secret:
            digest = hashlib.shake_256(self.seed).digest(8 * (self.start + count))
            return np.frombuffer(digest, dtype=np.uint64)[self.start :]
        philox = np.random.Philox(key=np.frombuffer(self.seed, dtype=np.uint64))
        philox.advance(self.start // 4)  # it makes four words at a time
        return np.asarray(philox.random_raw(self.start % 4 + count), np.uint64)[self.start % 4 :]

    def beginning(self, place: int) -> Keys:
        """The same, whose first word is that at `place` of these."""
        return replace(self, start=self.start + place)

    def further(self, count: int) -> Words:
        """`count` more words, independent of all that `bits` gives and the same only if seeded."""
        return self.derived(b"further").bits(count)

    def further_at(self, places: NDArray[np.int64]) -> Words:
        """Two more words `[n, 2]` for each of `places` `[n]`, independent of all that `bits` gives.

        If seeded, they follow from the place alone.
        """
        if self.seed is None:
            return self.bits(2 * len(places)).reshape(-1, 2)
        each = (self.derived(b"further/%d" % (self.start + place)) for place in places.tolist())
        return np.stack([keys.bits(2) for keys in each])

    def each(self) -> Iterator[Keys]:
        """The keys of each client by itself."""
        if self.clients is None:
            raise ValueError("these keys name no clients; ask Streams.at for them")
        for client in self.clients:
            yield self.derived(client.tobytes())

    def derived(self, what: bytes) -> Keys:
        """Keys of their own for `what`; of the operating system's, afresh."""
        if self.seed is None:
            return Keys(None)
        seed = hashlib.blake2b(what, key=self.seed, digest_size=16).digest()
        return Keys(seed, None, self.secret)

    def bernoulli(self, rate: float | Reals, count: int) -> NDArray[np.bool_]:
        """`count` independent `coins` of this `rate`, a number or one per coin."""
        return coins(self.bits(count), rate)

    def normal(self, count: int) -> NDArray[np.float64]:
        """`count` standard normals in float64: a random sign, and the inverse CDF of 63 bits."""
        bits = self.bits(count)
        tail = ((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
        signs = np.where(bits & np.uint64(1), 1.0, -1.0)
        from scipy.special import ndtri  # whoever draws no normal numbers starts without it

        return np.asarray(signs * ndtri(np.minimum(tail, 0.5)), dtype=np.float64)

    def unforeseeable(self, count: int) -> Words:
        """`[n, count]` words, row k by AES-256 of client k's own number, under these keys alone.

        Who knows the words of all other clients cannot tell a client's from uniform ones, which
        `per_client` does not promise. Needs keys of a seed.
        """
        if self.clients is None or self.seed is None:
            raise ValueError("these keys name no clients, or have no seed that draws repeat from")
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        blocks = np.zeros((len(self.clients), -(-count // 2), 2), dtype=np.uint64)
        blocks[:, :, 0] = self.clients[:, None]
        blocks[:, :, 1] = np.arange(blocks.shape[1], dtype=np.uint64)
        key = hashlib.blake2b(b"unforeseeable", key=self.seed, digest_size=32).digest()
        # In ECB each block is the image of one number, and no two are the same.
        encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        words = np.frombuffer(encryptor.update(blocks.tobytes()), dtype=np.uint64)
        return words.reshape(len(self.clients), 2 * blocks.shape[1])[:, :count]

    def generator(self) -> np.random.Generator:
        """A NumPy generator for what is neither noise nor cohort. Needs a seeded stream."""
        if self.seed is None:
            raise ValueError("a private stream has no seeded generator; use bits or normal")
        return np.random.Generator(np.random.Philox(key=np.frombuffer(self.seed, np.uint64)))

    def integer(self) -> int:
        """One 63-bit integer, to seed another library's generator."""
        return int(self.bits(1)[0] >> np.uint64(1))

    def per_client(self, count: int, salt: int = 0) -> Words:
        """`[n, count]` words; row k depends on the key, on client k and on `salt` only."""
        if self.clients is None:
            raise ValueError("these keys name no clients; ask Streams.at for them")
        if self.seed is None:
            return self.bits(len(self.clients) * count).reshape(len(self.clients), count)
        root = self.bits(1)[0]
        with np.errstate(over="ignore"):
            rows = _mix(_mix(self.clients + root) + np.uint64(salt) * _GOLDEN)
            columns = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
            return _mix(rows[:, None] + columns)


def _mix(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection that avalanches."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class Streams:
    """All randomness of a run.

    `simulated` derives the private streams from the seed as well. `key` is the run's secret key.
    """

    seed: int
    simulated: bool = False
    key: bytes | None = None

    def at(self, stream: str, round: int = 0, clients: NDArray[np.int64] | None = None) -> Keys:
        """The keys of `stream` in `round`, one per client where `clients` `[n]` is given.

        A name's first part, up to "/", decides whether the stream is private. Raises `ValueError`
        for one that is not listed.
        """
        ids = None if clients is None else clients.astype(np.uint64)
        kind = stream.partition("/")[0]
        if kind not in PRIVATE | KEPT | PUBLIC:
            raise ValueError(
                f"the stream {stream!r} is listed neither as private nor as public; a part from "
                "outside privfed draws public numbers from 'outside/...'"
            )
        if kind in PRIVATE and not self.simulated:
            return Keys(None, ids)
        name = f"privfed|{stream}|{self.seed}|{round}".encode()
        if kind in KEPT and not self.simulated:
            if self.key is None:
                raise ValueError(f"the stream {stream!r} needs the run's kept key")
            return Keys(hashlib.blake2b(name, key=self.key).digest(), ids, secret=True)
        return Keys(hashlib.blake2b(name, digest_size=16).digest(), ids)


_GENERATORS = threading.RLock()
"""Who holds it alone draws from torch's own generators, which all threads of a process share."""


@contextlib.contextmanager
def drawing_alone(devices: Sequence[Any] = ()) -> Iterator[None]:
    """A context that alone draws from torch's generators of the CPU and `devices`.

    Other threads of privfed wait, and the generators are afterwards as they were before.
    """
    import torch

    with _GENERATORS, torch.random.fork_rng(devices=[*devices]):
        yield


def seed_draws(seed: int, device: Any = None) -> None:
    """Seeds torch's generator of the CPU, and that of `device` where it is a GPU.

    `torch.manual_seed` takes 70 times as long, since it also seeds devices that are not in use.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)
