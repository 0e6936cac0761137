"""Whether the people of a run that goes on are those with whom it began, where no file holds them.

People who are passed as objects lie in no file of a run. A digest of them would be a release: with
it anybody could confirm a guess of all of them. So it is keyed, and lies with its key under
private/.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accounting import durable, regular
from privfed.data.federation import Examples
from privfed.deferred import torch
from privfed.errors import Refused

_AT_ONCE = 4096
"""How many examples are hashed at once."""


@dataclass(frozen=True)
class PeopleDigest:
    """The file `private/people` at `path`: a key and the keyed digest of all examples."""

    path: Path

    def write(self, examples: Iterable[Examples]) -> None:
        """Note who the people are."""
        key = os.urandom(32)
        durable.make_folder(self.path.parent, 0o700)
        durable.write_atomically(self.path, f"{key.hex()} {_digest(key, examples)}\n".encode())
        self.path.chmod(0o600)

    def refuse_others(self, examples: Iterable[Examples]) -> None:
        """Raises `Refused` where these are other examples, or nothing says whose they were."""
        text = regular.read_text(self.path, "ascii", "replace") if self.path.is_file() else ""
        key, _, digest = text.strip().partition(" ")
        try:
            same = hmac.compare_digest(digest, _digest(bytes.fromhex(key), examples))
        except ValueError:
            same = False
        if not (key and same):
            raise Refused(
                f"{self.path.parent.parent}: these are not the people with whom the run began (or "
                "its private/ is gone, which says who they were); pass the same table, or start a "
                "new run with this one in privacy.prior"
            )


def _digest(key: bytes, examples: Iterable[Examples]) -> str:
    """HMAC-SHA-256 of features, labels and owners, in their order."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for each in examples:
        code.update(f"{tuple(each.x.shape)} {tuple(each.y.shape)} {each.classes}\n".encode())
        code.update("\n".join(each.clients).encode())
        code.update(b"" if each.owners is None else each.owners.tobytes())
        for start in range(0, len(each), _AT_ONCE):
            rows = torch.arange(start, min(start + _AT_ONCE, len(each)))
            for tensor in (each.x[rows], each.y[rows]):
                code.update(tensor.cpu().contiguous().numpy().tobytes())
    return code.hexdigest()
