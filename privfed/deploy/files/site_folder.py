"""The folder of a site, by name, and how it is begun."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from accounting.durable import create, make_folder
from privfed.core.errors import Refused
from privfed.deploy.files import data_file
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.site import policy


@dataclass(frozen=True)
class SiteFolder:
    """The files of a site under `path`: nobody but its owner may read any of them."""

    path: Path

    @property
    def key(self) -> Path:
        """The secret key, mode 600: never copied, never restored on a second machine."""
        return self.path / "key"

    @property
    def policy(self) -> Path:
        """What the site allows."""
        return self.path / "policy.toml"

    @property
    def data(self) -> Path:
        """How its table is read, and whose data these are."""
        return self.path / "data.toml"

    @property
    def receipts(self) -> Path:
        """What was answered, hash-chained: never restored from an older copy."""
        return self.path / "receipts.jsonl"

    @property
    def federation(self) -> Path:
        """Who takes part, as this site agreed to it."""
        return self.path / "federation.toml"

    @property
    def socket(self) -> Path:
        """Where the site is asked."""
        return self.path / "socket"

    @property
    def log(self) -> Path:
        """What it declined, and why; nobody else reads it."""
        return self.path / "log"

    @property
    def state(self) -> Path:
        """What it remembers of runs: never copied, never restored."""
        return self.path / "state"

    def begin(self, name: str) -> SiteKey:
        """Make the folder, mode 700, of a site that is called `name`, and return its fresh key.

        The key comes last: a folder that has one is whole. Raises `Refused`, changing nothing,
        where anything lies there.
        """
        key = SiteKey.draw(name)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise Refused(f"{self.path} is not empty; nothing was changed. Name a new directory")
        make_folder(self.path, 0o700)
        self.path.chmod(0o700)
        before = os.umask(0o077)
        try:
            create(self.policy, policy.TEXT.encode())
            create(self.data, data_file.TEXT.encode())
            create(self.receipts, b"")
            key.write(self.key)
        finally:
            os.umask(before)
        return key
