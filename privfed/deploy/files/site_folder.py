"""The files in a site's folder, and its creation."""

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
    """The files of a site under `path`; only its owner may read them."""

    path: Path

    @property
    def key(self) -> Path:
        """Path of the secret key, mode 600; never copy it to a second machine."""
        return self.path / "key"

    @property
    def policy(self) -> Path:
        """Path of the site's policy."""
        return self.path / "policy.toml"

    @property
    def data(self) -> Path:
        """Path of the file that declares the table's format and the population's name."""
        return self.path / "data.toml"

    @property
    def receipts(self) -> Path:
        """Path of the receipts; never restore an older copy."""
        return self.path / "receipts.jsonl"

    @property
    def federation(self) -> Path:
        """Path of the federation file to which this site agreed."""
        return self.path / "federation.toml"

    @property
    def socket(self) -> Path:
        """Path of the socket at which the agent answers."""
        return self.path / "socket"

    @property
    def log(self) -> Path:
        """Path of the log of refusals and their reasons, which only the site's owner reads."""
        return self.path / "log"

    @property
    def approvals(self) -> Path:
        """Path of the folder with the operator's decisions about runs (`Approvals`)."""
        return self.path / "approvals"

    @property
    def declined(self) -> Path:
        """Path of the file with the number of declined messages for each `Code`."""
        return self.path / "declined.json"

    @property
    def state(self) -> Path:
        """Path of the folder with the state of runs; never copy or restore it."""
        return self.path / "state"

    def begin(self, name: str, witness: Path | None = None) -> SiteKey:
        """Creates the folder (mode 700) of the site `name`, and returns the site's new key.

        The key is written last, so a folder with a key is complete.

        Args:
          name: the site's name.
          witness: path of a second copy of the receipts, also created; None for none.

        Raises:
          Refused: if the name is invalid, the folder is not empty, or `witness` exists, is inside
            the folder, or is in a folder that does not exist; nothing is changed.
        """
        key = SiteKey.draw(name)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise Refused(
                f"{self.path} is not empty, and nothing was changed; name a new directory"
            )
        if witness is not None:
            _refuse_witness(witness, self.path)
        make_folder(self.path, 0o700)
        self.path.chmod(0o700)
        before = os.umask(0o077)
        try:
            create(self.policy, policy.TEXT.encode())
            create(self.data, data_file.data_template(witness).encode())
            create(self.receipts, b"")
            if witness is not None:
                create(witness, b"")
            key.write(self.key)
        finally:
            os.umask(before)
        return key


def _refuse_witness(witness: Path, folder: Path) -> None:
    """Raises `Refused` unless `witness` can be created outside of the site's folder."""
    inside = witness.resolve().is_relative_to(folder.resolve())
    if inside or witness.exists() or witness.is_symlink() or not witness.parent.is_dir():
        raise Refused(
            f"--witness is {witness}, but it has to be a new file in an existing folder outside of "
            f"{folder}, on another disk; nothing was changed"
        )
