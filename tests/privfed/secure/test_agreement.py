"""What both sides of a masked sum have to be configured alike for, and the hash of it."""

from dataclasses import dataclass, fields, make_dataclass, replace

import numpy as np
import pytest
from lanes import every_case
from masked_sums import codec

from privfed.core.streams import Keys
from privfed.privacy.noise.shares import DiscreteGaussianShare, Layers, SkellamShare
from privfed.secure import agreement as agreements
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.masked.policy import Expected, Policy

SETTINGS = {
    "codec": codec(),
    "policy": Policy(0.6, 0.1, "malicious"),
    "limits": Limits(10, 2, tolerance=0.3),
    "layers": Layers(400.0, 0.3),
}


OTHERWISE = {
    "clip": {"codec": replace(codec(), clip=2.0)},
    "step": {"codec": replace(codec(), step=codec().step * 2)},
    "reach": {"codec": replace(codec(), reach=2.0)},
    "noise": {"codec": replace(codec(), noise=SkellamShare(9.0))},
    "kind of noise": {"codec": replace(codec(), noise=DiscreteGaussianShare(3.0))},
    "threshold": {"policy": Policy(0.61, 0.1, "malicious")},
    "colluders": {"policy": Policy(0.6, 0.0, "malicious")},
    "threat": {"policy": Policy(0.6, 0.1, "curious")},
    "size": {"policy": Policy(0.6, 0.1, "malicious", size=6)},
    "admitted": {"policy": Policy(0.6, 0.1, "malicious", admitted=6)},
    "admitted, solved for": {"limits": Limits(10, 2, tolerance=0.3, admitted=6)},
    "minimum": {"limits": Limits(10, 3, tolerance=0.3)},
    "capacity": {"limits": Limits(11, 2, tolerance=0.3)},
    "tolerance": {"limits": Limits(10, 2, tolerance=0.4)},
    "byzantine": {"limits": Limits(10, 2, tolerance=0.3, byzantine=1)},
    "a layer's variance": {"layers": Layers(152.0, 0.3)},
    "layers' tolerance": {"layers": Layers(400.0, 0.2)},
    "no layers": {"layers": None},
}


def guest(settings, session=b"s" * 32):
    """A client with such settings, and what it is invited with by a server that has others."""
    policy, limits, layers = (settings[name] for name in ("policy", "limits", "layers"))
    expected = Expected(1, 0, b"h" * 32, settings["codec"])
    noise = ClientNoise(layers, Keys(b"k" * 32, secret=True)) if layers else None
    directory = {who: client_identity(who).public_key().public_bytes_raw() for who in (3, 8)}
    row = np.zeros(5, dtype=np.int64)
    client = MaskingClient(
        3, client_identity(3), directory, policy, expected, row.copy, limits, noise
    )
    return client, expected.invitation(session, policy, limits, layers)


def test_who_is_configured_alike_is_invited():
    _, invitation = guest(SETTINGS)
    client, _ = guest(dict(SETTINGS))
    assert client.handle(invitation).context == invitation.context


@every_case("other", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_who_is_configured_otherwise_completes_no_sum(other):
    _, invitation = guest(SETTINGS)
    client, theirs = guest({**SETTINGS, **other})
    assert theirs.context != invitation.context
    with pytest.raises(BadMessage, match="wrong agreement: the server and this client") as refused:
        client.handle(invitation)
    for compared in (Policy, Limits):
        assert all(field.name in str(refused.value) for field in fields(compared))


def test_another_version_completes_no_sum(monkeypatch):
    facts = {"clip": 1.0, "noise": None}
    here = agreements.agreement(**facts)
    assert (
        here == agreements.agreement(noise=None, clip=np.float64(1)) != agreements.agreement(clip=1)
    )
    monkeypatch.setattr(agreements, "PROTOCOL", agreements.PROTOCOL + 1)
    assert agreements.agreement(**facts) != here
    with pytest.raises(TypeError, match="no form that two parties could compare"):
        agreements.agreement(of=object())


NAMESAKE = make_dataclass("SkellamShare", [("variance", float)], frozen=True)


@every_case(
    "one, other",
    [
        (NAMESAKE(4.0), SkellamShare(4.0)),
        ({"SkellamShare": {"variance": 4.0}}, SkellamShare(4.0)),
        ({"number": "4"}, 4),
        (("number", "4"), 4),
        ({"bytes": "04"}, b"\x04"),
        ("4", 4),
        ({1: 2}, {"1": 2}),
        ({"a": 1}, (("a", 1),)),
        ((1, 2), (2, 1)),
        ((), None),
        ((1, (2,)), (1, 2)),
    ],
    ids=str,
)
def test_what_differs_has_another_hash(one, other):
    assert agreements.agreement(of=one) != agreements.agreement(of=other)
    assert agreements.agreement(of=one) == agreements.agreement(of=one)


@dataclass
class Changing:
    variance: float = 4.0


def test_what_may_change_cannot_be_agreed_on():
    with pytest.raises(TypeError, match="a Changing may change after two parties compared it"):
        agreements.agreement(of=Changing())
