"""Committee sums as a configurable part: guarantees, costs and refusals."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from privfed.core.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Channel
from privfed.secure.committee.channel import CommitteeChannel
from privfed.secure.committee.dealing import DIGEST
from privfed.secure.committee.messages import SEALED, MemberVote
from privfed.secure.committee.policy import CommitteePolicy, drawn
from privfed.secure.encoded_sum import SecureProtocol, binomial_at_most
from privfed.secure.limits import SENDS, Leaves, Limits, sending
from privfed.secure.masked.shamir import LENGTH
from privfed.secure.operations import Operations
from privfed.secure.primitives import KEY, SIGNATURE, Expander
from privfed.secure.summation import Aborted, Session

_EXACT = 1e-9
_FRAMES = 4 + 32 + 8
"""Bytes of a message in addition to its content: format, context, sender."""


class CommitteeSums(SecureProtocol):
    """Sums that a committee opens: one message per client and round; the server learns only sums.

    Clients agree on keys once in a run. A client's one message contains its row under a fresh mask
    and under masks that cancel between clients. It also contains, sealed for each member of a small
    committee of the cohort, shares that remove these masks. Members vote for one set of surviving
    clients, and open the sum of these clients' rows.

    *Trust*: up to a fraction `colluders` of a cohort, in the committee or not, may collude with a
    malicious server (proved in `privfed.secure.committee`). Computational: as secure as X25519,
    AES-256, HKDF, ChaCha20-Poly1305, Ed25519 and SHA-256. A party that steals a client's keys reads
    its later rows of the run, and no earlier ones. A client can still send an arbitrary row. A
    client that sends invalid shares is identified and excluded from later sums.

    Source: Ma et al. 2023 (Flamingo), sections 4 and 5; Bonawitz et al. 2017.
    """

    seen: ClassVar[str] = "the server sees exact sums, never a row"
    opener: ClassVar[str] = "the server"
    names_culprits: ClassVar[bool] = True
    threshold: float = Field(0.75, gt=0.5, le=1)
    """The fraction of a cohort, and of its committee, that must survive to the end."""
    colluders: float = Field(0.1, ge=0, lt=1)
    """The fraction of a cohort that may collude with the server."""
    committee: int = Field(20, ge=3)
    """The smallest number of committee members (all clients of a smaller cohort); more if the
    colluders require it.
    """

    @property
    def may_collude(self) -> float:
        return self.colluders

    @property
    def trusted_parties(self) -> tuple[str, ...]:
        return ()

    def policy(self, size: int) -> CommitteePolicy:
        """Returns the clients' requirements for cohorts of an expected `size`."""
        return CommitteePolicy(self.threshold, self.colluders, self.committee, size)

    def least_cohort(self, limits: Limits) -> int:
        """Returns the smallest cohort with which a sum starts.

        It is the largest of `limits.minimum`, 2, and two more than may collude in a cohort of the
        expected size.
        """
        return max(super().least_cohort(limits), self.policy(limits.size).corrupt(0) + 2)

    def fewest(self, limits: Limits) -> int:
        """Returns the smallest number of survivors with which a sum is opened.

        It is the largest of `limits.least(least_cohort)`, `threshold` * `least_cohort` rounded up,
        and two more than may collude in a cohort of the expected size.
        """
        least_cohort = self.least_cohort(limits)
        stay = math.ceil(self.threshold * least_cohort - _EXACT)
        return max(super().fewest(limits), stay, self.policy(limits.size).corrupt(0) + 2)

    def colluding(self, limits: Limits) -> float:
        """Upper bound on the fraction of counted noise known to the server and its colluders.

        Of n clients at most K = colluders * max(n, size) collude. They know K / m of the noise of m
        survivors. For n <= size, K is colluders * size and m is at least `fewest`. For larger n, m
        is at least threshold * n, so K / m is at most colluders / threshold.
        """
        return self.colluders * self.known_per_colluder(limits)

    def known_per_colluder(self, limits: Limits) -> float:
        return max(limits.size / self.fewest(limits), 1 / self.threshold)

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        if layers is not None:
            raise Refused(
                'privacy.sizing is "layers", but layers of noise need masked sums; set '
                'secure.protocol = "masks"'
            )
        self.refuse_limits(limits)
        return CommitteeChannel(session, codec, self.policy(limits.size), limits)

    def abort_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        try:
            committee = self.policy(limits.size).committee(clients)
        except Aborted:
            return 1.0
        missing = super().abort_probability(clients, dropout, limits)
        few = binomial_at_most(committee.survivors - 1, clients, sending(dropout))
        absent = binomial_at_most(committee.threshold - 1, committee.members, 1 - dropout)
        return min(1.0, max(missing, few) + absent)

    def _members(self, clients: int) -> tuple[int, int]:
        """Returns the committee's size for `clients`, and the number of members that open a sum.

        Both are `clients` if these are too few for the number that may collude.
        """
        try:
            committee = self.policy(0).committee(clients)
        except Aborted:
            return clients, clients
        return committee.members, committee.threshold

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        """Returns the number of operations of a sum, without key agreement.

        Each number of a member is hashed twice: by the client that deals it, and by the member.
        """
        members, threshold = self._members(clients)
        row = Expander(codec.length, codec.bits)
        numbers, pairs = clients * clients * members, clients * clients
        return Operations(
            masked=(pairs + clients) * codec.length * row.word.itemsize,
            packed=clients * row.size,
            derived=2 * numbers + 2 * pairs,
            sealed=2 * clients * members,
            signatures=2 * clients + members * (4 + threshold),
            products=pairs * (members - threshold + 1) * threshold + clients * threshold,
        )

    def download(self, clients: int, layers: int = 0) -> float:
        """Returns the bytes that a client receives on average.

        It receives a roster and, as a member of the committee, an inbox and votes.
        """
        members, threshold = self._members(clients)
        inbox = clients * (8 + SEALED) + threshold * MemberVote.size + 2 * _FRAMES
        return 8.0 * clients + 2 * _FRAMES + 2 * KEY + members / clients * inbox

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        """Returns the bytes that a client sends on average.

        It sends a row with a dealing and, as a member of the committee, two more messages.
        """
        members, threshold = self._members(clients)
        corrections = clients * (members - threshold + 1) * LENGTH
        dealt = members * (SEALED + DIGEST) + corrections + clients * DIGEST
        proved = 12 + KEY + DIGEST * (1 + math.ceil(math.log2(clients)))
        opened = clients * proved + 3 * (SIGNATURE + _FRAMES)
        row = Expander(codec.length, codec.bits).size + SIGNATURE + _FRAMES
        return row + dealt + members / clients * opened

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        limits = limits or Limits(clients, size=clients)
        committee = self.policy(limits.size).committee(clients)
        least = max(committee.survivors, limits.least(clients))
        return (
            f"at least {least} of {clients} clients have to survive, and {committee.threshold} "
            f"of a committee of {committee.members}; the server learns no row, even if it is "
            f"malicious, as long as at most {committee.corrupt} of them collude with it"
        )

    def refuse_limits(self, limits: Limits) -> None:
        if limits.sites:
            raise Refused(
                'secure.parties is "sites", but the committee protocol supports clients only; set '
                'secure.protocol = "masks"'
            )
        if 2 * self.threshold <= 1 + self.colluders:
            raise Refused(
                f"secure.threshold is {self.threshold:g}, but a malicious server could then report "
                "different survivors to members of the committee and open both sums; expected more "
                f"than (1 + secure.colluders) / 2 = {(1 + self.colluders) / 2:g}"
            )

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        clients = tuple(sorted(session.clients.tolist()))
        committee = self.policy(limits.size).committee(len(clients))
        if not len(session.leaves):
            return
        gone = dict(zip(session.clients.tolist(), session.leaves.tolist(), strict=True))
        if sum(when in SENDS for when in gone.values()) < committee.survivors:
            raise Aborted("too few clients sent their row")
        members = drawn(session.round, session.exchange, clients, committee.members)
        if sum(gone[who] == Leaves.NEVER for who in members) < committee.threshold:
            raise Aborted("too few members of the committee helped to remove the masks")
