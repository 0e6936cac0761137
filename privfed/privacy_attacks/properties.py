"""Property inference: estimates a client's label distribution from its training update.

The clients train as in the run. The baseline is the label distribution of the public examples,
which is known without any update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.documents import encoded
from attacks.privacy.label_recovery import label_shares
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.privacy_attacks.reconstruct import last_bias, mean_predictions
from privfed.privacy_attacks.subject import Subject, View, examples_of, views

GUESS = View("no update", "baseline: the public examples' labels")


@dataclass(frozen=True)
class LabelEstimate:
    """Estimated label distributions `[c, K]` from one view, and their errors `[c]`.

    `distance` is the total variation distance, half the sum of absolute differences. `majority`
    states whether the label estimated as most frequent is one of the client's most frequent labels.
    """

    view: View
    shares: Tensor
    distance: tuple[float, ...]
    majority: tuple[bool, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the view, and means over the attacked clients."""
        return {
            "view": self.view.name,
            "seen_by": self.view.who,
            "clients": self.view.clients,
            "noise_std": self.view.std,
            "epsilon": self.view.epsilon,
            "total_variation": float(np.mean(self.distance)),
            "majority_accuracy": float(np.mean(self.majority)),
        }


@dataclass(frozen=True)
class Properties:
    """Label distributions of `clients` `[c]`: the `truth` `[c, K]` and estimates from each view."""

    target: Subject
    clients: Indices
    truth: Tensor
    estimates: tuple[LabelEstimate, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed attack property --json` prints."""
        return {
            "attack": "property",
            "attacked_clients": self.clients.tolist(),
            "delta": self.target.config.privacy.delta,
            "views": encoded(self.estimates),
            "simulation": True,
            "round": self.target.round,
            "run": str(self.target.path),
        }


def infer(target: Subject, count: int, epsilons: tuple[float, ...]) -> Properties:
    """Estimates the label distributions of the first `count` clients with examples, in every view.

    Args:
      target: the run under attack.
      count: number of attacked clients; fewer are attacked if fewer hold an example.
      epsilons: privacy budgets whose noise is simulated.

    Raises:
      Refused: if the attack does not apply to the run, no client has an example, or a client's
        training diverges.
    """
    holders = target.clients_holding(1)
    attacked = holders[:count]
    levels = views(target.setup.plan, epsilons, len(holders))
    crowd = max(view.clients for view in levels)
    trained = holders[: min(len(holders), count + crowd)]
    rows, counts = _updates(target, trained)
    classes = target.population.examples.classes
    last_bias(target.setup.network, rows[0], classes)  # raises Refused for a model without one
    labels = [examples_of(target.population, int(client))[1] for client in attacked]
    truth = torch.stack([_shares(y, classes) for y in labels])
    public = _shares(target.setup.federation.test.y, classes).expand_as(truth)
    estimates = [_scored(GUESS, public, truth)]
    for view in levels:
        shares = [_estimate(target, view, rows, counts, place) for place in range(len(attacked))]
        estimates.append(_scored(view, torch.stack(shares), truth))
    return Properties(target, attacked, truth, tuple(estimates))


def _updates(target: Subject, ids: Indices) -> tuple[Tensor, Tensor]:
    """Returns the updates `[c, d]` of clients `ids`, and their numbers of local steps `[c]`.

    Raises `Refused` if training diverges.
    """
    population = target.population
    trainer = replace(target.setup.executor.trainer, federation=population, lr=target.lr)
    keys = target.setup.streams.at("shuffle", target.round + 1, population.identify(ids))
    rows, _ = trainer.train(ids, {"params": target.params}, None, keys)
    if not rows.isfinite().all():
        raise Refused("a client's training diverges at this client.lr; lower client.lr")
    return rows, torch.from_numpy(trainer.steps(population.sizes(ids), trainer.epochs))


def _estimate(target: Subject, view: View, rows: Tensor, counts: Tensor, place: int) -> Tensor:
    """Estimates the label fractions `[K]` of the client whose update is `rows[place]`.

    `counts` `[c]` are the local steps of each row's client. In a view of several clients, the sum
    has this row and those after it, cyclically.
    """
    group = (torch.arange(view.clients) + place) % len(rows)
    seed = target.setup.streams.at("property").derived(b"%d" % place).integer()
    observed = view.observed(rows[group], torch.Generator().manual_seed(seed))
    single = bool((counts[group] == 1).all())
    # Predictions change over several steps; the final model is known for one client without noise.
    after = view.clients == 1 and not view.std and not single
    ends = [target.params, target.params + observed] if after else [target.params]
    mean = torch.stack([mean_predictions(target, end) for end in ends]).mean(0)
    # Later gradients are shorter: the client's examples are fitted sooner than public ones.
    known_scale = single and all(view.keeps_length(rows[int(client)]) for client in group)
    bias = -last_bias(target.setup.network, observed, len(mean))
    return label_shares(bias, mean, target.lr if known_scale else None)


def _shares(y: Tensor, classes: int) -> Tensor:
    """Returns the fraction `[classes]` of each label in y `[n]`."""
    return torch.bincount(y, minlength=classes).float() / max(len(y), 1)


def _scored(view: View, shares: Tensor, truth: Tensor) -> LabelEstimate:
    """Returns the estimates `shares` with their errors against `truth`, both `[c, K]`."""
    distance = (shares - truth).abs().sum(1) / 2
    share_of_majority = truth.gather(1, shares.argmax(1, keepdim=True))[:, 0]
    majority = share_of_majority == truth.amax(1)
    return LabelEstimate(view, shares, tuple(distance.tolist()), tuple(majority.tolist()))
