"""What a folder of canaries declares: its form, and commitments to what is secret in it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import from_json
from privfed.core.errors import Broken, public_text


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


FORMAT = 1
_DIGEST = 64
"""Hexadecimal digits of a SHA-256."""


@dataclass(frozen=True)
class Manifest:
    """`count` canaries for models of `dimension` numbers; it holds no secret.

    Every canary that takes part sends an update of `length`, far beyond the clip that it was
    declared for. The commitments are SHA-256, and each covers the secret key of 32 random bytes:
    who was given them before a run can check afterwards that coins and directions were fixed by
    then. `simulated` coins follow from a seed and are no secret.
    """

    format: int
    count: int
    dimension: int
    relation: str
    length: float
    simulated: bool
    key_commitment: str
    coins_commitment: str
    directions_commitment: str

    @property
    def meaning(self) -> Relation:
        """What coins mean under the relation."""
        return RELATIONS[self.relation]

    def to_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest at `path`. Raises `Broken` where it is missing, damaged, or newer."""
        try:
            content = from_json(regular.read_bytes(path))
        except (OSError, ValueError) as error:
            raise Broken(
                f"{path} cannot be read: {public_text(error)}; expected a folder that `privfed "
                "canary new` made"
            ) from None
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise Broken(f"{path} is of format {content['format']}; this version reads {FORMAT}")
        if not isinstance(content, dict) or not _is_manifest(content):
            raise Broken(f"{path} is damaged: it declares no canaries; restore the file")
        return cls(**content)


def _is_manifest(content: dict[str, Any]) -> bool:
    """Whether `content` has every key of a manifest, and a plausible value in each."""
    if content.keys() != {field.name for field in fields(Manifest)}:
        return False
    counts = [content[name] for name in ("format", "count", "dimension")]
    digests = [content[name] for name in content if name.endswith("_commitment")]
    length, simulated = content["length"], content["simulated"]
    return (
        all(type(count) is int and count > 0 for count in counts)
        and all(isinstance(digest, str) and len(digest) == _DIGEST for digest in digests)
        and type(length) in (int, float)
        and 0 < length <= sys.float_info.max  # also of an integer that no float holds
        and isinstance(simulated, bool)
        and isinstance(content["relation"], str)
        and content["relation"] in RELATIONS
    )
