"""A trace of a run's randomness: every stream, every word, and the operating system's bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np

from privfed.config.config import Config
from privfed.core import streams as core_streams
from privfed.core.streams import PRIVATE, SAVED_STREAMS, Keys, Streams
from privfed.run import prepare
from privfed.run.rates import with_rates
from privfed.secure import primitives
from privfed.secure.masked import client as masking_client
from privfed.secure.masked import unmasking


@dataclass
class Trace:
    """`streams` names all requested streams; `given` holds the values that `os.urandom` returned,
    and what was expanded from them at once.
    """

    streams: set[str] = field(default_factory=set)
    given: set[bytes] = field(default_factory=set)
    draws: list[tuple[str, bytes | None, bytes]] = field(default_factory=list)
    """Stream, seed of the keys, and the generated words."""
    kept: list[tuple[str, Streams, bytes | None]] = field(default_factory=list)
    """Streams derived from the run's own key: name, owner, and seed."""
    secrets: list[bytes] = field(default_factory=list)
    """Private keys and seeds of masks."""


@dataclass(frozen=True)
class Traced(Keys):
    """Keys that record everything generated with them, and with all keys derived from them."""

    stream: str = ""
    trace: Trace = field(default_factory=Trace)

    @classmethod
    def of(cls, keys: Keys, stream: str, trace: Trace) -> Traced:
        return cls(keys.seed, keys.clients, keys.secret, keys.start, stream, trace)

    def bits(self, count: int) -> np.ndarray:
        words = super().bits(count)
        self.trace.draws.append((self.stream, self.seed, words.tobytes()))
        return words

    def derived(self, what: bytes) -> Traced:
        return Traced.of(super().derived(what), self.stream, self.trace)

    def generator(self) -> np.random.Generator:
        self.trace.draws.append((self.stream, self.seed, b""))
        return super().generator()


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """Traces runs, without the seeded simulations on public examples that choose "auto" keys."""
    trace, at, urandom, fresh = Trace(), Streams.at, os.urandom, core_streams._fresh
    pair, self_key = primitives.KeyPair.__init__, masking_client.self_key

    def asked(self: Streams, stream: str, *rest, **named) -> Traced:
        keys = at(self, stream, *rest, **named)
        trace.streams.add(stream)
        if stream.partition("/")[0] in SAVED_STREAMS:
            trace.kept.append((stream, self, keys.seed))
        return Traced.of(keys, stream, trace)

    def seeded(self: Streams, stream: str, *rest, **named) -> Keys:
        keys = at(self, stream, *rest, **named)
        assert keys.seed is not None, f"{stream} has no seed, but chooses keys that are 'auto'"
        return keys

    def chosen(*run) -> Config:
        with mock.patch.object(Streams, "at", seeded):
            return with_rates(*run)

    def given(count: int) -> bytes:
        found = urandom(count)
        trace.given.add(found)
        return found

    def expanded(count: int) -> np.ndarray:
        before = len(trace.given)
        words = fresh(count)
        assert len(trace.given) == before + (count > 0), "no new bytes of the operating system"
        trace.given.add(words.tobytes())
        return words

    def paired(self, private) -> None:
        trace.secrets.append(bytes(private))
        pair(self, private)

    def masked(context, seed):
        trace.secrets.append(bytes(seed))
        return self_key(context, seed)

    with (
        mock.patch.object(Streams, "at", asked),
        mock.patch.object(prepare, "with_rates", chosen),
        mock.patch.object(os, "urandom", given),
        mock.patch.object(core_streams, "_fresh", expanded),
        mock.patch.object(primitives.KeyPair, "__init__", paired),
        mock.patch.object(masking_client, "self_key", masked),
        mock.patch.object(unmasking, "self_key", masked),
    ):
        yield trace


def assert_secret(trace: Trace) -> None:
    """Asserts that no private randomness follows from a seed or from anything that can be obtained
    again.

    The words of private streams are bytes newly obtained from the operating system. Kept streams
    follow from a key obtained in the same way, and would differ under another key. The same holds
    for the keys of masks.
    """
    for stream, seed, words in trace.draws:
        if stream.partition("/")[0] in PRIVATE:
            assert seed is None, f"{stream} has a seed"
            assert not words or words in trace.given, f"{stream} is not the operating system's"
    for stream, streams, seed in trace.kept:
        assert not streams.simulated, f"{stream} was asked of a simulation's streams"
        assert streams.key in trace.given, f"{stream} follows from a key that nobody drew"
        assert seed is not None, f"{stream} cannot be drawn again"
        other = replace(streams, key=bytes(32))
        assert seed not in every_seed(other, stream), f"{stream} does not follow from the key"
    for secret in trace.secrets:
        assert secret in trace.given, "a mask's secret is not the operating system's"


def every_seed(streams: Streams, stream: str) -> set[bytes | None]:
    return {streams.at(stream, round).seed for round in range(10)}
