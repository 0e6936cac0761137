"""The mean of networks after their hidden units are matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from defenses.deferred import Tensor, optimize, torch
from defenses.types import RowRule
from defenses.weighing import admitted


class MatchedMean(RowRule):
    """The mean of clients' networks, each with its hidden units permuted to match the server's.

    w_k = model + x_k is client k's network. Layer by layer from the first, unit j of w_k moves to
    the index pi(j) of the unit of the broadcast model with the nearest incoming weights and bias.
    Each index receives one unit, so that the sum of squared distances is least (an assignment
    problem); the next layer's columns are permuted accordingly. F(x) is the mean of the permuted
    networks minus the model. A network computes the same function in any order of its hidden units.
    Clients that agree up to that order therefore average to the common network, where a plain mean
    may be useless.

    Needs rows, the broadcast model and its layers: a chain of layers, each with a weight and a bias
    (dense layers, and convolutions, whose channels are units). Operations between layers must treat
    units alike, as activations and pooling do. Outputs are not permuted. Tolerates no Byzantine
    client. O(n (d h + h^3)) for layers of h units. Under central noise and secure sums the rule is
    refused, like every rule on rows: the matching is a function of complete rows, with no proven
    sensitivity.

    Source: Wang, Yurochkin, Sun, Papailiopoulos & Khazaeni 2020, "Federated learning with matched
    averaging", section 2 (one client's assignment, by the Hungarian algorithm). Not implemented:
    changes of the model's width (the paper adds unmatched units), and rounds in which clients train
    the layers above a matched one.

    >>> import torch
    >>> model = torch.tensor([1.0, 2.0, 0.0, 0.0, 5.0, 7.0, 0.0])
    >>> swapped = torch.tensor([2.0, 1.0, 0.0, 0.0, 7.0, 5.0, 0.0])
    >>> rows, layers = torch.stack([model, swapped]) - model, torch.tensor([2, 2, 2, 1])
    >>> model + MatchedMean()(rows, byzantine=0, model=model, layers=layers)
    tensor([1., 2., 0., 0., 5., 7., 0.])
    """

    robust: ClassVar[bool] = False
    tolerance: ClassVar[str] = "none"

    def needs(self) -> frozenset[str]:
        return frozenset({"layers", "model"})

    def most(self, n: int) -> int:
        return n

    def unfit_reason(self, layers: Sequence[int]) -> str:
        if _widths(layers):
            return ""
        return (
            "its parameters are not a chain of layers, each with one weight and one bias, in "
            "which the units of a layer are the inputs of the next layer"
        )

    def __call__(  # type: ignore[override]
        self, rows: Tensor, byzantine: int, *, layers: Tensor, model: Tensor
    ) -> Tensor:
        among = admitted(rows, byzantine, (), self)
        sizes = layers.tolist()
        if not _widths(sizes) or sum(sizes) != rows.shape[1]:
            raise ValueError(
                f"layers have sizes {sizes}, but must be a chain that fills rows of "
                f"{rows.shape[1]} numbers; use another rule"
            )
        if not among.count:
            return among.nothing()
        rows = among.rows if among.keep is None else among.rows[among.keep]
        matched = rows + model.to(rows)
        for network in matched:
            _match(network, model.to(rows), sizes)
        return matched.mean(0) - model.to(rows)


def _widths(sizes: Sequence[int]) -> list[int]:
    """Returns the width of each layer from `sizes`, those of each layer's weight and bias in turn.

    Empty if the sizes are not those of a chain of layers.
    """
    weights, biases = sizes[::2], sizes[1::2]
    if not sizes or len(weights) != len(biases) or not all(biases):
        return []
    divide = all(weight % bias == 0 for weight, bias in zip(weights, biases, strict=True))
    inputs = [weight // bias for weight, bias in zip(weights, biases, strict=True)]
    follow = all(wide % units == 0 for wide, units in zip(inputs[1:], biases, strict=False))
    return list(biases) if divide and follow else []


def _match(network: Tensor, model: Tensor, sizes: Sequence[int]) -> None:
    """Permutes the hidden units of `network` `[d]` to match those of `model` `[d]`, in place."""
    parts, wanted = (torch.split(each, list(sizes)) for each in (network, model))
    widths = _widths(sizes)
    for layer, units in enumerate(widths[:-1]):
        weight, bias, after = parts[2 * layer : 2 * layer + 3]
        incoming, target = (
            torch.cat([of[2 * layer].view(units, -1), of[2 * layer + 1][:, None]], dim=1)
            for of in (parts, wanted)
        )
        order = _nearest_order(incoming, target)
        weight.copy_(weight.view(units, -1)[order].reshape(-1))
        bias.copy_(bias[order])
        columns = after.view(widths[layer + 1], units, -1)
        after.copy_(columns[:, order].reshape(-1))


def _nearest_order(units: Tensor, target: Tensor) -> Tensor:
    """Returns, for each unit of `target` `[h, k]`, the index `[h]` of its match among `units`."""
    distances = torch.cdist(target.double(), units.double()).square()
    _, chosen = optimize.linear_sum_assignment(distances.cpu().numpy())
    return torch.from_numpy(chosen).to(units.device)
