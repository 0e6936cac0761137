"""Which inputs a made-up client may hold: what is public of the examples that a model takes.

Nothing here looks at an example of a client: bounds and vocabulary are declared, or those of the
public test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from privfed.auditing.canaries.box import Box
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.auditing.canaries.sentences import Sentences
from privfed.data.federation import Examples, Federation
from privfed.data.preprocessing import Preprocessing
from privfed.errors import Refused
from privfed.models.form import Form
from privfed.streams import Keys


class InputSpace(Protocol):
    """Where inputs of one kind lie: draws made-up examples, and crafts them."""

    def drawn(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """`count` random examples of a canary: x `[count, *features]`, y `[count, *labels]`."""
        ...

    def crafted(
        self, x: Tensor, y: Tensor, influence: SelfInfluence, steps: int, keys: Sequence[Keys]
    ) -> tuple[Tensor, Tensor]:
        """Examples x `[c, n, *features]`, y `[c, n, *labels]` after `steps` of crafting.

        `keys` are those of the c canaries.
        """
        ...


def space_of(federation: Federation) -> InputSpace:
    """The space of this population's inputs, by what is public of them.

    Raises `Refused` where nothing can be crafted: for labels that are no classes, and where neither
    a declaration nor a public example says what an input may be.
    """
    form = Form.of(federation.examples)
    public = federation.test if len(federation.test) and not federation.shared else None
    if not form.classified:
        raise Refused(
            'audit.kind = "input" makes up examples with a wrong class each, and labels here are '
            'numbers or columns; use audit.kind = "update"'
        )
    if form.tokens:
        return Sentences(form.features, form.labels, _vocabulary(form, public), form.classes)
    if form.labels:
        raise Refused(
            'audit.kind = "input" makes up inputs with one class each, and an example here has a '
            f'label for each of {form.labels} positions; use audit.kind = "update"'
        )
    low, high = _bounds(form, public)
    return Box(low, high, form.classes)


def _vocabulary(form: Form, public: Examples | None) -> int:
    """How many tokens there are: as many as classes where a model predicts tokens."""
    if form.labels == form.features:
        return form.classes
    if public is None:
        raise Refused(_nothing_public("how many tokens there are"))
    return int(_features(public).max()) + 1


def _bounds(form: Form, public: Examples | None) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each feature, `[*features]` both."""
    if form.preprocessing is not None:
        return _declared_bounds(form.preprocessing)
    if public is None:
        raise Refused(_nothing_public("between which bounds an input lies"))
    x = _features(public)
    return x.amin(0).cpu(), x.amax(0).cpu()


def _declared_bounds(how: Preprocessing) -> tuple[Tensor, Tensor]:
    """Numbers are scaled onto a range, and each word of a category is a feature 0 or 1."""
    words = sum(len(category.values) for category in how.categories)
    numbers = 1 if how.is_array else sum(each.count for each in how.numbers)
    if how.is_array:
        return torch.full(how.shape, how.onto[0]), torch.full(how.shape, how.onto[1])
    low, high = ([end] * numbers + [bit] * words for end, bit in zip(how.onto, (0, 1), strict=True))
    return torch.tensor(low).float().view(how.shape), torch.tensor(high).float().view(how.shape)


def _features(examples: Examples) -> Tensor:
    return examples.x[torch.arange(len(examples), device=examples.y.device)]


def _nothing_public(what: str) -> str:
    return (
        f'audit.kind = "input" makes up inputs, and nothing public says {what}: declare columns '
        'with bounds, hold out a public test set (data.holdout), or use audit.kind = "update"'
    )
