"""A site as its folder makes it: an agent that answers, for as long as it is held open."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

from privfed.deploy.carriers.local_socket import LocalServer
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.policies.policy import LocalPolicy
from privfed.deploy.site.agent import Agent
from privfed.deploy.site.joining import AT_ONCE, Membership
from privfed.errors import Broken, Busy, Refused
from privfed.store.folders import held_alone

LARGEST = 1 << 30
"""Bytes of the largest message that a site reads."""


def open_member(folder: SiteFolder, alone: bool = True) -> Membership:
    """The site in `folder`, all of whose files are as they should be.

    Where this process is not `alone` with it, nothing is mended. Raises `Refused` and `Broken`, and
    `LedgerBroken` for receipts that were edited.
    """
    _refuse_open_folder(folder.path)
    key, federation = SiteKey.read(folder.key), FederationFile.read(folder.federation)
    LocalPolicy.read(folder.policy)
    population = SiteTable.read(folder.data).population
    receipts = (Receipts.recover if alone else Receipts.load)(folder.receipts)
    if others := receipts.populations - {population}:
        raise Refused(
            f"{folder.data}: population is {population!r}, and {folder.receipts} charges other "
            f"people ({', '.join(sorted(others))}); another table has a folder of its own"
        )
    member = Membership(folder, key, federation, receipts)
    _ = member.number
    return member


def _refuse_open_folder(path: Path) -> None:
    """Raises `Broken` where others may look into the folder at `path`."""
    if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise Broken(f"{path} is open to others (mode {mode:o}); expected 700")


def agent_of(member: Membership) -> Agent:
    """The agent that answers for a site, with its part in runs that it was in."""
    federation = member.federation
    return Agent(
        member.key,
        federation.coordinator_key,
        bytes.fromhex(federation.digest()),
        member.join,
        member.rejoined(),
        AT_ONCE,
    )


@contextlib.contextmanager
def serving(folder: SiteFolder) -> Iterator[Membership]:
    """Answer at the socket of `folder` until the block ends, one process at a time.

    Raises as `open_member` does, and `Busy` where another process has the folder.
    """
    with held_alone(folder.path, Busy(f"another agent serves {folder.path}; stop it first")):
        member = open_member(folder)
        with LocalServer(folder.socket, agent_of(member).answer, LARGEST).serving():
            yield member
