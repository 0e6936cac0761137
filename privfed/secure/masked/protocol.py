"""Masked sums in one process: every message flows as bytes between the server and its clients."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from privfed.errors import Refused
from privfed.privacy.codec import Codec, Whole
from privfed.privacy.noise.shares import Layers
from privfed.secure.dropout import SENDS, Leaves
from privfed.secure.encoded_sum import Channel, SecureProtocol, at_most, noise_keys
from privfed.secure.limits import UNLIMITED, Limits
from privfed.secure.masked.client import Expected, MaskingClient
from privfed.secure.masked.graph import COMPLETE, Policy, neighbours
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages import (
    Advertise,
    FromServer,
    Message,
    Vote,
    decode,
    encode,
    sealed_size,
)
from privfed.secure.masked.server import MaskingServer, recoverable
from privfed.secure.primitives import KEY, Expander, derive, random_key, signing_key
from privfed.secure.summation import Aborted, Session


class MaskedSums(SecureProtocol):
    """Masked sums (SecAgg, SecAgg+): the server sees sums of the survivors, and nothing else.

    Clients add masks that cancel in the sum; those of who drops out are taken off with secrets that
    the others hold in shares. Complete graph up to 200 clients, and always where the server may
    lie; above, the sparse graph of SecAgg+ for a server that follows the protocol.

    *Trust*: up to a fraction `colluders` of a cohort may work with the server; if it lies, of any
    cohort that it can put together (the proof is in `masking_client`). Computational: as safe as
    X25519, AES-256, HKDF, ChaCha20-Poly1305 and Ed25519. No client is stopped from lying about its
    own row, and any client can make a sum abort.

    Source: Bonawitz et al. 2017, figure 4; Bell et al. 2020, section 3.
    """

    seen: ClassVar[str] = "the server sees exact sums, never a row"
    opener: ClassVar[str] = "the server"
    layers: ClassVar[bool] = True
    threshold: float = Field(0.6, gt=0, le=1)
    """The fraction of a cohort that has to stay to the end."""
    admitted: int = Field(0, ge=0)
    """The smallest cohort that a sum begins with; 0: the threshold of the expected one, or what is
    solved for where aborts would cost (`privfed.plan.sum_limits`)."""
    neighbours: int = Field(0, ge=0)
    """How many others each client masks with; 0 follows from the cohort."""
    colluders: float = Field(0.1, ge=0, lt=1)
    threat: Literal["curious", "lying"] = "curious"

    def policy(self, size: int, admitted: int = 0) -> Policy:
        """For cohorts of an expected `size`, and at least `admitted` clients."""
        return Policy(
            self.threshold,
            self.colluders,
            self.threat,
            self.neighbours,
            size,
            self.admitted or admitted,
        )

    def within(self, limits: Limits) -> Policy:
        return self.policy(limits.size, limits.admitted)

    def begun(self, limits: Limits) -> int:
        return max(super().begun(limits), self.within(limits).smallest)

    def least_admitted(self, limits: Limits) -> int:
        """As configured, or two more than may collude: another honest client has to help each."""
        return self.begun(limits) if self.admitted else self._needed(limits)

    def _needed(self, limits: Limits) -> int:
        return max(super().begun(limits), self.policy(limits.size).corrupt(0) + 2)

    def fewest(self, limits: Limits) -> int:
        """Of n clients who share keys, at least `threshold` n stay."""
        stay = math.ceil(self.threshold * self.begun(limits) - 1e-9)
        return max(super().fewest(limits), stay)

    def colluding(self, limits: Limits) -> float:
        """Of n clients who share keys at most K = colluders max(n, size) work with the server.

        They know K / m of what m survivors add. For n <= size, K is colluders size and m at least
        `fewest`; for larger n, K / m is at most colluders / max(threshold, 1 - tolerance).
        """
        stay = max(self.threshold, 1 - limits.tolerance)
        return self.colluders * max(limits.size / self.fewest(limits), 1 / stay)

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        return MaskedChannel(session, codec, self.within(limits), limits, layers)

    def stops(self, clients: int, dropout: float, limits: Limits) -> float:
        missing = super().stops(clients, dropout, limits)
        policy = self.within(limits)
        if not dropout and not self.neighbours and clients > COMPLETE and self.threat == "curious":
            return missing if clients >= policy.smallest else 1.0
        try:
            graph = policy.graph(clients)
        except Aborted:
            return 1.0
        few = at_most(max(graph.threshold, graph.survivors) - 1, clients, 1 - dropout)
        if not graph.complete:  # of somebody's neighbours, by the union bound
            few += clients * at_most(graph.threshold - 1, graph.degree, 1 - dropout)
        return min(1.0, missing + few)

    def _degree(self, clients: int) -> int:
        try:
            return self.policy(0).graph(clients).degree
        except Aborted:
            return max(clients - 1, 1)

    def seconds(self, codec: Codec, clients: int) -> float:
        """Measured: keys and signatures for each neighbour, and the bytes of its mask."""
        size = codec.length * Expander(1, codec.bits).word.itemsize
        each = 2e-4 + 2e-10 * size
        return super().seconds(codec, clients) + clients * self._degree(clients) * each

    def download(self, clients: int) -> float:
        degree = self._degree(clients)
        keys, shares, votes = Advertise.size, sealed_size(0) + 8, Vote.size
        return degree * (keys + shares + votes * self.threshold) + (2 * 8 + KEY) * clients

    def upload(self, codec: Codec, clients: int) -> float:
        degree = self._degree(clients)
        each = sealed_size(0) + 8 + 41  # a sealed pair of shares, and one share at the end
        return Expander(codec.length, codec.bits).size + degree * each + Advertise.size + 5 * 36

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """Within `limits`, else where exactly so many are expected, and no more are drawn."""
        limits = limits or Limits(clients, size=clients)
        policy = self.within(limits)
        graph = policy.graph(clients)
        each = f"{graph.threshold} of each one's {graph.degree} neighbours"
        form = "complete graph" if graph.complete else f"and {each}"
        lies = "also if it lies" if self.withstands_lies(limits) else "if it follows the protocol"
        return (
            f"of {clients} clients {max(graph.survivors, graph.threshold)} have to stay ({form}); "
            f"the server learns no row, {lies}, while at most {policy.corrupt(clients)} of them "
            "collude with it"
        )

    def withstands_lies(self, limits: Limits) -> bool:
        """Whether a server that lies in every message still opens sums of enough clients alone.

        It chooses who is told of which cohort: so it has to hold for every cohort of which clients
        take a roster and unmask a sum, and beyond 200 clients a graph may be sparse.
        """
        if self.threat == "lying":  # else there is no graph
            return True
        if limits.capacity > COMPLETE:
            return False
        policy = self.within(limits)
        for clients in range(self.begun(limits), limits.capacity + 1):
            try:
                graph = policy.graph(clients)
            except Aborted:
                continue
            if not policy.withstands_lies(graph):
                return False
        return True

    def refuse_limits(self, limits: Limits) -> None:
        least = self._needed(limits)
        if self.admitted and not least <= self.admitted <= limits.capacity:
            raise Refused(
                f"secure.admitted is {self.admitted}; expected from {least} (two clients more than "
                f"may collude, and secure.minimum) to {limits.capacity} (secure.capacity)"
            )
        if self.threshold <= self.colluders:
            raise Refused(
                f"secure.threshold is {self.threshold:g}, but {self.colluders:g} of a cohort may "
                "collude with the server and would be enough to unmask anybody; raise the "
                "threshold above secure.colluders"
            )
        if self.threat == "lying" and 2 * self.threshold <= 1 + self.colluders:
            raise Refused(
                f"secure.threshold is {self.threshold:g}: a server that tells some clients that "
                "another survived, and others that it dropped, would unmask it; expected more than "
                f"(1 + secure.colluders) / 2 = {(1 + self.colluders) / 2:g}"
            )
        if self.threat == "lying" and self.neighbours:
            raise Refused(
                "secure.neighbours has no proof against a server that lies (secure.threat), which "
                "could choose who is next to whom; remove the key"
            )
        if self.neighbours % 2:
            raise Refused(f"secure.neighbours is {self.neighbours}; expected an even number")

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        clients = tuple(session.clients.tolist())
        graph = self.within(limits).graph(len(clients))
        if not len(session.leaves):
            return
        seed = graph_seed(session)
        near = {who: neighbours(seed, clients, graph.degree, who) for who in clients}
        gone = dict(zip(clients, session.leaves.tolist(), strict=True))
        shared = {who for who in clients if gone[who] != Leaves.BEFORE_SHARING}
        sent = {who for who in clients if gone[who] in SENDS}
        stayed = {who for who in clients if gone[who] == Leaves.NEVER}
        if not all(recoverable(graph, near, shared, left) for left in (shared, sent, stayed)):
            raise Aborted("too few clients stayed to take the masks off")


def graph_seed(session: Session) -> bytes:
    keys = session.streams.at(f"noise/graph/{session.exchange}", session.round)
    return keys.bits(KEY // 8).tobytes()


@functools.cache
def _root() -> bytes:
    return os.urandom(KEY)


@functools.lru_cache(maxsize=1 << 14)
def identity(client: int) -> Ed25519PrivateKey:
    """A simulated client's long-term signing key; in a deployment each client holds its own."""
    return signing_key(derive(_root(), b"identity", client.to_bytes(8, "little")))


class Wire:
    """Carries bytes; a test's wire may change or lose them."""

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        return data


class MaskedChannel:
    """A server and its clients, who share keys at once and send their rows one by one.

    Who is refused by name, or refuses, counts as dropped; `faults` lists the names.
    """

    most = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        policy: Policy,
        limits: Limits = UNLIMITED,
        layers: Layers | None = None,
        wire: Wire | None = None,
    ) -> None:
        self._codec, self._wire = codec, wire or Wire()
        everybody = tuple(session.clients.tolist())
        leaves = session.leaves.tolist() or [Leaves.NEVER] * len(everybody)
        self._leaves = dict(zip(everybody, leaves, strict=True))
        self._rows: dict[int, Whole] = {}
        self.faults: list[str] = []
        directory = {who: identity(who).public_key().public_bytes_raw() for who in everybody}
        of = Expected(session.round, session.exchange, session.model_hash, codec)
        self.server = MaskingServer(
            of.invitation(bytes(random_key()), policy, limits, layers),
            everybody,
            directory,
            policy,
            graph_seed(session),
            limits,
            layers,
        )
        self.clients = {
            who: MaskingClient(
                who,
                identity(who),
                directory,
                policy,
                of,
                functools.partial(self._rows.pop, who),
                limits,
                ClientNoise(layers, noise_keys(session, who)) if layers else None,
            )
            for who in everybody
        }
        self._ask(dict.fromkeys(everybody, self.server.invitation), 0)
        self._ask(self._proceed(), Leaves.BEFORE_SHARING)
        self._inboxes = dict(self._proceed())

    def send(self, client: int, whole: Whole) -> None:
        self._rows[client] = whole
        if inbox := self._inboxes.pop(client, None):
            self._ask({client: inbox}, Leaves.BEFORE_MASKING)
        self._rows.pop(client, None)

    def total(self) -> tuple[Whole, int]:
        self._ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        self._ask(self._proceed(), Leaves.BEFORE_UNMASKING)
        with self._naming_faults():
            words, survivors = self.server.total()
        return self._codec.unwrap(words.astype(np.uint64)), survivors

    def _ask(self, sent: Mapping[int, FromServer], stage: int) -> None:
        """Deliver messages to those who are still there, and their answers to the server."""
        for client, message in sent.items():
            if 0 < self._leaves[client] <= stage:
                continue
            try:
                if (arrived := self._carry(client, message, upward=False)) is None:
                    continue
                answer = self._carry(client, self.clients[client].handle(arrived), upward=True)
                if answer is not None:
                    self.server.handle(client, answer)
            except Aborted as refused:
                self.faults.append(str(refused))

    def _carry(self, client: int, message: Message, upward: bool) -> Message | None:
        data = self._wire.carry(client, encode(message), upward)
        return None if data is None else decode(data)

    def _proceed(self) -> Mapping[int, FromServer]:
        with self._naming_faults():
            return self.server.proceed()

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except Aborted as aborted:
            first = f" (first refused: {self.faults[0]})" if self.faults else ""
            raise Aborted(f"{aborted}{first}") from aborted
