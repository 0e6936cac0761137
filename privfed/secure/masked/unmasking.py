"""Removal of masks and of surplus layers of noise from the total."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from privfed.privacy.noise.shares import Layers
from privfed.secure.masked.evidence import Blame, WrongDealing, WrongShare, gives_its_secret
from privfed.secure.masked.graph import Graph
from privfed.secure.masked.layered_noise import next_layer, subtract_layer
from privfed.secure.masked.messages.rows import Dealing
from privfed.secure.masked.messages.sealed_shares import (
    LAYERS,
    MASK_KEY,
    SEED,
    ShareHashes,
    agreed_secret,
    hash_of,
    pair_key,
    self_key,
    share_hash,
)
from privfed.secure.masked.messages.unmasking import Unmask
from privfed.secure.masked.shamir import corrected, reconstruct
from privfed.secure.packing import Words
from privfed.secure.primitives import Expander, KeyPair
from privfed.secure.summation import Aborted

Secret = tuple[int, int]
"""A client, and the number of one of its secrets (`SEED`, `MASK_KEY`, `LAYERS` and above)."""
_NAMES = {SEED: "a client's seed", MASK_KEY: "a client's mask key", LAYERS: "a layer's seed"}


@dataclass(frozen=True)
class Members:
    """The `clients` of a roster of hash `agreed`, their graph, neighbours and public mask keys.

    `expected` is the number of parties over which layers of noise are sized: with pinned sites, all
    sites; otherwise the clients of the roster.
    """

    agreed: bytes
    graph: Graph
    clients: tuple[int, ...]
    near: Mapping[int, tuple[int, ...]]
    mask_keys: Mapping[int, bytes]
    expected: int

    @cached_property
    def places(self) -> Mapping[int, int]:
        """The evaluation point of each client's shares: 1, 2, ... in the roster's order."""
        return {client: place for place, client in enumerate(self.clients, start=1)}

    def layers(self, noise: Layers | None) -> int:
        """Returns the number of layers of each client's `noise`; 0 if it is None."""
        return max(noise.count(self.expected), 0) if noise else 0

    def holders(self, client: int) -> tuple[int, ...]:
        """Returns the clients that hold shares of the secrets of `client`."""
        return self.graph.holders(client, self.near[client])


@dataclass(frozen=True)
class Unmasking:
    """Removes the masks of one sum over `senders`, with shares in the `answers` of other clients.

    `dealings` are those of all clients who shared secrets. The clients that answer ("helpers")
    reveal shares of a client's seed or of its mask key, never of both, and only shares that they
    hold: the server has refused other answers. Each sender keeps as many layers of noise as
    `keeping` gives; later ones are removed.

    *Wrong shares* have another hash than their dealer signed. They are left out, and the client
    that revealed them is proved Byzantine. So if `threshold` good shares of each secret remain, the
    sum is opened. *Wrong dealings* have the right hashes, but reconstruct another secret than their
    dealer committed to: the dealer is proved Byzantine. They are corrected if at most half of the
    shares in excess of `threshold` are wrong.

    **A client that stops a sum is identified.** Let at most `corrupt` of a client's holders be
    Byzantine, and let threshold + `corrupt` honest ones reveal the shares they hold. Then either
    all secrets are reconstructed, or there is a culprit. For if a secret has fewer than `threshold`
    good shares, more than `corrupt` honest holders had none, and each of them complained. If the
    secret has at least `threshold` good shares, it is reconstructed, or its dealer is proved
    Byzantine.
    """

    masks: Expander
    members: Members
    dealings: Mapping[int, Dealing]
    senders: Set[int]
    answers: Mapping[int, Unmask]
    layers: Layers | None
    keeping: Mapping[int, int]
    blame: Blame

    def total(self, masked: Words) -> Words:
        """Returns the sum `[length]` modulo 2^bits of the rows whose masked sum is `masked`.

        All shares are examined first, so that `blame` has every culprit even if the sum aborts.

        Raises:
          Aborted: if a secret cannot be reconstructed.
        """
        secrets = self._secrets()
        total = masked.copy()
        for (who, which), secret in secrets.items():
            if which == SEED:
                self.masks.apply(total, self_key(self.members.agreed, secret), subtract=True)
            elif which == MASK_KEY:
                self._remove_pairs(total, who, KeyPair(secret))
            else:
                self._remove_layers(total, which - LAYERS + 1, secret)
        return self.masks.reduce(total)

    def _secrets(self) -> dict[Secret, bytes]:
        """Returns all secrets that open the sum.

        Raises `Aborted` if one cannot be reconstructed.
        """
        opened = self._opened()
        secrets = {needed: self._secret(*needed, opened[needed]) for needed in sorted(opened)}
        for (_, which), secret in secrets.items():
            if secret is None:
                raise Aborted(f"too few good shares of {_NAMES[min(which, LAYERS)]}")
        return {needed: secret for needed, secret in secrets.items() if secret is not None}

    def _opened(self) -> dict[Secret, dict[int, int]]:
        """Returns the good shares of each secret that opens the sum, by holder.

        Wrong shares are left out, and their senders proved Byzantine.
        """
        opened: dict[Secret, dict[int, int]] = {(who, SEED): {} for who in self.senders}
        opened |= {(who, MASK_KEY): {} for who in self.dealings.keys() - self.senders}
        layers = self.members.layers(self.layers)
        opened |= {(who, LAYERS + n): {} for who, n in self.keeping.items() if n < layers}
        agreed = self.members.agreed
        for helper, answer in self.answers.items():
            for who, which, value in answer.shares:
                hashes = self.dealings[who].by_holder[helper]
                if hash_of(hashes, which) != share_hash(agreed, who, helper, which, value):
                    self._prove_wrong_share(answer)
                elif (who, which) in opened:
                    opened[who, which][helper] = value
        return opened

    def _prove_wrong_share(self, answer: Unmask) -> None:
        hashes = handed(self.dealings, answer.sender)
        self.blame.prove(WrongShare(answer, hashes))

    def _secret(self, who: int, which: int, shares: Mapping[int, int]) -> bytes | None:
        """Returns a secret, reconstructed from its `shares` by holder; None if that fails.

        If enough shares do not yield the secret committed to, its dealer is proved Byzantine.
        """
        threshold, places = self.members.graph.threshold, self.members.places
        if len(shares) < threshold:
            return None
        by_place = {places[holder]: value for holder, value in shares.items()}
        if self._is_right(who, which, secret := _any(by_place, threshold)):
            return secret
        first = tuple(sorted(shares.items(), key=lambda share: places[share[0]]))[:threshold]
        self.blame.prove(WrongDealing(self.dealings[who], which, first))
        secret = corrected(by_place, threshold)
        return secret if self._is_right(who, which, secret) else None

    def _is_right(self, who: int, which: int, secret: bytes | None) -> bool:
        members = self.members
        public = members.mask_keys[who]
        return secret is not None and gives_its_secret(
            self.dealings[who], members.agreed, public, which, secret
        )

    def _remove_pairs(self, total: Words, gone: int, pair: KeyPair) -> None:
        """Subtracts the masks that survivors added for a client that never sent its row."""
        for other in self.members.near[gone]:
            if other in self.senders:
                shared = agreed_secret(pair, self.members.mask_keys[other])
                key = pair_key(self.members.agreed, shared, gone, other)
                self.masks.apply(total, key, subtract=gone < other)

    def _remove_layers(self, total: Words, first: int, seed: bytes) -> None:
        """Subtracts one client's layers of noise from number `first` on; `seed` is that layer's."""
        if self.layers is None:
            return
        for number in range(first, self.members.layers(self.layers) + 1):
            subtract_layer(total, self.layers, self.members.expected, number, seed)
            seed = next_layer(seed)


def handed(dealings: Mapping[int, Dealing], holder: int) -> ShareHashes:
    """Returns each dealer and the hashes of its shares for `holder`, in the dealers' order."""
    return tuple(
        (dealer, dealing.by_holder[holder])
        for dealer, dealing in sorted(dealings.items())
        if holder in dealing.by_holder
    )


def _any(shares: Mapping[int, int], threshold: int) -> bytes | None:
    """Returns the result of `reconstruct`; None if it fails."""
    try:
        return reconstruct(shares, threshold)
    except ValueError:
        return None
