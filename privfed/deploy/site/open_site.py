"""A site as its folder makes it: an agent that answers, for as long as it is held open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from privfed.deploy.carriers.local_socket import LocalServer
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.files.site_folder import SiteFolder
from privfed.deploy.policies.policy import LocalPolicy
from privfed.deploy.site.agent import Agent
from privfed.deploy.site.joining import AT_ONCE, Membership
from privfed.errors import Busy
from privfed.store.folders import held_alone

LARGEST = 1 << 30
"""Bytes of the largest message that a site reads."""


def open_member(folder: SiteFolder) -> Membership:
    """The site in `folder`, all of whose files are as they should be.

    Raises `Refused` and `Broken`, and `LedgerBroken` for receipts that were edited.
    """
    key, federation = SiteKey.read(folder.key), FederationFile.read(folder.federation)
    LocalPolicy.read(folder.policy)
    SiteTable.read(folder.data)
    member = Membership(folder, key, federation, Receipts.recover(folder.receipts))
    _ = member.number
    return member


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
