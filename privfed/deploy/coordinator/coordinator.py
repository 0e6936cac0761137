"""The server's side of a sum over sites on machines of their own: it asks, waits, and opens it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.deploy.carriers.carrier import Carrier
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.messages.questions import Question
from privfed.local.exchange import Exchange
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedSum, PublicState
from privfed.privacy.noise.shares import Layers
from privfed.round.algorithm import Algorithm
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.frames import sized
from privfed.secure.identities import Directory
from privfed.secure.masked.expected import Expected, Masking
from privfed.secure.masked.messages import FromServer, Message, decode, encode
from privfed.secure.masked.server import MaskingServer
from privfed.secure.primitives import random_key
from privfed.secure.summation import Aborted


@dataclass(frozen=True)
class Coordinator:
    """Masked sums over the sites of a `directory`, which a `carrier` reaches.

    Every message is signed with `key`, and bound to the `federation` (the hash of its file) and the
    `run`, of 32 bytes each. A site has `seconds` for each of its answers; who has not answered by
    then has dropped out of the sum. What a site answers in the wrong form is as good as nothing.
    """

    algorithm: Algorithm
    directory: Directory
    carrier: Carrier
    key: Ed25519PrivateKey
    federation: bytes
    run: bytes
    seconds: float

    def sum(self, round: int, number: int, exchange: Exchange, state: PublicState) -> BoundedSum:
        """The sum over all sites, with their noise. Raises `Aborted` where too few stay."""
        question = Question(round, number, exchange, state)
        codec, server = self._session(question)
        opening = sized(question.encode()) + encode(server.invitation)
        sites = dict.fromkeys(self.directory, opening)
        self._take(server, self._asked(Kind.QUESTION, sites))
        for _ in range(4):
            self._take(server, self._asked(Kind.STEP, _encoded(server.proceed())))
        words, survivors = server.total()
        total = codec.decode(codec.unwrap(words.astype("uint64")))
        return BoundedSum(torch.from_numpy(total), codec.bound * codec.step, survivors)

    def _session(self, question: Question) -> tuple[Codec, MaskingServer]:
        """How rows become whole numbers, and the server of a sum that is new."""
        summation = self.algorithm.summation
        if not isinstance(summation, EncodedSummation) or not isinstance(
            summation.protocol, Masking
        ):
            raise TypeError("sites on machines of their own send masked sums")
        limits = summation.limits
        encoding = self.algorithm.mechanism.encoding(question.state)
        codec = summation.codec(encoding, question.width(self.algorithm))
        layers = encoding.noise if isinstance(encoding.noise, Layers) else None
        policy = summation.protocol.within(limits)
        expected = Expected(question.round, question.number, question.model_hash, codec)
        invitation = expected.invitation(bytes(random_key()), policy, limits, layers)
        sites, seed = tuple(sorted(self.directory)), bytes(random_key())
        server = MaskingServer(invitation, sites, self.directory, policy, seed, limits, layers)
        return codec, server

    def _asked(self, kind: Kind, bodies: Mapping[int, bytes]) -> dict[int, Message]:
        """What sites answer to `bodies` in time, where it is a message at all."""
        deadline = time.monotonic() + self.seconds
        for site, body in bodies.items():
            envelope = Envelope(self.federation, self.run, kind, body).signed(self.key)
            self.carrier.send(site, envelope.encode(), deadline)
        answers: dict[int, Message] = {}
        awaited = set(bodies)
        while awaited and (arrived := self.carrier.receive(deadline)):
            for site, data in arrived:
                if site in awaited and (message := _message(data)) is not None:
                    answers[site] = message
                awaited.discard(site)
        return answers

    def _take(self, server: MaskingServer, answers: Mapping[int, Message]) -> None:
        """Hand answers to the sum's server; who is refused by it counts as dropped."""
        for site, message in answers.items():
            try:
                server.handle(site, message)
            except Aborted:
                continue


def _encoded(messages: Mapping[int, FromServer]) -> dict[int, bytes]:
    return {site: encode(message) for site, message in messages.items()}


def _message(data: bytes) -> Message | None:
    """The protocol's message in a site's answer; None where it answers something else."""
    try:
        reply, body = read_answer(data)
        return decode(body) if reply == Reply.ANSWERED else None
    except Aborted:
        return None
