"""Questions, by which a coordinator asks a site for one sum, and the sealed answers.

A question contains the released model and the other inputs of the clients' training. The answer is
sealed: a sum that only the coordinator can read, signed by the site.

The numbers of a sum are float64, little-endian. The coordinator declares an X25519 key; a site
seals to it with a fresh key for each sum (ECIES, by `privfed.secure.primitives`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from accounting.documents import from_json
from privfed.client.exchange import Exchange
from privfed.core.vector import Layout, all_finite
from privfed.deploy.files.keys import PublicKey, SiteKey
from privfed.privacy.mechanism import PublicState
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.by_sums import model_hash
from privfed.round.round import Conversation, play
from privfed.secure.frames import BadMessage, Reader, sized
from privfed.secure.primitives import KEY, SIGNATURE, KeyPair, LowOrder, derive, random_key, unseal
from privfed.secure.primitives import seal as seal_text

Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class QuestionForm:
    """The `Exchange` of a question without values: task, scale, layout, shapes and types."""

    task: str
    scale: float
    layout: Layout
    shapes: Mapping[str, Shape]


def rehearsed_questions(algorithm: Algorithm, state: TrainingState, round: int) -> list[Question]:
    """Returns the questions of `round` from `state`, if each question is answered by a zero sum.

    The forms of the questions (`Question.form`) depend on public constants only, so every round of
    `algorithm` has the same forms.
    """
    conversation, questions = Conversation(play(algorithm, round, state)), []
    for number, exchange in enumerate(conversation):
        questions.append(Question(round, number, exchange, state.mechanism))
        conversation.answer(torch.zeros(exchange.layout.length + algorithm.rule.extra))
    return questions


@dataclass(frozen=True)
class Question:
    """A coordinator's request for the sum of exchange `number` of a round.

    `state` is the mechanism's public state.
    """

    round: int
    number: int
    exchange: Exchange
    state: PublicState

    @property
    def model_hash(self) -> bytes:
        """SHA-256 of the broadcast model, 32 bytes."""
        return model_hash(self.exchange)

    def width(self, algorithm: Algorithm) -> int:
        """Returns the number of entries of the row that the mechanism bounds for each client."""
        return algorithm.mechanism.width(algorithm.wire(self.exchange.layout))

    def encode(self) -> bytes:
        """Returns the question in bytes: scalars and names as JSON, then the tensors."""
        facts = {
            "round": self.round,
            "number": self.number,
            "task": self.exchange.task,
            "scale": self.exchange.scale,
            "layout": [list(part) for part in self.exchange.layout.parts],
        }
        tensors = _named("broadcast", self.exchange.broadcast) | _named("state", self.state)
        return sized(json.dumps(facts, sort_keys=True).encode()) + save(tensors)

    @classmethod
    def decode(cls, data: bytes) -> Question:
        """Parses a question.

        Raises `BadMessage` if it is malformed, has no model, or has numbers that are not finite.
        """
        reader = Reader(data)
        try:
            facts: Any = from_json(reader.sized().decode())
            tensors = load(reader.rest())
            layout = Layout(tuple((str(name), int(size)) for name, size in facts["layout"]))
            broadcast, state = _without("broadcast", tensors), _without("state", tensors)
            exchange = Exchange(str(facts["task"]), broadcast, layout, float(facts["scale"]))
            question = cls(int(facts["round"]), int(facts["number"]), exchange, state)
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise BadMessage("wrong format", "the bytes are not a question") from error
        question.refuse_not_finite()
        return question

    @property
    def form(self) -> QuestionForm:
        """The question's task, scale, layout, and the shapes and types of its tensors."""
        exchange = self.exchange
        shapes = _shapes("broadcast", exchange.broadcast) | _shapes("state", self.state)
        return QuestionForm(exchange.task, exchange.scale, exchange.layout, shapes)

    def refuse_not_finite(self) -> None:
        """Raises `BadMessage` if the model is missing or no vector, or a tensor is not finite."""
        broadcast = self.exchange.broadcast
        if "params" not in broadcast or broadcast["params"].dim() != 1:
            raise BadMessage("wrong model", "the question has no model")
        for tensor in (*broadcast.values(), *self.state.values()):
            if not bool(torch.isfinite(tensor.double()).all()):
                raise BadMessage("wrong model", "the question contains numbers that are not finite")


def _named(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies of `tensors`, with their names prefixed by `group` and a slash."""
    return {f"{group}/{name}": value.cpu().contiguous().clone() for name, value in tensors.items()}


def _without(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with `group` and a slash, by the rest of the name."""
    start = f"{group}/"
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


def _shapes(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Returns the shapes and types of `tensors`, by names prefixed by `group` and a slash."""
    return {f"{group}/{name}": (tuple(t.shape), t.dtype) for name, t in tensors.items()}


_TYPE = np.dtype("<f8")
_PURPOSE = b"privfed plain sum"


@dataclass(frozen=True)
class SealedSums:
    """Seals and opens the sums that answer a `question`.

    Attributes:
      run: hash of the first line of the run's ledger, 32 bytes.
      question: the question.
    """

    run: bytes
    question: Question

    def seal(self, total: Tensor, key: SiteKey, coordinator: bytes) -> bytes:
        """Returns a site's sum, signed and sealed for the coordinator.

        Args:
          total: the sum `[m]`.
          key: the site's signing key.
          coordinator: the coordinator's public X25519 key, 32 bytes.

        Raises:
          BadMessage: if the coordinator's key is of low order.
        """
        plain = total.cpu().numpy().astype(_TYPE).tobytes()
        once = KeyPair(random_key())
        try:
            secret = once.agree(coordinator)
        except LowOrder as error:
            raise BadMessage("wrong key", "the coordinator's key is of low order") from error
        text = key.sign(self._signed(plain)) + plain
        sealing = derive(secret, self._about, _PURPOSE)
        return once.public + seal_text(sealing, text, once.public)

    def open(self, data: bytes, length: int, site: PublicKey, coordinator: KeyPair) -> Tensor:
        """Opens a site's sealed sum.

        Args:
          data: the sealed sum.
          length: number of entries of the sum.
          site: the site's public signing key.
          coordinator: the coordinator's X25519 key pair.

        Returns:
          The sum `[length]`, in float64.

        Raises:
          BadMessage: if the sum was not sealed for this question, has another length, is not signed
            by the site, or is not finite.
        """
        reader = Reader(data)
        once, sealed = reader.take(KEY), reader.rest()
        try:
            opening = derive(coordinator.agree(once), self._about, _PURPOSE)
        except LowOrder as error:
            raise BadMessage("wrong key", "the sum is sealed by a key of low order") from error
        text = unseal(opening, sealed, once)
        if text is None or len(text) != SIGNATURE + length * _TYPE.itemsize:
            raise BadMessage("wrong row", "the bytes are not a sum for this question")
        signature, plain = text[:SIGNATURE], text[SIGNATURE:]
        if not site.verifies(signature, self._signed(plain)):
            raise BadMessage("wrong signature", "the sum is not signed by its site")
        total = torch.from_numpy(np.frombuffer(plain, _TYPE).astype(np.float64))
        if not all_finite(total):
            raise BadMessage("wrong row", "the sum is not finite")
        return total

    @property
    def _about(self) -> bytes:
        return hashlib.sha256(self.run + self.question.encode()).digest()

    def _signed(self, plain: bytes) -> bytes:
        return _PURPOSE + self._about + hashlib.sha256(plain).digest()
