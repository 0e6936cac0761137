"""The coordinator's record of the last exchange that each site answered, over all runs.

A site whose receipts were restored from a backup would spend its clients' budget twice. The
coordinator therefore sends each site the last exchange that the site answered, and the site
declines if its receipts lack that exchange (`privfed.deploy.site.agent`). The record contains no
data.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from accounting import durable, regular
from accounting.documents import from_json
from privfed.core.errors import Broken, public_text
from privfed.deploy.messages.place import Place

ANSWERED = "answered.json"
"""The file of the record, in the folder of the coordinator's key."""


@dataclass
class AnsweredRecord:
    """The last answered exchange of each site, by the site's public key in hexadecimal.

    Several coordinators may share the file: it is read again at each call, and `note` changes only
    the entries of the given sites.

    Attributes:
      path: the file of the record; None: the record ends with this process.
    """

    path: Path | None = None
    _places: dict[str, Place] = field(default_factory=dict, init=False)

    def of(self, site: bytes) -> Place | None:
        """Returns the last exchange that a site answered; None if none is recorded.

        Args:
          site: the site's public key.

        Raises:
          Broken: if the file is damaged.
        """
        self._read()
        return self._places.get(site.hex())

    def note(self, sites: Iterable[bytes], place: Place) -> None:
        """Records durably that `sites`, given by public keys, last answered the exchange `place`.

        Raises:
          Broken: if the file is damaged, or cannot be written.
        """
        if self.path is None:
            self._places |= {site.hex(): place for site in sites}
            return
        try:
            with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._read()
                self._places |= {site.hex(): place for site in sites}
                stated = {site: place.to_json() for site, place in sorted(self._places.items())}
                durable.write_atomically(self.path, (json.dumps(stated, indent=1) + "\n").encode())
        except OSError as error:
            raise Broken(
                f"{self.path} cannot be written: {public_text(error)}; make its folder writable, "
                "since it records what sites answered"
            ) from None

    def refuse_unwritable(self) -> None:
        """Raises `Broken` unless the file can be read and written."""
        self.note((), Place("0" * 64, 0, 0))

    def _read(self) -> None:
        """Reads the file again, if it exists. Raises `Broken` if it is damaged."""
        if self.path is None or not self.path.exists():
            return
        try:
            stated = from_json(regular.read_text(self.path))
            self._places = {site: Place.from_json(place) for site, place in stated.items()}
        except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise Broken(
                f"{self.path} is damaged: {public_text(error)}; restore it, or move it away: sites "
                "with restored receipts are then not noticed until they have answered again"
            ) from None
