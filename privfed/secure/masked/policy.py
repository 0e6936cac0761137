"""The requirements of a client of masked sums: a cohort's graph, and the sum that it expects."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Literal, Protocol, runtime_checkable

from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.secure.agreement import agreement
from privfed.secure.frames import BadMessage
from privfed.secure.limits import Limits
from privfed.secure.masked import circle, random_graph
from privfed.secure.masked.graph import Graph, RandomGraph
from privfed.secure.masked.messages.roster import Invitation
from privfed.secure.summation import Aborted


def least_threshold(sites: int, colluders: int, threat: Literal["curious", "malicious"]) -> int:
    """Returns the smallest permitted number t of shares that open a secret.

    t > k and, if `threat` is "malicious", 2 t > n + k, for n `sites` and k `colluders`.
    """
    return (sites + colluders) // 2 + 1 if threat == "malicious" else colluders + 1


@dataclass(frozen=True)
class SitePolicy:
    """The requirements of a pinned site (glossary); counts refer to all pinned sites.

    Counts never refer to a roster from the server: sites that are missing from a roster count as
    dropouts (rules of proof, section 9.1, S5).

    Attributes:
      sites: number of pinned sites.
      minimum: smallest number of surviving sites.
      threshold: number of shares that reconstruct a secret.
      colluders: number of sites that may collude with the server.
      threat: whether the server follows the protocol ("curious") or may deviate ("malicious").
    """

    sites: int
    minimum: int
    threshold: int
    colluders: int
    threat: Literal["curious", "malicious"]

    @property
    def smallest(self) -> int:
        """The smallest number of sites in a roster that is accepted."""
        return self.minimum

    def corrupt(self, clients: int) -> int:
        """Returns the largest number of sites that may collude with the server."""
        return self.colluders

    def counted_of(self, clients: int) -> int:
        """Returns the number of parties expected for a roster of `clients`: all sites."""
        return self.sites

    def graph(self, clients: int) -> Graph:
        """Returns the complete graph on `clients` sites.

        Raises `Aborted` unless their number is from `minimum` to `sites`.
        """
        if not self.minimum <= clients <= self.sites:
            raise Aborted(
                f"{clients} sites take part; expected from {self.minimum} to {self.sites}"
            )
        return Graph(clients, clients - 1, self.threshold, self.minimum)

    def resists_malicious_server(self, graph: Graph) -> bool:
        """Whether a malicious server that misreports dropouts still learns only one sum.

        This holds if 2 `threshold` > `sites` + `colluders`.
        """
        return 2 * self.threshold > self.sites + self.colluders


COMPLETE = 200
"""The largest number of clients with a complete graph, unless `neighbours` is set."""
_EXACT = 1e-9
"""A tolerance that compensates rounding errors before floor and ceil."""


@dataclass(frozen=True)
class Policy:
    """The requirements that each client enforces, whatever the server sends.

    Attributes:
      threshold: fraction of a cohort that must survive.
      colluders: largest fraction of a cohort that may collude with the server.
      threat: whether the server follows the protocol ("curious") or may deviate ("malicious").
      neighbours: neighbours of each client; 0 chooses the number from the cohort.
      size: expected cohort size, a public constant; colluders are a fraction of the larger of this
        size and the cohort's.
      admitted: smallest cohort accepted, so that the server cannot present a small one; 0 for
        `threshold` times `size`, rounded up.
      layered: whether noise is in layers, which excludes random graphs.
    """

    threshold: float
    colluders: float
    threat: Literal["curious", "malicious"]
    neighbours: int = 0
    size: int = 0
    admitted: int = 0
    layered: bool = False

    @property
    def smallest(self) -> int:
        """The smallest cohort that is accepted, at least 2."""
        return max(2, self.admitted or math.ceil(self.threshold * self.size - _EXACT))

    def counted_of(self, clients: int) -> int:
        """Returns the number of parties expected for a roster of `clients`: all its clients."""
        return clients

    def corrupt(self, clients: int) -> int:
        """Returns the largest number of `clients` that may collude with the server."""
        return math.floor(self.colluders * max(clients, self.size) + _EXACT)

    def graph(self, clients: int) -> Graph:
        """Returns the graph for `clients`.

        Raises `Aborted` if fewer clients than `smallest` take part, or no graph has the guarantees.
        """
        return _graph(self, clients)

    def resists_malicious_server(self, graph: Graph) -> bool:
        """Whether a malicious server that misreports dropouts still learns only one sum."""
        return graph.resists_malicious_server(self.corrupt(graph.clients))

    def least_threshold(self, clients: int) -> int:
        """Returns the number of `clients` that must survive on the complete graph.

        The number t is at least `clients` - `lost`, and at least two more than may collude: a
        client holds one of its own shares, and at least one other honest client must help. If the
        configured fractions imply 2 t > n + k, for n clients of whom k may collude, t is large
        enough that this inequality also holds for integer counts, for any admitted cohort.
        """
        corrupt = self.corrupt(clients)
        least = max(clients - self.lost(clients), corrupt + 2)
        promised = 2 * self.threshold > 1 + self.colluders
        return max(least, (clients + corrupt) // 2 + 1) if promised else least

    def lost(self, clients: int) -> int:
        """Returns floor((1 - `threshold`) * `clients`): the largest number that may drop out."""
        return math.floor((1 - self.threshold) * clients + _EXACT)


@functools.lru_cache(maxsize=4096)
def _graph(policy: Policy, clients: int) -> Graph:
    if clients < policy.smallest:
        raise Aborted("too few clients for the expected cohort")
    corrupt = policy.corrupt(clients)
    lost = policy.lost(clients)
    sparse = policy.threat == "curious" and (policy.neighbours or clients > COMPLETE)
    if sparse and (circular := circle.sparsest_circle(clients, corrupt, lost, policy.neighbours)):
        return Graph(clients, *circular, clients - lost)
    drawn = policy.threat == "malicious" and not policy.layered and clients > COMPLETE
    if drawn and (shape := random_graph.sparsest_shape(clients, corrupt, lost)):
        votes, apart = shape.votes, shape.isolated
        return RandomGraph(clients, shape.degree, shape.threshold, votes, isolated=apart)
    graph = Graph(clients, clients - 1, policy.least_threshold(clients), clients - lost)
    if graph.threshold > clients:
        raise Aborted("too few clients for the number that may collude")
    if policy.threat == "malicious" and not policy.resists_malicious_server(graph):
        raise Aborted("too few clients for a threshold that withstands a malicious server")
    return graph


MaskingPolicy = Policy | SitePolicy
"""A party's own requirements, which it enforces whatever the server sends."""


@runtime_checkable
class Masking(Protocol):
    """Interface of protocols whose sums are masked."""

    def within(self, limits: Limits) -> MaskingPolicy:
        """Returns the requirements of parties for sums within `limits`."""


@functools.lru_cache(maxsize=256)
def settings(codec: Codec, policy: MaskingPolicy, limits: Limits, layers: Layers | None) -> bytes:
    """Returns the hash of the configuration that server and clients must share."""
    return agreement(protocol="masks", codec=codec, policy=policy, limits=limits, layers=layers)


@dataclass(frozen=True)
class Expected:
    """A client's expectations of a sum, from the run and the model that it received."""

    round: int
    exchange: int
    model_hash: bytes
    codec: Codec

    def invitation(
        self, session: bytes, policy: MaskingPolicy, limits: Limits, layers: Layers | None
    ) -> Invitation:
        """Returns the invitation to this sum for parties with the given settings."""
        terms = settings(self.codec, policy, limits, layers)
        return Invitation(
            session,
            self.round,
            self.exchange,
            self.model_hash,
            self.codec.bits,
            self.codec.length,
            terms,
        )

    def require(
        self, invitation: Invitation, policy: MaskingPolicy, limits: Limits, layers: Layers | None
    ) -> None:
        """Raises `BadMessage` if the invitation is to another sum, or of another configuration."""
        expected = self.invitation(invitation.session, policy, limits, layers)
        for name in ("round", "exchange", "model_hash", "bits", "length"):
            if getattr(invitation, name) != getattr(expected, name):
                raise BadMessage(f"wrong {name}", "the invitation is to another sum")
        if invitation.agreement != expected.agreement:
            raise BadMessage(
                "wrong agreement",
                "the server and this client have different configurations; compare on both "
                "sides the codec (clip, step, reach, noise), the policy "
                f"({_names(type(policy))}), the limits ({_names(Limits)}), the layers of noise "
                f"({_names(Layers)}) and the version of privfed",
            )


def _names(settings: type[MaskingPolicy] | type[Limits] | type[Layers]) -> str:
    return ", ".join(field.name for field in fields(settings))
