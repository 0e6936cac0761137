"""The space of inputs that a synthetic client may hold, derived from public information only.

No client's example is used: bounds and vocabulary are declared, or those of the public test set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.core.errors import Refused
from privfed.core.streams import Keys, uniforms
from privfed.data.federation import Examples, Federation
from privfed.data.inputs import X, by_position
from privfed.data.preprocessing import Preprocessing
from privfed.models.form import Form

_FIRST_STEP = 0.25
"""Length of the first step, in widths of the box; later steps shrink linearly toward zero."""


@dataclass(frozen=True)
class Box:
    """Inputs between `low` and `high`, both `[*features]`, each with a class below `classes`."""

    low: Tensor
    high: Tensor
    classes: int

    def drawn(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """Returns uniform x `[count, *features]` in the box, and y `[count]`, one random class."""
        words = keys.bits(count * self.low.numel() + 1)
        y = torch.full((count,), int(words[0] % np.uint64(self.classes)))
        part = torch.from_numpy(uniforms(words[1:])).float().view(count, *self.low.shape)
        return self.low + part * (self.high - self.low), y

    def crafted(
        self, x: Tensor, y: Tensor, influence: SelfInfluence, steps: int, keys: Sequence[Keys]
    ) -> tuple[Tensor, Tensor]:
        """Returns x after `steps` of ascent by the gradient's signs within the box, and `y`.

        The ascent maximises the canaries' worth by `influence`; its step length decreases linearly.

        Raises the model's error if the model cannot be differentiated twice.

        Args:
          x: features, shape `[c, n, *features]`.
          y: labels, shape `[c, n, *labels]`.
          influence: computes the worth.
          steps: number of steps.
          keys: not used.
        """
        low, high = self.low.to(x), self.high.to(x)
        for step in range(steps):
            leaf = x.detach().requires_grad_()
            worth = influence.of(leaf, y).sum()
            (uphill,) = torch.autograd.grad(worth, leaf)
            length = _FIRST_STEP * (1 - step / steps)
            x = torch.clamp(x + length * (high - low) * uphill.sign(), low, high)
        return x.detach(), y


_SIZES = 5
"""Number of sizes: candidates use 2, 4, ... up to 2 to this power distinct tokens, in turn."""


@dataclass(frozen=True)
class Sentences:
    """Sequences of tokens below `vocabulary`: x of shape `features`, labels of shape `labels`.

    If both shapes are equal, the label at each position is the next token of the sequence.
    Otherwise an example has one label, below `classes`.
    """

    features: tuple[int, ...]
    labels: tuple[int, ...]
    vocabulary: int
    classes: int

    @property
    def predicts(self) -> bool:
        """Whether labels are the next tokens."""
        return self.features == self.labels

    def drawn(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """Returns x and y of `count` random sequences.

        If labels are the next tokens, the sequences share their second half; else they have one
        class.
        """
        return self._drawn(keys, count, self.vocabulary)

    def crafted(
        self, x: Tensor, y: Tensor, influence: SelfInfluence, steps: int, keys: Sequence[Keys]
    ) -> tuple[Tensor, Tensor]:
        """Returns for each canary its own x and y or, if worth more, those of a candidate.

        There are `steps` random candidates for each canary, and no ascent, since tokens have no
        gradient. Candidates use few distinct tokens, because a repetitive sequence has a longer
        gradient. A candidate's worth is computed among the other canaries' candidates of the same
        step.
        """
        best = influence.of(x, y).detach()
        for step in range(steps):
            few = min(2 ** (1 + step % _SIZES), self.vocabulary)
            pairs = [
                self._drawn(each.derived(b"candidate %d" % step), x.shape[1], few) for each in keys
            ]
            others = tuple(torch.stack(part).to(x.device) for part in zip(*pairs, strict=True))
            worth = influence.of(*others).detach()
            better = worth > best
            best = torch.where(better, worth, best)
            x, y = (_where(better, new, old) for new, old in zip(others, (x, y), strict=True))
        return x, y

    def _drawn(self, keys: Keys, count: int, few: int) -> tuple[Tensor, Tensor]:
        """Returns x and y of `count` random sequences, of `few` random tokens of the vocabulary.

        If `few` is the size of the vocabulary, all tokens are used. Of the random numbers, the
        first selects the label, the next `few` the tokens to use, and the others the sequences.
        """
        length = math.prod(self.features)
        drawn_words = keys.bits(1 + few + (count + 1) * (length + 1))
        label, words, alphabet = drawn_words[0], drawn_words[1:], np.arange(few)
        if few < self.vocabulary:
            alphabet = (words[:few] % np.uint64(self.vocabulary)).astype(np.int64)
        places = (words[few:] % np.uint64(few)).astype(np.int64)
        tokens = torch.from_numpy(alphabet[places]).view(count + 1, length + 1)
        secret, drawn = tokens[0], tokens[1:].clone()
        if not self.predicts:
            y = torch.full((count,), int(label % np.uint64(self.classes)))
            return drawn[:, :-1].reshape(count, *self.features), y
        drawn[:, length // 2 + 1 :] = secret[length // 2 + 1 :]
        x, y = drawn[:, :-1], drawn[:, 1:]
        return x.reshape(count, *self.features), y.reshape(count, *self.labels)


def _where(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.view(-1, *(1 for _ in old.shape[1:])), new, old)


InputSpace = Box | Sentences
"""The space of inputs of one kind, from which synthetic examples are sampled and crafted."""


def space_of(federation: Federation) -> InputSpace:
    """Returns the space of this population's inputs, from public information only.

    Raises:
      Refused: if an example has several named inputs, or labels other than one class (or the next
        token at each position); or if neither a declaration nor a public example bounds the inputs.
    """
    form = Form.of(federation.examples)
    public = federation.test if len(federation.test) and not federation.shared else None
    if not form.classified:
        raise Refused(
            'audit.kind = "input" creates examples with one class each, but the labels are '
            'numbers or columns; use audit.kind = "update"'
        )
    if not by_position(form.inputs):
        raise Refused(
            'audit.kind = "input" creates examples of one input, but here are several named ones; '
            'use audit.kind = "update"'
        )
    if form.tokens:
        return Sentences(form.features, form.labels, _vocabulary(form, public), form.classes)
    if form.labels:
        raise Refused(
            'audit.kind = "input" creates inputs with one class each, but an example here has '
            f'a label for each of {form.labels} positions; use audit.kind = "update"'
        )
    low, high = _bounds(form, public)
    return Box(low, high, form.classes)


def _vocabulary(form: Form, public: Examples | None) -> int:
    """Returns the size of the vocabulary.

    This is the declared one or, if labels are the next tokens, the number of classes, or else one
    more than the largest token in `public`. Raises `Refused` if all three are missing.
    """
    if form.inputs:
        return form.inputs[X].tokens
    if form.labels == form.features:
        return form.classes
    if public is None:
        raise Refused(_nothing_public("the number of tokens", "`tokens` of the input"))
    return int(_features(public).max()) + 1


def _bounds(form: Form, public: Examples | None) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest value of each feature, both `[*features]`.

    Raises `Refused` if neither a declaration nor a public example states them.
    """
    if form.preprocessing is not None:
        return _declared_bounds(form.preprocessing)
    if public is None:
        raise Refused(_nothing_public("the bounds of an input", "columns with bounds"))
    x = _features(public)
    return x.amin(0).cpu(), x.amax(0).cpu()


def _declared_bounds(how: Preprocessing) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest value of each preprocessed feature, `[*features]`.

    They are the range onto which numbers are scaled, and 0 and 1 for indicators of categories.
    """
    words = sum(len(category.values) for category in how.categories)
    numbers = 1 if how.is_array else sum(each.count for each in how.numbers)
    if how.is_array:
        return torch.full(how.shape, how.onto[0]), torch.full(how.shape, how.onto[1])
    low, high = ([end] * numbers + [bit] * words for end, bit in zip(how.onto, (0, 1), strict=True))
    return torch.tensor(low).float().view(how.shape), torch.tensor(high).float().view(how.shape)


def _features(examples: Examples) -> Tensor:
    return examples.x[torch.arange(len(examples), device=examples.y.device)]


def _nothing_public(what: str, declaration: str) -> str:
    return (
        f'audit.kind = "input" creates inputs, but no public information states {what}; '
        f"declare {declaration}, hold out a public test set (data.holdout), or use "
        'audit.kind = "update"'
    )
