"""What a site is asked for a sum: the released model, and all that its clients answer to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from accounting.documents import from_json
from privfed.client.exchange import Exchange
from privfed.core.vector import Layout
from privfed.privacy.mechanism import PublicState
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.by_sums import model_hash
from privfed.round.play import Conversation, play
from privfed.secure.frames import BadMessage, Reader, sized

Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class QuestionForm:
    """The task, scale and layout of an exchange, and the shapes of all that is sent for it."""

    task: str
    scale: float
    layout: Layout
    shapes: Mapping[str, Shape]


def rehearsed_questions(algorithm: Algorithm, state: TrainingState, round: int) -> list[Question]:
    """The questions of a `round` that begins at `state`.

    As the round's play asks them, whatever is released: their forms hang on public constants alone.
    """
    conversation, questions = Conversation(play(algorithm, round, state)), []
    for number, exchange in enumerate(conversation):
        questions.append(Question(round, number, exchange, state.mechanism))
        conversation.answer(torch.zeros(exchange.layout.length + algorithm.rule.extra))
    return questions


@dataclass(frozen=True)
class Question:
    """Exchange `number` of a round: what is asked, and the mechanism's public `state`."""

    round: int
    number: int
    exchange: Exchange
    state: PublicState

    @property
    def model_hash(self) -> bytes:
        """SHA-256 `[32]` of the model that is sent."""
        return model_hash(self.exchange)

    def width(self, algorithm: Algorithm) -> int:
        """The length of a bounded row that answers."""
        return algorithm.mechanism.width(algorithm.wire(self.exchange.layout))

    def encode(self) -> bytes:
        """The byte form: facts as JSON, then the tensors."""
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
        """The question that these bytes are. Raises `BadMessage`."""
        reader = Reader(data)
        try:
            facts: Any = from_json(reader.sized().decode())
            tensors = load(reader.rest())
            layout = Layout(tuple((str(name), int(size)) for name, size in facts["layout"]))
            broadcast, state = _without("broadcast", tensors), _without("state", tensors)
            exchange = Exchange(str(facts["task"]), broadcast, layout, float(facts["scale"]))
            question = cls(int(facts["round"]), int(facts["number"]), exchange, state)
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise BadMessage("wrong format", "bytes that are no question") from error
        question.refuse_not_finite()
        return question

    @property
    def form(self) -> QuestionForm:
        """All of it but its numbers."""
        exchange = self.exchange
        shapes = _shapes("broadcast", exchange.broadcast) | _shapes("state", self.state)
        return QuestionForm(exchange.task, exchange.scale, exchange.layout, shapes)

    def refuse_not_finite(self) -> None:
        """Raises `BadMessage` for a model, or a state, that is missing or not finite."""
        broadcast = self.exchange.broadcast
        if "params" not in broadcast or broadcast["params"].dim() != 1:
            raise BadMessage("wrong model", "a question without a model")
        for tensor in (*broadcast.values(), *self.state.values()):
            if not bool(torch.isfinite(tensor.double()).all()):
                raise BadMessage("wrong model", "a question whose numbers are not finite")


def _named(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with their `group` before their names."""
    return {f"{group}/{name}": value.cpu().contiguous().clone() for name, value in tensors.items()}


def _without(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `group`, by their own names."""
    start = f"{group}/"
    return {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}


def _shapes(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """The shapes and types of `tensors`, with their `group` before their names."""
    return {f"{group}/{name}": (tuple(t.shape), t.dtype) for name, t in tensors.items()}
