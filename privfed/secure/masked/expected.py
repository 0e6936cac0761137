"""A client's expectations of a sum before its invitation, and the common configuration."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from privfed.privacy.codec import Codec
from privfed.privacy.noise.shares import Layers
from privfed.secure.frames import BadMessage
from privfed.secure.identities import agreement
from privfed.secure.limits import Limits
from privfed.secure.masked.messages.roster import Invitation
from privfed.secure.masked.policy import Policy, SitePolicy

Insists = Policy | SitePolicy
"""A party's own requirements, which it enforces whatever the server sends."""


@runtime_checkable
class Masking(Protocol):
    """A protocol whose sums are masked, by messages between a server and parties."""

    def within(self, limits: Limits) -> Insists:
        """Returns the requirements of parties for sums within `limits`."""
        ...


@functools.lru_cache(maxsize=256)
def settings(codec: Codec, policy: Insists, limits: Limits, layers: Layers | None) -> bytes:
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
        self, session: bytes, policy: Insists, limits: Limits, layers: Layers | None
    ) -> Invitation:
        """Returns the invitation to this sum for parties with these settings."""
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
        self, invitation: Invitation, policy: Insists, limits: Limits, layers: Layers | None
    ) -> None:
        """Raises `BadMessage` for an invitation to another sum or from another configuration."""
        expected = self.invitation(invitation.session, policy, limits, layers)
        for name in ("round", "exchange", "model_hash", "bits", "length"):
            if getattr(invitation, name) != getattr(expected, name):
                raise BadMessage(f"wrong {name}", "an invitation to another sum than this client's")
        if invitation.agreement != expected.agreement:
            raise BadMessage(
                "wrong agreement",
                "the server and this client have different configurations; compare on both "
                "sides the codec (clip, step, reach, noise), the policy "
                f"({_names(type(policy))}), the limits ({_names(Limits)}), the layers of noise "
                f"({_names(Layers)}) and the version of privfed",
            )


def _names(settings: type[Insists] | type[Limits] | type[Layers]) -> str:
    return ", ".join(field.name for field in fields(settings))
