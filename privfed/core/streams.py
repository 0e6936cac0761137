"""Random numbers: named counter-based streams, keyed by (stream, round, client).

A draw depends on its key alone, never on earlier draws. A result therefore does not change with the
chunk size, the rank or a resume, and two methods can be compared on the same cohorts.

Streams in `PUBLIC` (initialisation, splits, shuffling) derive from the run's seed by BLAKE2b (keys)
and Philox or a 64-bit mixer (draws). In a seeded simulation, so do all others. Otherwise streams in
`PRIVATE`, which support the privacy proof or must be unpredictable to attackers, read the operating
system's CSPRNG (`Keys.bits`), and their numbers are never stored. Streams in `SAVED_STREAMS` are
drawn again after a resume: they derive by SHAKE-256 from a secret key of 32 bytes from the
operating system, stored under private/. An unlisted stream is refused, so that none becomes public
by an oversight. Every name hashes to its own key, so no two streams share randomness.
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
SAVED_STREAMS = frozenset({"slots", "matrix", "canaries", "candidates"})
PUBLIC = frozenset(
    {
        *("init", "shuffle", "root", "measure", "personal"),  # training
        "compression",  # which part of an update is sent; public, so that all parties repeat it
        *("synthetic", "partition", "shift", "holdout", "sites"),  # simulated data
        *("availability", "dropout", "stragglers"),  # Bernoulli draws that read no client's data
        *("attack", "inversion", "membership", "property"),  # simulated attacks
        "outside",  # parts from outside privfed: "outside/..."
    }
)

Words = NDArray[np.uint64]
Reals = NDArray[np.float64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_EXPANDED = 64
"""Number of words from which a key from the operating system is expanded."""


def bernoulli(words: Words, rate: float | Reals) -> NDArray[np.bool_]:
    """Returns Bernoulli(`rate`) draws, computed from the first 53 bits of each of `words`.

    A word below floor(rate 2^53) 2^11 (an exact product) gives True, so the probability of True is
    at most the rate as a float, and lower by less than 2^-53.

    Args:
      words: independent uniform 64-bit words, shape [n].
      rate: probability of True, a number or one per word.
    """
    below = np.floor(np.clip(rate, 0.0, 1.0) * 2.0**53).astype(np.uint64)
    return np.asarray((words >> np.uint64(11)) < below)


def uniforms(words: Words) -> Reals:
    """Returns numbers in [0, 1) from 53 bits of each of `words`.

    For decisions with a given probability, use `bernoulli`.
    """
    return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass(frozen=True)
class Keys:
    """The random numbers of one (stream, round), or of one stream per client if `clients` is given.

    With `seed` None, every call draws new numbers from the operating system's CSPRNG; many at once
    are AES-256-CTR under a new key from it (`_fresh`). With a seed, every call of a method returns
    the same numbers, so call each method once. A `secret` seed is expanded by SHAKE-256.
    """

    seed: bytes | None
    clients: Words | None = None
    secret: bool = False
    start: int = 0
    """The index of the first word that `bits` returns."""

    def bits(self, count: int) -> Words:
        """Returns `count` independent uniform 64-bit words."""
        if self.seed is None:
            return _fresh(count)
        if self.secret:
            digest = hashlib.shake_256(self.seed).digest(8 * (self.start + count))
            return np.frombuffer(digest, dtype=np.uint64)[self.start :]
        philox = np.random.Philox(key=np.frombuffer(self.seed, dtype=np.uint64))
        philox.advance(self.start // 4)  # Philox makes four words at a time
        return np.asarray(philox.random_raw(self.start % 4 + count), np.uint64)[self.start % 4 :]

    def beginning(self, place: int) -> Keys:
        """Returns keys whose `bits` begin at index `place`, from 0, of these keys' `bits`."""
        return replace(self, start=self.start + place)

    def further(self, count: int) -> Words:
        """Returns `count` uniform 64-bit words independent of `bits`; repeatable only if seeded."""
        return self.derived(b"further").bits(count)

    def further_at(self, places: NDArray[np.int64]) -> Words:
        """Returns two words for each index in `places` `[n]`, as `[n, 2]`, independent of `bits`.

        If the keys are seeded, the two words of an index depend on the keys and the index alone.
        """
        if self.seed is None:
            return self.bits(2 * len(places)).reshape(-1, 2)
        each = (self.derived(b"further/%d" % (self.start + place)) for place in places.tolist())
        return np.stack([keys.bits(2) for keys in each])

    def each(self) -> Iterator[Keys]:
        """Yields one `Keys` for each of `clients`, in order, independent of one another.

        Raises `ValueError` without clients.
        """
        if self.clients is None:
            raise ValueError("these keys name no clients; pass clients to Streams.at")
        for client in self.clients:
            yield self.derived(client.tobytes())

    def derived(self, what: bytes) -> Keys:
        """Returns keys independent of these and of those derived with another `what`.

        Keys without a seed remain without one.
        """
        if self.seed is None:
            return Keys(None)
        seed = hashlib.blake2b(what, key=self.seed, digest_size=16).digest()
        return Keys(seed, None, self.secret)

    def bernoulli(self, rate: float | Reals, count: int) -> NDArray[np.bool_]:
        """Returns `count` independent Bernoulli draws, with one `rate` for all, or one for each."""
        return bernoulli(self.bits(count), rate)

    def normal(self, count: int) -> NDArray[np.float64]:
        """Returns `count` independent standard normal numbers in float64.

        Each is a random sign times the normal quantile of a 63-bit uniform number below 1/2.
        """
        bits = self.bits(count)
        tail = ((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
        signs = np.where(bits & np.uint64(1), 1.0, -1.0)
        from scipy.special import ndtri  # imported lazily: slow to load

        return np.asarray(signs * ndtri(np.minimum(tail, 0.5)), dtype=np.float64)

    def keyed_words(self, count: int) -> Words:
        """Returns 64-bit words `[n, count]`; row k encrypts `clients[k]` and a counter by AES-256.

        A client's words are indistinguishable from uniform ones even given the words of all other
        clients, which `per_client` does not guarantee. Raises `ValueError` without clients or seed.
        """
        if self.clients is None or self.seed is None:
            raise ValueError("these keys name no clients, or have no seed; keyed words need both")
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        blocks = np.zeros((len(self.clients), -(-count // 2), 2), dtype=np.uint64)
        blocks[:, :, 0] = self.clients[:, None]
        blocks[:, :, 1] = np.arange(blocks.shape[1], dtype=np.uint64)
        key = hashlib.blake2b(b"unforeseeable", key=self.seed, digest_size=32).digest()
        # In ECB mode each block is the image of one number, and no two blocks are equal.
        encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        words = np.frombuffer(encryptor.update(blocks.tobytes()), dtype=np.uint64)
        return words.reshape(len(self.clients), 2 * blocks.shape[1])[:, :count]

    def generator(self) -> np.random.Generator:
        """Returns a seeded NumPy generator, not to be used for noise or cohorts.

        Raises `ValueError` without a seed.
        """
        if self.seed is None:
            raise ValueError("a private stream has no seeded generator; use bits or normal")
        return np.random.Generator(np.random.Philox(key=np.frombuffer(self.seed, np.uint64)))

    def integer(self) -> int:
        """Returns one integer in [0, 2^63), to seed another library's generator."""
        return int(self.bits(1)[0] >> np.uint64(1))

    def per_client(self, count: int, salt: int = 0) -> Words:
        """Returns uniform 64-bit words `[n, count]`, one row for each of the n clients.

        If the keys are seeded, row k depends only on the seed, `clients[k]` and `salt`. Raises
        `ValueError` without clients.
        """
        if self.clients is None:
            raise ValueError("these keys name no clients; pass clients to Streams.at")
        if self.seed is None:
            return self.bits(len(self.clients) * count).reshape(len(self.clients), count)
        root = self.bits(1)[0]
        with np.errstate(over="ignore"):
            rows = _mix(_mix(self.clients + root) + np.uint64(salt) * _GOLDEN)
            columns = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
            return _mix(rows[:, None] + columns)


def _fresh(count: int) -> Words:
    """Returns `count` new uniform 64-bit words from the operating system's CSPRNG.

    Calls for `_EXPANDED` or more words return the AES-256-CTR keystream of a new key of 32 bytes,
    which is then discarded; this is 20 times as fast. Unless AES-256 is broken, the advantage in
    distinguishing n such words from uniform words is below n^2 2^-131 (PRP/PRF switching lemma).
    """
    if count < _EXPANDED:
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype=np.uint64)


def _mix(words: Words) -> Words:
    """Applies the finaliser of SplitMix64 (Steele, Lea & Flood 2014), a mixing bijection."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class Streams:
    """The random streams of a run.

    Args:
      seed: the public seed of the run.
      simulated: whether the private streams also derive from the seed.
      key: the run's secret key, for the streams in `SAVED_STREAMS`.
    """

    seed: int
    simulated: bool = False
    key: bytes | None = None

    def at(self, stream: str, round: int = 0, clients: NDArray[np.int64] | None = None) -> Keys:
        """Returns the keys of a stream.

        Args:
          stream: its name; the part before "/" determines whether the stream is private.
          round: the round, from 1; 0 for streams that do not depend on a round.
          clients: ids of clients, shape [n], for one stream per client.

        Raises:
          ValueError: if the stream is in none of `PRIVATE`, `SAVED_STREAMS` and `PUBLIC`, or needs
            the run's key and there is none.
        """
        ids = None if clients is None else clients.astype(np.uint64)
        kind = stream.partition("/")[0]
        if kind not in PRIVATE | SAVED_STREAMS | PUBLIC:
            raise ValueError(
                f"the stream {stream!r} is listed neither as private nor as public; a part from "
                "outside privfed draws public numbers from 'outside/...'"
            )
        if kind in PRIVATE and not self.simulated:
            return Keys(None, ids)
        name = f"privfed|{stream}|{self.seed}|{round}".encode()
        if kind in SAVED_STREAMS and not self.simulated:
            if self.key is None:
                raise ValueError(f"the stream {stream!r} needs the run's secret key")
            return Keys(hashlib.blake2b(name, key=self.key).digest(), ids, secret=True)
        return Keys(hashlib.blake2b(name, digest_size=16).digest(), ids)


_GENERATORS = threading.RLock()
"""Guards torch's own generators, which all threads of a process share."""


@contextlib.contextmanager
def drawing_alone(devices: Sequence[Any] = ()) -> Iterator[None]:
    """Returns a context with exclusive use of torch's generators for the CPU and `devices`.

    Other threads that enter such a context wait. The generators' states are restored afterwards.
    """
    import torch

    with _GENERATORS, torch.random.fork_rng(devices=[*devices]):
        yield


def seed_draws(seed: int, device: Any = None) -> None:
    """Seeds torch's generator for the CPU, and the one for `device` if that is a GPU.

    `torch.manual_seed` takes 70 times as long, because it also seeds devices that are not in use.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):  # else the current GPU's generator would be seeded
            torch.cuda.manual_seed(seed)
