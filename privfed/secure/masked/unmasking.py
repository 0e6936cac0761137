"""How the server takes the masks, and layers of noise that are too much, off the total."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from privfed.privacy.noise.shares import Layers
from privfed.secure.masked.derived_keys import agreed_secret, commit, pair_key, self_key
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.layered_noise import layer_noise, next_layer
from privfed.secure.masked.messages.unmasking import Unmask
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.packing import Words
from privfed.secure.primitives import Expander, KeyPair
from privfed.secure.summation import Aborted

Dealt = dict[int, dict[int, int]]
"""Shares of secrets: by their owner, and by the place of their holder."""


@dataclass(frozen=True)
class Members:
    """The `clients` of a roster with the hash `agreed`, their graph, neighbours and public keys.

    `expected` parties make up the noise and were to take part: of pinned sites, all of them.
    """

    agreed: bytes
    graph: Graph
    clients: tuple[int, ...]
    near: Mapping[int, tuple[int, ...]]
    mask_keys: Mapping[int, bytes]
    expected: int

    @cached_property
    def places(self) -> Mapping[int, int]:
        """The place of each client among the holders of shares, from 1."""
        return {client: place for place, client in enumerate(self.clients, start=1)}

    def holders(self, client: int) -> tuple[int, ...]:
        """The clients who hold shares of the secrets of `client`."""
        return self.graph.holders(client, self.near[client])


@dataclass(frozen=True)
class Commitments:
    """Hashes by which the server knows a client's seed, and that of its last layer of noise."""

    seed: bytes
    layer: bytes


@dataclass(frozen=True)
class Unmasking:
    """Takes the masks off one sum of the rows of `senders`, with the shares in helpers' `answers`.

    `commitments` are of all who shared their secrets. Of each client helpers tell shares of the
    seed or of the key, never of both, and tell none but those that they hold: the server has
    refused other answers.
    """

    masks: Expander
    members: Members
    commitments: Mapping[int, Commitments]
    senders: Set[int]
    answers: Mapping[int, Unmask]
    layers: Layers | None

    def total(self, masked: Words) -> Words:
        """The sum `[length]` modulo 2^bits of the rows whose masked sum is `masked`.

        Raises `Aborted` for secrets that cannot be put together, or are not those committed to.
        """
        total = masked.copy()
        agreed = self.members.agreed
        for who, shares in sorted(self._seeds().items()):
            seed = self._secret(shares)
            if commit(agreed, seed) != self.commitments[who].seed:
                raise Aborted("wrong seed: shares of a client's seed do not fit its commitment")
            self.masks.apply(total, self_key(agreed, seed), subtract=True)
        for who, shares in sorted(self._keys().items()):
            self._remove_pairs(total, who, self._secret(shares))
        self._remove_layers(total)
        return self.masks.reduce(total)

    def _seeds(self) -> Dealt:
        """Shares of the seeds of those in the sum."""
        dealt: Dealt = {who: {} for who in self.senders}
        for helper, answer in self.answers.items():
            self._collect(dealt, helper, answer.seeds)
        return dealt

    def _keys(self) -> Dealt:
        """Shares of the mask keys of those who shared them, and sent no row."""
        dealt: Dealt = {who: {} for who in self.commitments.keys() - self.senders}
        for helper, answer in self.answers.items():
            self._collect(dealt, helper, answer.keys)
        return dealt

    def _layer_seeds(self) -> dict[int, Dealt]:
        """Shares of seeds of layers, by how many clients are gone as their helpers count."""
        dealt: dict[int, Dealt] = {}
        for helper, answer in self.answers.items():
            counted_alike = dealt.setdefault(answer.gone, {who: {} for who in self.senders})
            self._collect(counted_alike, helper, answer.layers)
        return dealt

    def _collect(self, dealt: Dealt, helper: int, shares: tuple[tuple[int, int], ...]) -> None:
        for who, value in shares:
            dealt[who][self.members.places[helper]] = value

    def _remove_pairs(self, total: Words, gone: int, secret: bytes) -> None:
        """Subtract the masks that survivors put on for a client that never sent its row."""
        pair = KeyPair(secret)
        if pair.public != self.members.mask_keys[gone]:
            raise Aborted("wrong key: shares of a client's key do not fit its public key")
        for other in self.members.near[gone]:
            if other in self.senders:
                shared = agreed_secret(pair, self.members.mask_keys[other])
                key = pair_key(self.members.agreed, shared, gone, other)
                self.masks.apply(total, key, subtract=gone < other)

    def _remove_layers(self, total: Words) -> None:
        """Subtract the layers of noise that fewer survivors would have needed.

        Each helper counted who is `gone` by itself. Where somebody garbled what it dealt some of
        them, these count it as gone: it is the others' count, if they are enough, that holds.
        """
        clients = self.members.expected
        most = self.layers.count(clients) if self.layers else 0
        if self.layers is None or clients - len(self.senders) >= most:
            return
        shares = self._layer_seeds()
        gone = self._agreed_gone(shares)
        for who in sorted(self.senders) if gone < most else ():
            seed = self._secret(shares[gone][who])
            for number in range(gone + 1, most + 1):
                noise = layer_noise(self.layers, clients, number, seed, len(total))
                total -= noise.astype(total.dtype)
                last, seed = seed, next_layer(seed)
            if commit(self.members.agreed, last) != self.commitments[who].layer:
                raise Aborted("wrong layer: shares of a layer's seed do not fit its commitment")

    def _agreed_gone(self, shares: Mapping[int, Dealt]) -> int:
        """The smallest number of missing clients for which everybody's layers can be told."""
        for gone in sorted(shares):
            if all(len(dealt) >= self.members.graph.threshold for dealt in shares[gone].values()):
                return gone
        raise Aborted("too few clients count the same survivors to take layers of noise off")

    def _secret(self, shares: Mapping[int, int]) -> bytes:
        try:
            return reconstruct(shares, self.members.graph.threshold)
        except ValueError as error:
            raise Aborted(f"a secret cannot be put together: {error}") from error
