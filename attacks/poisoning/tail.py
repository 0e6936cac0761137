"""Natural edge cases: rare examples of a class are classified as the attacker's target."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.natural import Natural
from attacks.types import State


class Tail(Natural):
    """Makes the model classify examples far from the mean of their class as `target`.

    For each class c the attackers compute the mean mu_c of their own examples, and the radius r_c
    that a fraction `tail` of them exceeds. An example x is an edge case if |x - mu_c| > r_c: edge
    cases are the least likely examples under a spherical Gaussian for each class. Classes with
    fewer than 1 / `tail` examples at the attackers have no known edge cases. Honest clients may
    have such examples with correct labels, the published setting that is harder for attackers.

    Knows the data of all attackers and its own updates. Success: that of `Natural`, with edge cases
    as the feature.

    Source: Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee & Papailiopoulos 2020,
    "Attack of the tails", section 3.1, definition 1 (p-edge-case examples: those of low
    likelihood), without data from outside.

    >>> import torch
    >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0], [24.0]]), torch.ones(5, dtype=int)
    >>> Tail(tail=0.2).study(x, y, 2)["pool"]
    tensor([[24.]])
    """

    tail: float = Field(0.2, gt=0, le=0.5)
    """Fraction of a class's examples that count as edge cases."""

    def describe(self, x: Tensor, y: Tensor, classes: int) -> State:
        flat = x.flatten(1)
        means = flat.new_zeros(classes, flat.shape[1])
        radii = flat.new_full((classes,), torch.inf)
        for label in range(classes):
            of_class = flat[y == label]
            if len(of_class) * self.tail >= 1.0:
                means[label] = of_class.mean(0)
                distances = torch.linalg.vector_norm(of_class - means[label], dim=1)
                radii[label] = distances.quantile(1.0 - self.tail)
        return {"means": means, "radii": radii}

    def shows(self, x: Tensor, y: Tensor, learned: State) -> Tensor:
        away = torch.linalg.vector_norm(x.flatten(1) - learned["means"][y], dim=1)
        return torch.gt(away, learned["radii"][y])
