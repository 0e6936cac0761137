"""One reconstruction: from what is observed of an update to the examples that it was made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.privacy.analytic_inversion import recover_candidates, recover_one
from attacks.privacy.gradient_inversion import Search, match_direction, match_gradients
from attacks.privacy.label_recovery import label_shares, labels_in_proportion, recover_label
from privfed.core.errors import Refused
from privfed.models.network import Network
from privfed.privacy_attacks.subject import Subject


def update_function(
    network: Network, params: Tensor, lr: float, steps: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """The function (x `[B, *features]`, y `[B]`) -> w_S - w_0 `[d]`, with w_0 = `params` `[d]`.

    w_s = w_(s-1) - lr * gradient of the mean loss on all of x: `steps` full-batch steps of
    plain local SGD, those of `LocalTrainer` with as many epochs and batches that hold everything.
    It is differentiable in x, through all steps.
    """
    start = params.detach()

    def update(x: Tensor, y: Tensor) -> Tensor:
        w = start.clone().requires_grad_()
        for _ in range(steps):
            loss = network.losses(w, x, y).mean()
            (grad,) = torch.autograd.grad(loss, w, create_graph=True)
            w = w - lr * grad
        return w - start

    return update


def first_layer(
    network: Network, update: Tensor, features: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """The parts of `update` for a linear first layer, weight `[h, k]` and bias `[h]`.

    None where the model does not begin with one that takes a whole example of k numbers.
    """
    names, width = network.shapes.names, math.prod(features)
    linear = next((m for m in network.module.modules() if isinstance(m, nn.Linear)), None)
    if linear is None or linear.bias is None or linear.in_features != width or len(names) < 2:
        return None
    name_of = {id(tensor): name for name, tensor in network.module.named_parameters()}
    if (name_of.get(id(linear.weight)), name_of.get(id(linear.bias))) != names[:2]:
        return None
    parts = network.shapes.views(update)
    return parts[names[0]], parts[names[1]]


def last_bias(network: Network, update: Tensor, classes: int) -> Tensor:
    """The part `[classes]` of `update` for the last layer's bias. Raises `Refused` for none."""
    parts = network.shapes.views(update)
    name = network.shapes.names[-1]
    if parts[name].shape != (classes,):
        raise Refused(
            f"the model's last parameter is {name!r} of shape {tuple(parts[name].shape)}; expected "
            f"a bias with one number per class, [{classes}], from which labels are read"
        )
    return parts[name]


Method = Literal["analytic", "cosine", "dlg"]
_ITERATIONS = {"analytic": 1, "cosine": 400, "dlg": 60}


@dataclass(frozen=True)
class Reconstruction:
    """Examples `[M, *features]`, and the labels `[B]` that they were taken to have.

    A search finds M = B; of several examples a linear layer gives a candidate per neuron, M >= B.
    """

    x: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Adversary:
    """An adversary who knows the model `params` `[d]`, clients' rate and steps, and public data.

    `low` and `high` bound the values of public examples, and `predictions` `[K, K]` are the model's
    mean predictions on those of each label. `picture` is the shape in which to look at an example,
    if any.
    """

    network: Network
    params: Tensor
    lr: float
    steps: int
    features: tuple[int, ...]
    predictions: Tensor
    low: float
    high: float
    picture: tuple[int, ...] | None
    method: Method
    iterations: int

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """The update `[d]` that a client with x `[B, *]`, in any shape, and y `[B]` sends."""
        update = update_function(self.network, self.params, self.lr, self.steps)
        return update(x.reshape(len(x), *self.features), y)

    def labels(self, observed: Tensor, count: int, scaled: bool) -> Tensor:
        """The labels `[count]`, ascending; `scaled`: a clip may have shortened the update."""
        bias = -last_bias(self.network, observed, len(self.predictions)) / (self.lr * self.steps)
        if count == 1:
            return torch.tensor([recover_label(bias)])
        scale = 1.0 if self.steps == 1 and not scaled else None  # later gradients are shorter
        return labels_in_proportion(label_shares(bias, self.predictions, scale), count)

    def reconstruct(
        self, observed: Tensor, count: int, scaled: bool, generator: torch.Generator
    ) -> Reconstruction:
        """`count` examples from what is observed `[d]` of the mean of their updates."""
        labels = self.labels(observed, count, scaled)
        if self.method == "analytic":
            return Reconstruction(self._read_off(observed, count), labels)
        shape = (count, *(self.picture or self.features))
        search = Search(shape, labels, self.low, self.high)
        match: Callable[..., Tensor] = (
            match_direction if self.method == "cosine" else match_gradients
        )
        x = match(self.update, observed, search, self.iterations, generator)
        return Reconstruction(self._within(x.reshape(count, *self.features)), labels)

    def _read_off(self, observed: Tensor, count: int) -> Tensor:
        """Examples read off the gradient of a linear first layer. Raises `Refused` for another."""
        layer = first_layer(self.network, observed, self.features)
        if layer is None:
            raise Refused(_NOT_LINEAR)
        if count == 1:
            return self._within(recover_one(*layer).reshape(1, *self.features))
        flat = recover_candidates(*layer, max(count, len(layer[1])))
        return self._within(flat.reshape(len(flat), *self.features))

    def _within(self, x: Tensor) -> Tensor:
        """Clamp pictures, whose range of values everybody knows; other numbers are left alone."""
        return x.nan_to_num().clamp(self.low, self.high) if self.picture else x.nan_to_num()


_NOT_LINEAR = (
    "--method analytic reads a linear first layer with a bias, and this model does not begin with "
    "one that takes the whole example; use --method cosine"
)


def adversary(
    target: Subject, steps: int, method: Method | None, iterations: int | None
) -> Adversary:
    """The attack on `target`: by default analytic where the first layer is linear, else cosine.

    Raises `Refused` where `method` does not fit the model.
    """
    test, network = target.setup.federation.test, target.setup.network
    features = tuple(target.people.examples.x.shape[1:])
    linear = first_layer(network, target.params, features) is not None
    if method == "analytic" and not linear:
        raise Refused(_NOT_LINEAR)
    chosen: Method = method or ("analytic" if linear else "cosine")
    x = test.x[torch.arange(len(test))]
    return Adversary(
        network=network,
        params=target.params,
        lr=target.lr,
        steps=steps,
        features=features,
        predictions=mean_predictions(target, target.params),
        low=float(x.min()),
        high=float(x.max()),
        picture=_picture(target, features),
        method=chosen,
        iterations=iterations or _ITERATIONS[chosen],
    )


def mean_predictions(target: Subject, params: Tensor) -> Tensor:
    """The mean prediction `[K, K]` of `params` `[d]` on public examples of each label.

    For a label without examples, it is the mean over all.
    """
    test = target.setup.federation.test
    scored = list(target.setup.network.scored(params, test))
    predicted = torch.cat([outputs.softmax(-1) for outputs, _ in scored])
    y = torch.cat([y for _, y in scored])
    of_label = [predicted[y == k] for k in range(test.classes)]
    return torch.stack([(rows if len(rows) else predicted).mean(0) for rows in of_label])


def _picture(target: Subject, features: tuple[int, ...]) -> tuple[int, ...] | None:
    """`[channels, height, width]` in which people look at an example; None where it is none."""
    stated: tuple[int, ...] | None = getattr(target.config.source, "picture", None)
    if stated is not None:
        return stated
    return features if len(features) == 3 and features[0] in (1, 3) else None
