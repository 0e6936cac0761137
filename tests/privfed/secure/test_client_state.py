"""The bytes of a client's state: what is in them, and which are refused by name."""

import hashlib
import re
from dataclasses import replace

import pytest
from committed_parties import STEPS, Setting, everybody, key_of, played
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from privfed.privacy.noise.shares import Layers
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.client_state import BadState, StateReader
from privfed.secure.masked.shamir import PRIME

SETTING = Setting(layers=Layers(50.0, 0.25, 1))
SITES = everybody(SETTING)
OUTCOME = played(SETTING, SITES)
STATES = SITES[8].states
HEAD = 4 + 32 + 8
CHECK = 32
FAULTS = r"^(damaged|foreign|other format): "


def restored(data, setting=SETTING, site=8):
    return setting.client(site, None, data)


@every_case("state", STATES, ids=range(1, 7))
def test_a_state_is_its_clients_bytes(state):
    client = restored(state)
    assert client.to_bytes() == state
    assert client.progress.commits == STATES.index(state) + 1


def test_a_client_that_answered_nothing_has_a_state_too():
    client = SETTING.client(8, None)
    assert restored(client.to_bytes()).to_bytes() == client.to_bytes()
    assert client.step == 0


def test_secrets_are_in_it_as_long_as_they_are_needed():
    """Until the row is masked, and no longer."""
    client = restored(STATES[1])
    secrets = [client._seed, client._channel_secret, client._mask_secret, *client._layers]
    assert len(secrets) == 4
    for commit, state in enumerate(STATES, start=1):
        there = [bytes(secret) in state for secret in secrets]
        assert there == [commit <= 3] * 3 + [commit in (2, 3)]
    shares = [value.to_bytes(33, "little") for value in restored(STATES[3])._held[13]]
    assert [all(share in state for share in shares) for state in STATES] == [
        *[False] * 3,
        *[True] * 2,
        False,
    ]
    answers = [OUTCOME.answers[8, name] for name in STEPS]
    for state, answer in zip(STATES, (*answers[:2], *answers[1:]), strict=True):
        assert answer in state


@every_case("state", STATES, ids=range(1, 7))
def test_every_damaged_byte_is_seen(state):
    for at in [*range(HEAD + 31), *range(HEAD + 31, len(state), 7)]:
        damaged = state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :]
        with pytest.raises(BadState, match=r"^damaged: "):
            restored(damaged)
    for damaged in (b"", state[:3], state[:40], state[: HEAD + 31], state[:-1], state + b"x"):
        with pytest.raises(BadState, match=r"^damaged: "):
            restored(damaged)


def resealed(data):
    """`data` with the hash that belongs to it: no damage, but made up."""
    return data[:-CHECK] + hashlib.sha256(data[:-CHECK]).digest()


def test_another_format_is_refused_by_name():
    with pytest.raises(BadState, match=r"^other format: another version"):
        restored(resealed(b"PFP3" + STATES[2][4:]))


FOREIGN = {
    "another party's": lambda: restored(STATES[2], site=13),
    "another round's": lambda: restored(STATES[2], Setting(layers=SETTING.layers, round=2)),
    "without layers": lambda: restored(STATES[2], Setting()),
    "of other layers": lambda: restored(STATES[2], Setting(layers=Layers(51.0, 0.25, 1))),
    "of other limits": lambda: restored(STATES[2], Setting(minimum=5, layers=SETTING.layers)),
    "of other sites": lambda: restored(STATES[2], Setting(sites=6, layers=SETTING.layers)),
    "renumbered": lambda: restored(
        resealed(STATES[2][: HEAD - 8] + (13).to_bytes(8, "little") + STATES[2][HEAD:]), site=13
    ),
    "of nobody": lambda: restored(
        resealed(STATES[2][: HEAD - 8] + (99).to_bytes(8, "little") + STATES[2][HEAD:])
    ),
}


@every_case("refused", FOREIGN.values(), ids=FOREIGN.keys())
def test_the_state_of_another_party_or_sum_is_refused_by_name(refused):
    with pytest.raises(BadState, match=r"^foreign: .*leave the sum"):
        refused()


def test_a_state_needs_the_key_of_whose_it_is():
    terms = list(SETTING.terms(8, None))
    terms[0] = key_of(13)
    with pytest.raises(BadState, match=r"^foreign: .*holder of this key"):
        MaskingClient.from_bytes(STATES[2], *terms)


def read(data):
    """What becomes of bytes: a client, which is written down alike, or a fault by name."""
    try:
        client = restored(data)
    except BadState as error:
        refused = str(error)
    else:
        assert client.to_bytes() == data
        return client
    assert re.match(FAULTS, refused)
    return None


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_no_other_bytes_are_a_state(data):
    assert read(data) is None
    assert read(b"PFP2" + data) is None
    assert read(resealed(STATES[1][:HEAD] + data + bytes(CHECK))) is None


@given(st.sampled_from(STATES), st.data())
@settings(max_examples=300)
def test_whatever_is_made_up_is_a_state_or_refused_by_name(state, data):
    """With the right head and hash: no other error, and nothing that is written down otherwise."""
    start = data.draw(st.integers(HEAD, len(state) - CHECK))
    end = data.draw(st.integers(start, min(start + 40, len(state) - CHECK)))
    put = data.draw(st.binary(max_size=12) | st.just(bytes(end - start)))
    read(resealed(state[:start] + put + state[end:]))


def first(state, shares):
    """The first who dealt any dealt these instead."""
    return (state.held[0][0], shares), *state.held[1:]


def unsigned(roster):
    keys = (replace(roster.keys[0], signature=bytes(64)), *roster.keys[1:])
    return replace(roster, keys=keys)


MADE_UP = {
    "shares out of order": (4, lambda s: {"held": s.held[::-1]}),
    "shares twice": (4, lambda s: {"held": (*s.held, s.held[-1])}),
    "senders out of order": (4, lambda s: {"shared": s.shared[::-1]}),
    "senders twice": (4, lambda s: {"shared": (*s.shared, s.shared[-1])}),
    "shares of a stranger": (4, lambda s: {"held": (*s.held, (99, s.held[0][1]))}),
    "a stranger's shares sent": (4, lambda s: {"shared": (*s.shared, 99)}),
    "too few shares of each": (4, lambda s: {"held": tuple((who, of[:2]) for who, of in s.held)}),
    "a share outside the field": (4, lambda s: {"held": first(s, (PRIME, 1, 2))}),
    "a layer more": (2, lambda s: {"layers": (*s.layers, bytes(32))}),
    "no layer": (2, lambda s: {"layers": ()}),
    "keys that nobody signed": (2, lambda s: {"roster": unsigned(s.roster)}),
    "keys of fewer": (2, lambda s: {"roster": replace(s.roster, keys=s.roster.keys[1:])}),
    "another nonce": (2, lambda s: {"secrets": (bytes(32), *s.secrets[1:])}),
    "another threshold": (4, lambda s: {"roster": replace(s.roster, threshold=2)}),
    "too few survivors": (
        5,
        lambda s: {"survivors": replace(s.survivors, clients=s.survivors.clients[:3])},
    ),
}
"""After which commit, and what is changed."""


@every_case("commit, change", MADE_UP.values(), ids=MADE_UP.keys())
def test_a_state_that_no_client_comes_to_is_refused(commit, change):
    """Though its hash is right: parts that do not fit together, or in another form."""
    data = STATES[commit - 1]
    terms = restored(data)._terms
    state = StateReader(data).state(terms)
    assert state.to_bytes(terms) == data
    with pytest.raises(BadState, match=r"^damaged: "):
        restored(replace(state, **change(state)).to_bytes(terms))


@given(st.sampled_from(STATES), st.integers(0, 7), st.sampled_from(STATES), st.data())
@settings(max_examples=100)
def test_pieces_of_two_states_are_no_third(first, step, second, data):
    at = data.draw(st.integers(HEAD, min(len(first), len(second)) - CHECK))
    read(resealed(first[:at] + second[at:]))
    other = first[:HEAD] + step.to_bytes(4, "little") + first[HEAD + 4 :]
    read(resealed(other))
