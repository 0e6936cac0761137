"""The committed state of a client of a masked sum, serialised so that it can resume after a crash.

The bytes contain the client's secrets and are never sent: they stay in a file that only the client
can read. They begin with their format, a hash of the client's `PartyTerms`, and the client's
number. They end with a hash of all previous bytes, which detects damage. The hash is no signature:
a party that can write the file can forge a state, but could also read the secrets.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from privfed.core.errors import Broken
from privfed.privacy.noise.shares import Layers
from privfed.secure.agreement import agreement
from privfed.secure.frames import COUNT, NUMBER, BadMessage, Reader, records, sized
from privfed.secure.limits import Limits
from privfed.secure.masked.messages.roster import Roster
from privfed.secure.masked.messages.sealed_shares import values_of
from privfed.secure.masked.messages.unmasking import Survivors
from privfed.secure.masked.messages.wire import decode, encode
from privfed.secure.masked.policy import Expected, MaskingPolicy
from privfed.secure.masked.shamir import LENGTH, PRIME
from privfed.secure.primitives import KEY

ENDED = 5
"""The step of a client that answers no further message."""
_FORMAT = b"PFP2"
_SEED = struct.Struct(f"<{KEY}s")
_Kind = TypeVar("_Kind", Roster, Survivors)


class BadState(Broken):
    """Raised if a client cannot resume from its stored state; `fault` names the reason."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(
            f"{fault}: {detail}; leave the sum (this party then counts as dropped out), and do not "
            "restore another state"
        )
        self.fault = fault


@dataclass(frozen=True)
class PartyTerms:
    """A client's identity, configuration and policy, to which its stored state is bound."""

    me: int
    directory: Mapping[int, bytes]
    policy: MaskingPolicy
    expected: Expected
    limits: Limits
    layers: Layers | None

    @property
    def digest(self) -> bytes:
        """The hash `[32]` of all fields and of the protocol version."""
        return agreement(state="masks", terms=self)


@dataclass(frozen=True, repr=False)
class Progress:
    """A party's progress: how often its state was stored (`commits`), and its last answer.

    `question` is the SHA-256 hash of the message to which `answer` was given. `row_requested` is
    True from the moment before the row is computed, which happens only once.
    """

    commits: int = 0
    row_requested: bool = False
    question: bytes = bytes(KEY)
    answer: bytes = b""


@dataclass(frozen=True, repr=False)
class PartyState:
    """A client's state after `step` answers; secrets are held only while needed.

    Attributes:
      secrets: nonce, seed of the self-mask, private keys of channels and masks (steps 1 and 2).
      layers: seeds of the layers of noise (step 2).
      roster: the agreed roster (steps 2 to 4).
      held: the client's shares of secrets, by the secrets' owner (steps 2 to 4).
      shared: clients that sent shares (steps 3 and 4).
      acknowledged: hash of the hashes of all shares that the client received (steps 3 and 4).
      survivors: the survivors that the client voted for (step 4).
    """

    me: int
    step: int
    progress: Progress
    context: bytes = b""
    secrets: tuple[bytes, ...] = ()
    layers: tuple[bytes, ...] = ()
    roster: Roster | None = None
    held: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shared: tuple[int, ...] = ()
    acknowledged: bytes = b""
    survivors: Survivors | None = None

    def to_bytes(self, terms: PartyTerms) -> bytes:
        """Returns the bytes of the state, bound to `terms`."""
        data = _FORMAT + terms.digest + NUMBER.pack(self.me) + self._body()
        return data + hashlib.sha256(data).digest()

    def _body(self) -> bytes:
        progress = self.progress
        flags = COUNT.pack(self.step) + COUNT.pack(progress.row_requested)
        data = flags + NUMBER.pack(progress.commits) + progress.question + sized(progress.answer)
        data += sized(self.context)
        data += b"".join(self.secrets)
        if self.roster:
            data += sized(encode(self.roster)) + records(list(self.layers)) + _packed(self.held)
            data += records([NUMBER.pack(client) for client in self.shared]) + self.acknowledged
        return data + (sized(encode(self.survivors)) if self.survivors else b"")


class StateReader:
    """Parses a state: the client's number `me` at once, all else by `state`.

    Raises:
      BadState: if the bytes are damaged or of another format.
    """

    def __init__(self, data: bytes) -> None:
        content, check = data[:-KEY], data[-KEY:]
        if hashlib.sha256(content).digest() != check or not content.startswith(_FORMAT[:3]):
            raise BadState("damaged", "the bytes are not what a client committed")
        if not content.startswith(_FORMAT):
            raise BadState("other format", "another version of privfed wrote the state")
        if len(content) < len(_FORMAT) + KEY + NUMBER.size:
            raise BadState("damaged", "the state ends too early")
        self._reader = Reader(content[len(_FORMAT) :])
        self._terms, self.me = self._reader.take(KEY), self._reader.number()

    def state(self, terms: PartyTerms) -> PartyState:
        """Returns the state. Raises `BadState` if it is damaged or bound to other `terms`."""
        if self._terms != terms.digest:
            raise BadState(
                "foreign",
                "the state is of another party, or of another configuration: compare directory, "
                "policy, limits, layers of noise, round, model, codec and the version",
            )
        try:
            state = self._read()
            self._reader.end()
        except BadMessage as error:
            raise BadState("damaged", str(error)) from error
        return state

    def _read(self) -> PartyState:
        data = self._reader
        step, row_requested, commits = data.count(), data.count(), data.number()
        if step > ENDED or row_requested > 1:
            raise BadState("damaged", "the state names a step that no client reaches")
        progress = Progress(commits, bool(row_requested), data.take(KEY), data.sized())
        context = data.sized()
        if len(context) != KEY and (context or step not in (0, ENDED)):
            raise BadState("damaged", "the state's session is impossible")
        state = PartyState(self.me, step, progress, context)
        if step in (1, 2):
            state = replace(state, secrets=tuple(data.take(KEY) for _ in range(4)))
        if 2 <= step < ENDED:
            roster = _message(data, Roster, context)
            layers = tuple(seed for (seed,) in data.records(_SEED))
            held, senders = _unpacked(data), tuple(sender for (sender,) in data.records(NUMBER))
            state = replace(state, roster=roster, layers=layers, held=held, shared=senders)
        if step in (3, 4):
            state = replace(state, acknowledged=data.take(KEY))
        if step == 4:
            state = replace(state, survivors=_message(data, Survivors, context))
        return state


def _message(data: Reader, kind: type[_Kind], context: bytes) -> _Kind:
    message = decode(data.sized())
    if not isinstance(message, kind) or message.context != context:
        raise BadState("damaged", f"no {kind.__name__} of this session where one belongs")
    return message


def _packed(held: tuple[tuple[int, tuple[int, ...]], ...]) -> bytes:
    width = len(held[0][1]) if held else 0
    packed = [
        NUMBER.pack(who) + b"".join(value.to_bytes(LENGTH, "little") for value in shares)
        for who, shares in held
    ]
    return COUNT.pack(width) + records(packed)


def _unpacked(data: Reader) -> tuple[tuple[int, tuple[int, ...]], ...]:
    width = data.count()
    held = []
    for who, values in data.records(struct.Struct(f"<Q{width * LENGTH}s")):
        shares = values_of(values)
        if not all(share < PRIME for share in shares):
            raise BadState("damaged", "a share is outside the field")
        held.append((who, shares))
    return tuple(held)
