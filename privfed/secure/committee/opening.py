"""What members open, and how the server takes masks off with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from privfed.secure.committee.dealing import (
    LENGTH,
    commitment_at,
    secret_commitment,
    share_commitment,
)
from privfed.secure.committee.keys import mask_key
from privfed.secure.frames import BadMessage
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.primitives import Expander, Words


def opened_numbers(
    clients: tuple[int, ...], survivors: tuple[int, ...], client: int
) -> dict[int, int]:
    """Which secrets of a survivor are opened, by the client that each is a pair's with.

    Its fresh seed, under its own number, and the seeds of its pairs with clients of the roster who
    are not in the sum: never of a pair of two survivors.
    """
    here = set(survivors)
    others = [other for other in clients if other != client]
    pairs = {other: number for number, other in enumerate(others, start=1) if other not in here}
    return {client: 0, **pairs}


@dataclass(frozen=True)
class Openings:
    """Openings of masks of `survivors`, by `threshold` members, under the roster of `clients`."""

    agreed: bytes
    clients: tuple[int, ...]
    survivors: tuple[int, ...]
    threshold: int

    @cached_property
    def numbers(self) -> Mapping[int, dict[int, int]]:
        """Of each survivor which secrets are opened."""
        return {who: opened_numbers(self.clients, self.survivors, who) for who in self.survivors}

    def check(self, shares: Mapping[int, bytes], columns: Mapping[int, bytes], place: int) -> None:
        """Raises `BadMessage` unless `shares` of the member at `place` are those committed to."""
        for client, text in shares.items():
            numbers = self.numbers[client].values()
            if len(text) != LENGTH * len(numbers):
                raise BadMessage("wrong shares", "more or fewer shares than are opened")
            for at, number in enumerate(numbers):
                part = text[at * LENGTH : (at + 1) * LENGTH]
                right = commitment_at(columns[client], number)
                if share_commitment(self.agreed, client, place, number, part) != right:
                    raise BadMessage("wrong shares", "a share that its dealer did not commit to")

    def seeds(
        self, client: int, texts: Mapping[int, bytes], secrets: bytes
    ) -> dict[int, bytes] | None:
        """The opened seeds of a client, by the other of each pair (its own: by itself).

        From `texts` of shares by places of members. None where what comes out is not what the
        client committed to by `secrets`.
        """
        seeds = {}
        for at, (other, number) in enumerate(self.numbers[client].items()):
            parts = {place: text[at * LENGTH : (at + 1) * LENGTH] for place, text in texts.items()}
            values = {place: int.from_bytes(part, "little") for place, part in parts.items()}
            try:
                seed = reconstruct(values, self.threshold)
            except ValueError:
                return None
            right = commitment_at(secrets, number)
            if secret_commitment(self.agreed, client, number, seed) != right:
                return None
            seeds[other] = seed
        return seeds

    def remove(
        self, masks: Expander, total: Words, client: int, seeds: Mapping[int, bytes]
    ) -> None:
        """Take a survivor's opened masks off the `total` `[length]`."""
        for other, seed in seeds.items():
            masks.apply(total, mask_key(self.agreed, seed), subtract=other <= client)
