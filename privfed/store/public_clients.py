"""The clients whom no guarantee covers, because a run declared their data public."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting import durable, regular
from accounting.documents import from_json
from privfed.errors import unreadable
from privfed.json_text import dump


@dataclass(frozen=True)
class PublicClientsFile:
    """The file `report/public_clients.json` at `path`; there is none where nobody is public."""

    path: Path

    def write(self, clients: Sequence[str], earlier: Collection[str]) -> None:
        """Name the `clients` that this run declares public, and those of `earlier` runs."""
        if clients or earlier:
            named = {"clients": list(clients), "earlier": sorted(earlier)}
            durable.write_atomically(self.path, (dump(named, indent=1) + "\n").encode())

    def of_this_run(self) -> list[str]:
        """The clients whom this run is scored on, as it declared them. Raises `Broken`."""
        return self._listed("clients")

    def of_all_runs(self) -> list[str]:
        """All clients whom no guarantee covers, earlier runs' included. Raises `Broken`."""
        return [*self._listed("clients"), *self._listed("earlier")]

    def _listed(self, key: str) -> list[str]:
        if not self.path.exists():
            return []
        try:
            return [str(name) for name in from_json(regular.read_text(self.path))[key]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(self.path, error) from None
