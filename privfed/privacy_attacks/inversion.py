"""Gradient inversion: reconstructs clients' examples from their updates, for each view of these.

The same clients are attacked in the same way given raw updates, clipped updates, noised updates,
and sums of updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.documents import encoded
from attacks.privacy.image_quality import best_matches, mse, psnr, ssim
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.privacy_attacks.reconstruct import Adversary, Method, adversary
from privfed.privacy_attacks.subject import Subject, View, examples_of, views


@dataclass(frozen=True)
class ViewQuality:
    """The reconstructions `x` `[N, *features]` from one view, and the quality `[N]` of each.

    The measures of quality are `mse`, `psnr` (in dB) and `ssim`, which is empty if examples are not
    images. `labels` is the fraction of labels that were recovered; None for the baseline, which
    reads no update, and for a sum of several clients, in which the adversary does not know the
    owner of a label.
    """

    view: View
    x: Tensor
    mse: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    labels: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns the view, and the median quality over all attacked examples, as a JSON object.

        Medians are stated because one exact reconstruction would dominate a mean.
        """
        return {
            "view": self.view.name,
            "seen_by": self.view.who,
            "clients": self.view.clients,
            "clip": self.view.clip if self.view.clip < math.inf else None,
            "noise_std": self.view.std,
            "epsilon": self.view.epsilon,
            "mse": float(np.median(self.mse)),
            "psnr": float(np.median(self.psnr)),
            "ssim": float(np.median(self.ssim)) if self.ssim else None,
            "labels_found": self.labels,
            "psnr_each": list(self.psnr),
        }


def view_quality(
    view: View, attack: Adversary, reconstructed: Tensor, originals: Tensor, labels: float | None
) -> ViewQuality:
    """Returns the quality of reconstructed examples, each compared with its original.

    Args:
      view: the adversary's view.
      attack: the adversary; `high` - `low` is the dynamic range for PSNR and SSIM.
      reconstructed: reconstructions, shape `[N, *features]`.
      originals: the attacked examples, shape `[N, *features]`.
      labels: fraction of recovered labels, or None.
    """
    span = attack.high - attack.low
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(reconstructed, originals, strict=True))
    similarity: tuple[float, ...] = ()
    if attack.picture:
        shape = attack.picture
        similarity = tuple(ssim(a.reshape(shape), b.reshape(shape), span) for a, b in pairs)
    return ViewQuality(
        view,
        reconstructed,
        tuple(mse(a, b) for a, b in pairs),
        tuple(psnr(a, b, span) for a, b in pairs),
        similarity,
        labels,
    )


JOINTLY = 10
"""Largest number of examples in a sum that a search reconstructs jointly; larger sums are attacked
as if they were the update of one client. The analytic method has no such limit."""
GUESS = View("no update", "baseline: the mean public example")


@dataclass(frozen=True)
class InversionOptions:
    """The clients to attack, and the settings of the attack.

    Attributes:
      clients: numbers of the attacked clients; empty for the first `columns` eligible ones.
      columns: number of attacked clients if `clients` is empty.
      examples: number of examples on which each attacked client trains; clients with fewer are not
        eligible.
      steps: local steps of each client on these examples.
      epsilons: privacy budgets whose noise is simulated.
      method: the attack; None selects "analytic" if the model's first layer is linear, else
        "cosine".
      iterations: search iterations; None for the method's default.
    """

    clients: tuple[int, ...] = ()
    columns: int = 3
    examples: int = 1
    steps: int = 1
    epsilons: tuple[float, ...] = ()
    method: Method | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class Inverted:
    """The result of an inversion: the attacked examples and their reconstructions from each view.

    `originals` `[N, *features]` are all attacked examples, client after client, and `norms` the
    update's L2 norm of each attacked client, before clipping.
    """

    target: Subject
    options: InversionOptions
    attack: Adversary
    clients: tuple[int, ...]
    norms: tuple[float, ...]
    originals: Tensor
    views: tuple[ViewQuality, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed attack inversion --json` prints."""
        return {
            "attack": "inversion",
            "method": self.attack.method,
            "iterations": self.attack.iterations,
            "attacked_clients": list(self.clients),
            "update_norms": list(self.norms),
            "examples": self.options.examples,
            "steps": self.options.steps,
            "delta": self.target.config.privacy.delta,
            "views": encoded(self.views),
            "simulation": True,
            "round": self.target.round,
            "run": str(self.target.path),
        }


def invert(target: Subject, options: InversionOptions) -> Inverted:
    """Attacks the chosen clients of `target` under every view; returns the reconstructions.

    Args:
      target: the run under attack.
      options: the clients to attack, and the settings of the attack.

    Raises:
      Refused: if a chosen client, or every client, holds too few examples, the attack does not suit
        the model, or budgets cannot be met.
    """
    holders = target.clients_holding(options.examples)
    clients = _target_clients(options, holders)
    attack = adversary(target, options.steps, options.method, options.iterations)
    levels = views(target.setup.plan, options.epsilons, len(holders))
    pairs = [examples_of(target.population, client, options.examples) for client in clients]
    originals = torch.cat([x for x, _ in pairs])
    crowd = max(view.clients for view in levels)
    updates = [_updates(target, attack, options, holders, client, crowd) for client in clients]
    qualities = [_guess(target, attack, originals)]
    for view in levels:
        parts = [
            _reconstructed(target, attack, view, rows, client, *pair)
            for client, rows, pair in zip(clients, updates, pairs, strict=True)
        ]
        label_shares = [share for _, share in parts if share is not None]
        x = torch.cat([x for x, _ in parts])
        share = float(np.mean(label_shares)) if label_shares else None
        qualities.append(view_quality(view, attack, x, originals, share))
    norms = tuple(float(torch.linalg.vector_norm(rows[0])) for rows in updates)
    return Inverted(target, options, attack, clients, norms, originals, tuple(qualities))


def _target_clients(options: InversionOptions, holders: Indices) -> tuple[int, ...]:
    """Returns the clients to attack: those of `options`, or the first `columns` of `holders`.

    Raises `Refused` if one of the former is not in `holders`, the clients with enough examples.
    """
    if unfit := [client for client in options.clients if client not in holders]:
        raise Refused(
            f"--client is {unfit[0]}, but that client does not hold {options.examples} examples or "
            f"does not exist; use one of the {len(holders)} clients that do, for example "
            f"{int(holders[0])}"
        )
    return options.clients or tuple(int(client) for client in holders[: options.columns])


def _updates(
    target: Subject,
    attack: Adversary,
    options: InversionOptions,
    holders: Indices,
    client: int,
    crowd: int,
) -> Tensor:
    """Returns `crowd` updates `[crowd, d]`: of `client` and of the next clients in `holders`.

    The first client of `holders` follows the last.
    """
    place = int(np.searchsorted(holders, client))
    rows = []
    for other in np.roll(holders, -place)[:crowd]:
        x, y = examples_of(target.population, int(other), options.examples)
        rows.append(attack.update(x, y).detach())
    return torch.stack(rows)


def _reconstructed(
    target: Subject,
    attack: Adversary,
    view: View,
    updates: Tensor,
    client: int,
    x: Tensor,
    y: Tensor,
) -> tuple[Tensor, float | None]:
    """Returns reconstructions from `view`, one for each of x `[B, *]`, and the label recovery rate.

    The rate is None in a view of several clients. Every view uses the same random numbers for its
    noise and for the start of the search.
    """
    seed = target.setup.streams.at("inversion", 0, np.array([client])).derived(b"%d" % client)
    generator = torch.Generator().manual_seed(seed.integer())
    observed = view.observed(updates, generator)
    together = len(x) * view.clients
    jointly = attack.method == "analytic" or together <= JOINTLY
    count = together if jointly else len(x)
    scaled = not view.keeps_length(updates[0])
    reconstruction = attack.reconstruct(observed, count, scaled, generator)
    share = _share_of_labels(reconstruction.labels, y) if view.clients == 1 else None
    return best_matches(reconstruction.x, x), share


def _share_of_labels(labels: Tensor, y: Tensor) -> float:
    """Returns the fraction of the true labels y `[B]` that `labels` contains, with multiplicity."""
    size = int(max(labels.max(), y.max())) + 1
    counts = torch.minimum(labels.bincount(minlength=size), y.bincount(minlength=size))
    return int(counts.sum()) / len(y)


def _guess(target: Subject, attack: Adversary, originals: Tensor) -> ViewQuality:
    """Returns the quality of the baseline: each example guessed as the mean public example."""
    test = target.setup.federation.test
    mean = test.x[torch.arange(len(test))].mean(0)
    return view_quality(GUESS, attack, mean.expand_as(originals), originals, None)
