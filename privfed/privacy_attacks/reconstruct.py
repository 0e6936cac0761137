"""Reconstruction of training examples from one observed update."""

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
    """Returns the function (x `[B, *features]`, y `[B]`) -> w_S - w_0 `[d]` of local training.

    Training starts from w_0 = `params` `[d]` and takes `steps` full-batch steps of plain local SGD,
    w_s = w_(s-1) - lr * gradient of the mean loss on all of x. These are the steps of
    `LocalTrainer` with as many epochs and a batch that holds all examples. The function is
    differentiable in x, through all steps.

    Args:
      network: the network.
      params: initial parameters, shape `[d]`.
      lr: learning rate.
      steps: number of local steps.
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
    """Returns the parts of `update` `[d]` for a linear first layer's weight and bias.

    Their shapes are `[h, k]` and `[h]`, for h neurons and the k features of an example.

    Returns None unless the model's first two parameters are the weight and the bias of a linear
    layer over all k features.
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
    """Returns the part `[classes]` of `update` that belongs to the last layer's bias.

    Raises `Refused` if the model's last parameter has another shape.
    """
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
    """Reconstructed examples `[M, *features]`, and the labels `[B]` that the attack inferred first.

    A search returns M = B examples. The analytic method gives one example for B = 1, and otherwise
    candidates, M >= B.
    """

    x: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Adversary:
    """An adversary who knows the model, the clients' learning rate and steps, and public data.

    Attributes:
      network: the network.
      params: the model that clients received, shape `[d]`.
      lr: the clients' learning rate.
      steps: the clients' number of local steps.
      features: shape of an example.
      predictions: mean predicted probabilities (columns) on public examples of each label (rows),
        shape `[K, K]`.
      low: smallest value in public examples.
      high: largest value in public examples.
      picture: the shape of an example as an image; None if it is no image.
      method: the attack: "analytic", "cosine" or "dlg".
      iterations: number of search iterations.
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
        """Returns a client's update `[d]` on examples `x` `[B, *]` and labels `y` `[B]`.

        Examples are reshaped to the model's input.
        """
        update = update_function(self.network, self.params, self.lr, self.steps)
        return update(x.reshape(len(x), *self.features), y)

    def labels(self, observed: Tensor, count: int, scaled: bool) -> Tensor:
        """Infers the labels `[count]`, ascending, of the examples of an observed update `[d]`.

        `scaled` states whether the update may have been clipped, so that its scale is unknown.
        """
        bias = -last_bias(self.network, observed, len(self.predictions)) / (self.lr * self.steps)
        if count == 1:
            return torch.tensor([recover_label(bias)])
        scale = 1.0 if self.steps == 1 and not scaled else None  # later gradients are shorter
        return labels_in_proportion(label_shares(bias, self.predictions, scale), count)

    def reconstruct(
        self, observed: Tensor, count: int, scaled: bool, generator: torch.Generator
    ) -> Reconstruction:
        """Reconstructs examples from an observed mean of updates.

        Args:
          observed: the observation, shape `[d]`.
          count: number of examples of all updates in the mean.
          scaled: whether the update may have been clipped.
          generator: source of the search's starting points.

        Raises:
          Refused: if the model has no bias in its last layer, or no linear first layer for the
            analytic method.
        """
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
        """Computes examples from a linear first layer's update. Raises `Refused` without one."""
        layer = first_layer(self.network, observed, self.features)
        if layer is None:
            raise Refused(_NOT_LINEAR)
        if count == 1:
            return self._within(recover_one(*layer).reshape(1, *self.features))
        flat = recover_candidates(*layer, max(count, len(layer[1])))
        return self._within(flat.reshape(len(flat), *self.features))

    def _within(self, x: Tensor) -> Tensor:
        """Returns x without NaN, clamped to the public range of values if examples are images."""
        return x.nan_to_num().clamp(self.low, self.high) if self.picture else x.nan_to_num()


_NOT_LINEAR = (
    "--method is analytic, which reads a linear first layer with a bias, but this model's first "
    "layer is another, or takes only a part of an example; use --method cosine"
)


def adversary(
    target: Subject, steps: int, method: Method | None, iterations: int | None
) -> Adversary:
    """Returns the attack on `target`: by default analytic for a linear first layer, else cosine.

    Args:
      target: the run under attack.
      steps: local steps of each client.
      method: the attack; None selects the default.
      iterations: search iterations; None for the method's default.

    Raises:
      Refused: if `method` does not suit the model.
    """
    test, network = target.setup.federation.test, target.setup.network
    features = tuple(target.population.examples.x.shape[1:])
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
    """Returns, for each label (row), the mean predicted probabilities on its public examples.

    The result has shape `[K, K]` for K labels. The row of a label without public examples is the
    mean over all of them. `params` `[d]` is the model.
    """
    test = target.setup.federation.test
    scored = list(target.setup.network.scored(params, test))
    predicted = torch.cat([outputs.softmax(-1) for outputs, _ in scored])
    y = torch.cat([y for _, y in scored])
    of_label = [predicted[y == k] for k in range(test.classes)]
    return torch.stack([(rows if len(rows) else predicted).mean(0) for rows in of_label])


def _picture(target: Subject, features: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns an example's image shape `[channels, height, width]`; None if it is no image."""
    stated: tuple[int, ...] | None = getattr(target.config.source, "picture", None)
    if stated is not None:
        return stated
    return features if len(features) == 3 and features[0] in (1, 3) else None
