"""The state of a client of a masked sum, with methods that set, wipe and serialise it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.privacy.integers import Integers
from privfed.secure.frames import BadMessage
from privfed.secure.identities import Directory, verifying_key
from privfed.secure.limits import Limits
from privfed.secure.masked.client_state import (
    ENDED,
    BadState,
    PartyState,
    PartyTerms,
    Progress,
    StateReader,
)
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.messages.roster import Roster
from privfed.secure.masked.messages.unmasking import Survivors
from privfed.secure.masked.policy import Expected, MaskingPolicy
from privfed.secure.primitives import wipe
from privfed.secure.summation import Aborted

_WIPED = ("_seed", "_mask_secret", "_channel_secret")
_FORGOTTEN = (
    *("_pair", "_channel", "_secrets", "_held", "_keys"),
    *("_row", "_identity", "_noise", "_layers", "_voters"),
)


class ClientMemory(ABC):
    """Holds a client's configuration and state; subclasses process the messages."""

    _nonce: bytes
    _seed: bytearray
    _channel_secret: bytearray
    _mask_secret: bytearray
    _layers: tuple[bytes, ...]
    _held: dict[int, tuple[int, ...]]
    _shared: set[int]
    _acknowledged: bytes
    _survivors: Survivors

    def __init__(
        self,
        me: int,
        identity: Ed25519PrivateKey,
        directory: Directory,
        policy: MaskingPolicy,
        expected: Expected,
        row: Callable[[], Integers],
        limits: Limits,
        noise: ClientNoise | None = None,
    ) -> None:
        self.me, self._identity, self._directory = me, identity, directory
        self._policy, self._expected, self._row = policy, expected, row
        self._limits, self._noise = limits, noise
        self._terms = PartyTerms(
            me, directory, policy, expected, limits, noise.layers if noise else None
        )
        self._context, self._step, self.progress = b"", 0, Progress()

    @property
    def step(self) -> int:
        """The number of answered messages; 5 also after the client refused a message."""
        return self._step

    @abstractmethod
    def _take_secrets(self, nonce: bytes, seed: bytes, channel: bytes, mask: bytes) -> None: ...

    @abstractmethod
    def _agree_channels(self) -> None: ...

    @abstractmethod
    def _checked_graph(self, roster: Roster) -> Graph: ...

    @abstractmethod
    def _check_keys(self, roster: Roster) -> None: ...

    @abstractmethod
    def _take_survivors(self, survivors: Survivors) -> None: ...

    def _take_roster(self, roster: Roster) -> tuple[int, ...]:
        """Sets all state that follows from the roster; returns this client's neighbours.

        Raises:
          BadMessage: if the roster differs from the graph that the client's policy determines.
        """
        self._graph, self._roster, self._agreed = (
            self._checked_graph(roster),
            roster,
            roster.agreed(),
        )
        self._places = {client: place for place, client in enumerate(roster.clients, start=1)}
        self._expected_parties = total = self._policy.counted_of(len(roster.clients))
        self._layer_count = self._noise.layers.count(total) if self._noise else 0
        edge_key = self._graph.edge_key(roster.seed, self._agreed)
        near = self._graph.neighbours(edge_key, roster.clients, self.me)
        if tuple(keys.sender for keys in roster.keys) != near:
            raise BadMessage("wrong neighbours", "the keys are not those of the graph's neighbours")
        self._keys = {keys.sender: keys for keys in roster.keys}
        return near

    def _wipe(self) -> None:
        for name in _WIPED:
            if secret := getattr(self, name, None):
                wipe(secret)

    def end(self) -> None:
        """Wipes every secret; the client answers no further message."""
        self._step = ENDED
        self._wipe()
        for name in _FORGOTTEN:
            self.__dict__.pop(name, None)

    def to_bytes(self) -> bytes:
        """Returns the bytes of the state. They hold secrets; only their owner may read them."""
        step, state = self._step, PartyState(self.me, self._step, self.progress, self._context)
        if step in (1, 2):
            private = (self._seed, self._channel_secret, self._mask_secret)
            state = replace(state, secrets=(self._nonce, *map(bytes, private)))
        if 2 <= step < ENDED:
            held, layers = tuple(sorted(self._held.items())), self._layers if step == 2 else ()
            state = replace(state, roster=self._roster, layers=layers, held=held)
        if 3 <= step < ENDED:
            hashes = self._acknowledged
            state = replace(state, shared=tuple(sorted(self._shared)), acknowledged=hashes)
        if step == 4:
            state = replace(state, survivors=self._survivors)
        return state.to_bytes(self._terms)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        identity: Ed25519PrivateKey,
        directory: Directory,
        policy: MaskingPolicy,
        expected: Expected,
        row: Callable[[], Integers],
        limits: Limits,
        noise: ClientNoise | None = None,
    ) -> Self:
        """Restores the client that wrote `data` by `to_bytes`; other arguments must be the same.

        Raises:
          BadState: if the bytes are damaged, of another format, client or configuration.
        """
        reader = StateReader(data)
        client = cls(reader.me, identity, directory, policy, expected, row, limits, noise)
        if directory.get(reader.me) != verifying_key(identity):
            raise BadState("foreign", "the state is not of the holder of this key")
        state = reader.state(client._terms)
        try:
            client._restore(state)
            if client.to_bytes() != data:
                raise ValueError("the state is not in the form that a client writes")
        except (Aborted, ValueError) as error:
            raise BadState("damaged", "parts of the state do not fit together") from error
        return client

    def _restore(self, state: PartyState) -> None:
        self._step, self._context, self.progress = state.step, state.context, state.progress
        if state.secrets:
            self._take_secrets(*state.secrets)
        if state.roster:
            near = {*self._take_roster(state.roster), self.me}
            self._held, self._shared = dict(state.held), set(state.shared)
            self._acknowledged = state.acknowledged
            counts = {len(shares) for shares in self._held.values()}
            if not self._held.keys() | self._shared <= near or counts - {2 + self._layer_count}:
                raise ValueError(
                    "the shares are of clients that are no neighbours, or their number is wrong"
                )
        if state.roster and state.secrets:
            self._check_keys(state.roster)
            self._agree_channels()
            self._layers = state.layers
            if len(self._layers) != self._layer_count:
                raise ValueError("the number of layers is wrong")
        if state.survivors:
            self._take_survivors(state.survivors)
        if state.step == ENDED:
            self.end()
