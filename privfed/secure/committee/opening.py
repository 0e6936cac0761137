"""Openings by committee members, and the removal of masks with these openings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from privfed.secure.committee.dealing import (
    Dealt,
    commitment_at,
    member_share,
    number_commitment,
    root_of_proof,
    secret_commitment,
)
from privfed.secure.committee.key_book import mask_key
from privfed.secure.committee.policy import Committee
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.packing import Words
from privfed.secure.primitives import KEY, Expander


def opened_numbers(
    clients: tuple[int, ...], survivors: tuple[int, ...], client: int
) -> dict[int, int]:
    """Returns the index of each opened secret of the survivor `client`, by paired client.

    These secrets are its fresh seed (listed under the client itself) and the seeds that it shares
    with dropouts of the roster `clients`. A seed that two survivors share is never opened.
    """
    here = set(survivors)
    others = [other for other in clients if other != client]
    pairs = {other: number for number, other in enumerate(others, start=1) if other not in here}
    return {client: 0, **pairs}


@dataclass(frozen=True)
class Openings:
    """Removes the masks of `survivors` with a committee's shares.

    `clients` is the roster, and `agreed` its hash.
    """

    agreed: bytes
    clients: tuple[int, ...]
    survivors: tuple[int, ...]
    committee: Committee

    @cached_property
    def numbers(self) -> Mapping[int, dict[int, int]]:
        """The indices of the secrets that are opened, for each survivor (`opened_numbers`)."""
        return {who: opened_numbers(self.clients, self.survivors, who) for who in self.survivors}

    def right(self, client: int, place: int, text: bytes, root: bytes) -> bool:
        """Whether `text` is a valid opening of a survivor's secrets by the member at `place`.

        A valid text consists of the member's numbers for the secrets in `numbers[client]`, and a
        proof that they belong to the hash tree with this `root`.
        """
        numbers = self.numbers[client].values()
        parts = _parts(text, len(numbers))
        if len(text) < KEY * len(numbers):
            return False
        leaves = {
            number: number_commitment(self.agreed, client, place, number, part)
            for number, part in zip(numbers, parts, strict=True)
        }
        return root_of_proof(leaves, text[KEY * len(numbers) :], len(self.clients)) == root

    def seeds(
        self, client: int, texts: Mapping[int, bytes], dealt: Dealt
    ) -> dict[int, bytes] | None:
        """Returns a client's opened seeds, by paired client (its own seed under itself).

        Args:
          client: a survivor.
          texts: valid openings, by the member's place in the committee, from 1.
          dealt: the client's dealing.

        Returns:
          The seeds; None if `texts` are fewer than the threshold, or if a seed cannot be
          reconstructed or is not what the client committed to.
        """
        numbers = self.numbers[client]
        shape = (self.committee.threshold, self.committee.members)
        columns = {place: _parts(text, len(numbers)) for place, text in texts.items()}
        seeds = {}
        for at, (other, number) in enumerate(numbers.items()):
            shares = {
                place: member_share(
                    int.from_bytes(parts[at], "little"), dealt.corrections, number, place, shape
                )
                for place, parts in columns.items()
            }
            try:
                seed = reconstruct(shares, self.committee.threshold)
            except ValueError:
                return None
            right = commitment_at(dealt.secrets, number)
            if secret_commitment(self.agreed, client, number, seed) != right:
                return None
            seeds[other] = seed
        return seeds

    def remove(
        self, masks: Expander, total: Words, client: int, seeds: Mapping[int, bytes]
    ) -> None:
        """Removes the masks of a survivor's opened `seeds` from `total` `[length]` in place."""
        for other, seed in seeds.items():
            masks.apply(total, mask_key(self.agreed, seed), subtract=other <= client)


def _parts(text: bytes, count: int) -> list[bytes]:
    return [text[at * KEY : (at + 1) * KEY] for at in range(count)]
