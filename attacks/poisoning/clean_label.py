"""Clean-label backdoors: poisoned examples are altered but keep their labels."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.backdoor import Backdoor
from attacks.poisoning.hidden import chosen_share
from attacks.types import Briefing, Knowledge, State, Unarmed

_MOST = 2_000
"""Largest number of examples to which the attackers' linear model (the surrogate) is fitted."""


class CleanLabel(Backdoor):
    """Alters only a fraction `share` of the attackers' examples of `target`; labels remain correct.

    Makes the model classify examples with a patch as `target`. Each altered example is made hard to
    classify, so training relies on the patch. The example is moved by at most `epsilon`
    (Euclidean), and a patch of weight `blend` is laid over it, (1 - blend) x + blend `value`. The
    move is against a linear model (ridge regression onto the classes, of up to 2,000 of all
    attackers' examples). It ends where some other class is farthest ahead of `target`, x + epsilon
    (w_j - w_y) / |w_j - w_y|, which is optimal for moves of this length. With "noise" the move has
    a random direction, for comparison. The move precedes the patch and keeps every number within
    its range among the attackers' examples.

    Knows the data of all attackers and its own updates. Success: the fraction of other classes'
    test examples with the patch at full weight that are classified as `target`.

    Source: Turner, Tsipras & Madry 2019, "Label-consistent backdoor attacks", sections 4.2
    (adversarial perturbations, there of a network trained beforehand) and 4.3 (patches that are
    hardly visible in training).

    >>> import torch, numpy
    >>> x, y = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([0, 1])
    >>> attack = CleanLabel(size=1, epsilon=0.2, blend=0.5)
    >>> briefing = Briefing(2, learned=attack.study(x, y, 2))
    >>> attack.poison(x, y, briefing, numpy.random.default_rng(0))
    (tensor([[0.2000, 0.0000, 0.5000],
            [1.0000, 0.0000, 0.0000]]), tensor([0, 1]))
    """

    knows: ClassVar[frozenset[Knowledge]] = Backdoor.knows | {Knowledge.ATTACKERS_DATA}
    share: float = Field(1.0, gt=0, le=1)
    """Fraction of an attacker's examples of `target` that is altered, rounded up."""
    epsilon: float = Field(1.0, ge=0, le=1e6)
    """Distance by which examples are moved before the patch is laid over them, in the units of the
    model's input."""
    moved_by: Literal["surrogate", "noise"] = "surrogate"
    """Direction of the move: "surrogate", against a linear model that the attackers fit; or
    "noise", random."""
    blend: float = Field(1.0, gt=0, le=1)
    """Weight of the patch over altered training examples; 1 replaces their pixels."""

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        if not bool((y == self.target).any()):
            raise Unarmed(f"none of the attackers' {len(x)} examples is of class {self.target}")
        flat = x.flatten(1)
        low, high = flat.min(0).values, flat.max(0).values
        step = math.ceil(len(flat) / _MOST)
        weights, offset = _ridge(flat[::step], y[::step], classes)
        return {"low": low, "high": high, "weights": weights, "offset": offset}

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        places = torch.nonzero(y == self.target)[:, 0]
        chosen = places[chosen_share(len(places), self.share, rng).to(y.device)]
        flat = x[chosen].flatten(1)
        moved = flat + self.epsilon * self._ways(flat, briefing.learned, rng)
        within = moved.clamp(briefing.learned["low"], briefing.learned["high"])
        x = x.clone()
        x[chosen] = self._stamped(within.view_as(x[chosen]))
        return x, y

    def _stamped(self, x: Tensor) -> Tensor:
        """Returns examples `[n, *]` with the patch laid over them at weight `blend`."""
        blended = (1 - self.blend) * x + self.blend * self.value
        return torch.where(self.patch(x) >= 0, blended, x)

    def _ways(self, flat: Tensor, learned: State, rng: np.random.Generator) -> Tensor:
        """Returns the directions `[n, d]` in which examples are moved, of norm one, or zero for
        examples that stay in place.
        """
        if self.moved_by == "noise":
            ways = torch.from_numpy(rng.normal(size=tuple(flat.shape))).to(flat)
        else:
            ways = self._against(flat, learned)
        length = torch.linalg.vector_norm(ways, dim=1, keepdim=True)
        return torch.where(length > 0, ways / length, 0.0)

    def _against(self, flat: Tensor, learned: State) -> Tensor:
        """Returns w_j - w_y `[n, d]`, for each of n examples; y is `target`, j the class farthest
        ahead of it after the move.
        """
        weights = learned["weights"]
        away = weights - weights[self.target]
        lead = flat @ away.T + learned["offset"] - learned["offset"][self.target]
        gain = lead + self.epsilon * torch.linalg.vector_norm(away, dim=1)
        gain[:, self.target] = -torch.inf
        return away[gain.argmax(1)]


def _ridge(flat: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Returns the ridge regression of the classes y `[n]` on the examples `flat` `[n, d]`.

    It consists of weights `[classes, d]` and offsets `[classes]`. The penalty is the mean squared
    length of the centred examples.
    """
    wanted = torch.nn.functional.one_hot(y, classes).to(flat)
    center, mean = flat.mean(0), wanted.mean(0)
    away = flat - center
    gram = away @ away.T
    penalty = gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    solved = torch.linalg.solve(gram + penalty * eye, wanted - mean)
    weights = solved.T @ away
    return weights, mean - weights @ center
