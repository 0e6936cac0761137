"""Masked sums as a configurable part: guarantees, costs and refusals."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from privfed.core.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.privacy.setting import whole_sites
from privfed.secure.channel import Channel
from privfed.secure.encoded_sum import SecureProtocol, binomial_at_most
from privfed.secure.frames import NUMBER
from privfed.secure.limits import FEWEST, SENDS, Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel, masked_operations
from privfed.secure.masked.graph import Graph, graph_seed, recoverable
from privfed.secure.masked.messages.roster import Advertise, Attestation
from privfed.secure.masked.messages.sealed_shares import HASH, sealed_size
from privfed.secure.masked.messages.unmasking import Vote
from privfed.secure.masked.policy import (
    COMPLETE,
    MaskingPolicy,
    Policy,
    SitePolicy,
    least_threshold,
)
from privfed.secure.masked.shamir import LENGTH
from privfed.secure.operations import Operations
from privfed.secure.primitives import KEY, SIGNATURE, Expander
from privfed.secure.summation import Aborted, Session


class MaskedSums(SecureProtocol):
    """Masked sums (SecAgg, SecAgg+): the server learns only the sum over surviving clients.

    Clients add masks that cancel in the sum. Masks of dropouts are removed with secrets that the
    other clients hold in shares. The graph is complete up to 200 clients, unless `neighbours` is
    set. Above, it is the sparse graph of SecAgg+ for a server that follows the protocol, and a
    random graph for a malicious server without layers of noise, if these need fewer edges.

    *Trust*: up to a fraction `colluders` of a cohort may collude with the server; if the server is
    malicious, of any cohort that it can assemble (proved in `privfed.secure.masked`).
    Computational: as secure as X25519, AES-256, HKDF, ChaCha20-Poly1305 and Ed25519. A client can
    still send an arbitrary row. A client that sends invalid shares is identified and excluded from
    later sums.

    Source: Bonawitz et al. 2017, figure 4; Bell et al. 2020, section 3.
    """

    seen: ClassVar[str] = "the server sees exact sums, never a row"
    opener: ClassVar[str] = "the server"
    layers: ClassVar[bool] = True
    names_culprits: ClassVar[bool] = True
    threshold: float = Field(0.6, gt=0, le=1)
    """The fraction of a cohort, or of all sites, that must survive to the end."""
    admitted: int = Field(0, ge=0)
    """The smallest cohort with which a sum starts; 0 means `threshold` times the expected cohort,
    or the solved value where aborts cost privacy (`privfed.plan.sum_limits`).
    """
    neighbours: int = Field(0, ge=0)
    """Number of other clients with which each client masks; 0 chooses it from the cohort."""
    colluders: float = Field(0.1, ge=0, lt=1)
    """The fraction of a cohort that may collude with the server; with sites, that fraction of all
    sites, rounded up and at least one.
    """
    threat: Literal["curious", "malicious"] = "curious"
    """Whether the server follows the protocol ("curious") or may deviate from it ("malicious")."""

    @property
    def may_collude(self) -> float:
        return self.colluders

    @property
    def trusted_parties(self) -> tuple[str, ...]:
        return super().trusted_parties if self.threat == "curious" else ()

    def policy(self, size: int, admitted: int = 0, layered: bool = False) -> Policy:
        """Returns the clients' requirements.

        Args:
          size: expected cohort size.
          admitted: smallest cohort accepted if the key `admitted` is 0; if both are 0, `threshold`
            times `size`.
          layered: whether noise is in layers.
        """
        return Policy(
            self.threshold,
            self.colluders,
            self.threat,
            self.neighbours,
            size,
            self.admitted or admitted,
            layered,
        )

    def within(self, limits: Limits) -> MaskingPolicy:
        """Returns the requirements of clients, or sites, for sums within `limits`."""
        if not limits.sites:
            return self.policy(limits.size, limits.admitted, limits.layered)
        threshold = self.least_sites(limits.sites)
        return SitePolicy(limits.sites, limits.minimum, threshold, limits.colluders, self.threat)

    def colluding_sites(self, sites: int) -> int:
        return whole_sites(self.colluders, sites)

    def least_sites(self, sites: int) -> int:
        """Returns the smallest number of surviving `sites` with which a sum is opened.

        It is `threshold` * `sites`, rounded up, or more if secrecy against colluders requires it.
        """
        least = least_threshold(sites, self.colluding_sites(sites), self.threat)
        return max(least, math.ceil(self.threshold * sites - 1e-9), FEWEST)

    def least_cohort(self, limits: Limits) -> int:
        return max(super().least_cohort(limits), self.within(limits).smallest)

    def least_admitted(self, limits: Limits) -> int:
        """Returns the smallest permitted `Limits.admitted` (smallest cohort that starts a sum).

        It is `least_cohort` if the key `admitted` is set. Otherwise it is the largest of `minimum`,
        2, and two more than may collude in a cohort of the expected size.
        """
        return self.least_cohort(limits) if self.admitted else self._needed(limits)

    def _needed(self, limits: Limits) -> int:
        return max(super().least_cohort(limits), self.policy(limits.size).corrupt(0) + 2)

    def fewest(self, limits: Limits) -> int:
        """Returns the smallest number of survivors of a completed sum, over all cohorts.

        It is `minimum` for sites. For clients it is the larger of `limits.least(least_cohort)` and
        `threshold` * `least_cohort`, rounded up.
        """
        if limits.sites:
            return limits.minimum
        stay = math.ceil(self.threshold * self.least_cohort(limits) - 1e-9)
        return max(super().fewest(limits), stay)

    def colluding(self, limits: Limits) -> float:
        """Upper bound on the fraction of counted noise known to the server and its colluders.

        Of n clients who share keys at most K = colluders * max(n, size) collude. They know K / m of
        the noise of m survivors. For n <= size, K is colluders * size and m is at least `fewest`.
        For larger n, K / m is at most colluders / max(threshold, 1 - tolerance). With layers they
        know K / (n - T), as if all T dropouts within the tolerance had occurred. This is so even if
        the threshold excludes T dropouts: a tolerance above 1 - threshold costs noise.
        """
        return self.colluders * self.known_per_colluder(limits)

    def known_per_colluder(self, limits: Limits) -> float:
        stay = 1 - limits.tolerance
        if not limits.layered:
            stay = max(self.threshold, stay)
        return max(limits.size / self.sharing(limits), 1 / stay)

    def colluders_tolerated(self, limits: Limits) -> float:
        """Returns the largest `colluders` with which the graphs of these sums still hide every row.

        If n clients share keys on the complete graph, t shares open a secret, and the secret's
        owner holds one. So t - 2 colluders open none. Against a malicious server, 2 t > n + k is
        needed, too. If some graphs may be incomplete, the result is the configured `colluders`.
        With sites, the result is a number of sites, otherwise a fraction of a cohort.
        """
        if limits.sites:
            shares = self.least_sites(limits.sites)
            return 2 * shares - limits.sites - 1 if self.threat == "malicious" else shares - 1
        policy = self.within(limits)
        if limits.capacity > COMPLETE or self.neighbours:
            return self.colluders
        least = 1.0
        for clients in range(self.least_cohort(limits), limits.capacity + 1):
            try:
                shares = policy.graph(clients).threshold
            except Aborted:
                continue
            most = 2 * shares - clients - 1 if self.threat == "malicious" else shares - 2
            least = min(least, most / max(clients, limits.size))
        return max(self.colluders, least)

    def channel(
        self, session: Session, codec: Codec, limits: Limits, layers: Layers | None = None
    ) -> Channel:
        return MaskedChannel(session, codec, self.within(limits), limits, layers)

    def abort_probability(self, clients: int, dropout: float, limits: Limits) -> float:
        missing = super().abort_probability(clients, dropout, limits)
        policy = self.within(limits)
        if limits.sites:
            lost = binomial_at_most(limits.minimum - 1, clients, 1 - dropout)
            return min(1.0, missing + lost)
        if not dropout and not self.neighbours and clients > COMPLETE and self.threat == "curious":
            return missing if clients >= policy.smallest else 1.0
        try:
            graph = policy.graph(clients)
        except Aborted:
            return 1.0
        needed = max(graph.threshold, graph.survivors, graph.votes(limits.least(clients)))
        few = binomial_at_most(needed - 1, clients, 1 - dropout)
        if not graph.complete:  # for any client's neighbours, by the union bound
            others, rate = graph.trials
            few += clients * binomial_at_most(graph.threshold - 1, others, rate * (1 - dropout))
        return min(1.0, missing + few)

    def _graph(self, clients: int, layers: int) -> Graph:
        """Returns the graph on `clients`; a complete graph if no graph gives the guarantees."""
        try:
            return self.policy(0, layered=layers > 0).graph(clients)
        except Aborted:
            return Graph(clients, max(clients - 1, 1), max(clients - 1, 1))

    def operations(self, codec: Codec, clients: int, layers: int = 0) -> Operations:
        return masked_operations(self._graph(clients, layers), codec, layers)

    def download(self, clients: int, layers: int = 0) -> float:
        graph = self._graph(clients, layers)
        attested = Attestation.size if graph.independent else 0
        keys, shares = Advertise.size, sealed_size(layers) + _hashed_size(layers) + NUMBER.size
        per_client = 2 * NUMBER.size + KEY  # in the roster with a nonce, and as a survivor
        votes = graph.votes(0) * Vote.size
        return graph.degree * (keys + shares + attested) + votes + per_client * clients

    def upload(self, codec: Codec, clients: int, layers: int = 0) -> float:
        degree, fixed = self._graph(clients, layers).degree, 3 * (SIGNATURE + NUMBER.size) + 2 * KEY
        opened = (NUMBER.size + LENGTH) * (2 if layers else 1)
        sealed = NUMBER.size + sealed_size(layers) + _hashed_size(layers)
        frames = 5 * (KEY + NUMBER.size)
        row = Expander(codec.length, codec.bits).size
        return row + degree * (sealed + opened) + Advertise.size + Vote.size + fixed + frames

    def promise(self, clients: int, limits: Limits | None = None) -> str:
        """Returns a description of the guarantee for a sum over `clients`, within `limits`.

        Without `limits`, exactly `clients` are expected and no more are sampled.
        """
        limits = limits or Limits(clients, size=clients)
        policy = self.within(limits)
        if limits.sites:
            return self._site_guarantee_text(limits)
        graph = policy.graph(clients)
        about = "about " if graph.independent else ""
        neighbours_needed = f"{graph.threshold} of each client's {about}{graph.degree} neighbours"
        form = "complete graph" if graph.complete else f"and {neighbours_needed}"
        resists = self.resists_malicious_server(limits)
        secrecy = "even if it is malicious" if resists else "if it follows the protocol"
        colluders = policy.corrupt(clients)
        who = f"at most {colluders} of them collude" if colluders else "none of them colludes"
        needed = max(graph.survivors, graph.threshold)
        least = max(needed, limits.least(clients))
        if least > needed:
            form += f"; {needed} suffice to open the masks, but smaller sums abort"
        return (
            f"at least {least} of {clients} clients have to survive ({form}); the server learns "
            f"no row, {secrecy}, as long as {who} with it"
        )

    def _site_guarantee_text(self, limits: Limits) -> str:
        secrecy = (
            "even if it is malicious"
            if self.resists_malicious_server(limits)
            else "if it follows the protocol"
        )
        return (
            f"at least {limits.minimum} of {limits.sites} sites have to survive, and "
            f"{self.least_sites(limits.sites)} shares open a secret; the server learns no "
            f"site's sum, {secrecy}, as long as at most {limits.colluders} of them collude with it"
        )

    def resists_malicious_server(self, limits: Limits) -> bool:
        """Whether a malicious server can open only sums of enough clients.

        For sites the condition is that of `SitePolicy`. The server chooses which cohort it reports
        to which client. So the condition must hold for every cohort size at which clients accept a
        roster and unmask a sum. Unless `threat` is "malicious", the result is False if a cohort may
        have more than 200 clients: their graph may be the sparse graph of SecAgg+, which does not
        resist.
        """
        policy = self.within(limits)
        if limits.sites:
            return policy.resists_malicious_server(policy.graph(limits.sites))
        if self.threat == "malicious":  # `policy.graph` then refuses weaker graphs
            return True
        if limits.capacity > COMPLETE:
            return False
        for clients in range(self.least_cohort(limits), limits.capacity + 1):
            try:
                graph = policy.graph(clients)
            except Aborted:
                continue
            if not policy.resists_malicious_server(graph):
                return False
        return True

    def refuse_limits(self, limits: Limits) -> None:
        if limits.sites:
            return  # thresholds count sites: `privfed.plan.refusals.sites`
        least = self._needed(limits)
        if self.admitted and not least <= self.admitted <= limits.capacity:
            raise Refused(
                f"secure.admitted is {self.admitted}; expected from {least} (at least "
                f"secure.minimum, and two clients more than may collude) to {limits.capacity} "
                "(secure.capacity)"
            )
        if self.threshold <= self.colluders:
            raise Refused(
                f"secure.threshold is {self.threshold:g}, but secure.colluders = "
                f"{self.colluders:g} of a cohort may collude with the server, which would suffice "
                "to unmask any client; raise secure.threshold above secure.colluders"
            )
        if self.threat == "malicious" and 2 * self.threshold <= 1 + self.colluders:
            raise Refused(
                f"secure.threshold is {self.threshold:g}, but a malicious server could then "
                "unmask a client by reporting it to some clients as surviving and to others "
                "as a dropout; expected more than (1 + secure.colluders) / 2 = "
                f"{(1 + self.colluders) / 2:g}"
            )
        if self.threat == "malicious" and self.neighbours:
            raise Refused(
                f"secure.neighbours is {self.neighbours}, but has no proof against a malicious "
                "server (secure.threat), since such a server could choose each client's "
                "neighbours; remove the key"
            )
        if self.neighbours % 2:
            raise Refused(f"secure.neighbours is {self.neighbours}; expected an even number")

    def abort_where_lost(self, session: Session, limits: Limits) -> None:
        clients = tuple(session.clients.tolist())
        graph = self.within(limits).graph(len(clients))
        if not len(session.leaves):
            return
        seed = graph_seed(session)
        edge_key = graph.edge_key(seed, agreed=seed)
        near = {who: graph.neighbours(edge_key, clients, who) for who in clients}
        gone = dict(zip(clients, session.leaves.tolist(), strict=True))
        shared = {who for who in clients if gone[who] != Leaves.BEFORE_SHARING}
        sent = {who for who in clients if gone[who] in SENDS}
        stayed = {who for who in clients if gone[who] == Leaves.NEVER}
        enough = len(stayed) >= graph.votes(limits.least(len(clients)))
        steps = (shared, sent, stayed)
        if not enough or not all(recoverable(graph, near, shared, left) for left in steps):
            raise Aborted("too few clients survived to remove the masks")


def _hashed_size(layers: int) -> int:
    """Returns the size in bytes of a holder's number and the hashes of its shares."""
    return NUMBER.size + (2 + layers) * HASH
