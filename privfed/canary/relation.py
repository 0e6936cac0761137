"""What a canary's coin means under each neighbouring relation, so that it tests that relation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """What canaries do by their coins.

    A canary whose coin shows heads sends its direction, and one whose coin shows tails sends it
    `tails` times; `absent` tails are no clients at all. Populations that differ in a coin are then
    neighbours, and each canary's pair of answers is as far apart as the relation allows: a clip
    under add/remove and zero-out, two under replace-one.
    """

    tails: float
    absent: bool
    heads_name: str
    tails_name: str


RELATIONS = {
    "add/remove": Relation(0.0, True, "take part", "stay away"),
    "zero-out": Relation(0.0, False, "send their direction", "send no change"),
    "replace-one": Relation(-1.0, False, "send their direction", "send its opposite"),
}
"""Each relation that canaries can test, by its name."""
