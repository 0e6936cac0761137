"""Simulated partitions by label: clients differ in their label frequencies (prior shift)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.parts import only
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.partitions.basic import Simulated

Weights = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
"""Draws weights of labels `[classes]`, given a mask of the remaining labels `[classes]`."""
LabelCountSampler = Callable[[Indices, int], Indices]
"""A client's rule: maps the number of remaining examples of each label `[classes]`, and the
client's quota, to the number that it takes of each label `[classes]`.
"""


class Dirichlet(Simulated):
    """Latent Dirichlet allocation over labels (Hsu, Qi & Brown 2019, section 3).

    Clients' sizes are equal, or follow a power law. Client k draws its label distribution q_k ~
    Dir(concentration * p), p the labels' overall distribution, and draws its examples by q_k,
    renormalised over the labels that are not used up. Large concentrations approach IID, small ones
    one label per client. Every example is assigned exactly once.
    """

    concentration: float = Field(0.1, gt=0, le=1e9)
    """Similarity of clients: small values give one label per client, large ones are IID."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels = _classes(examples, "dirichlet")
        counts = np.bincount(labels, minlength=examples.classes)
        prior = np.maximum(self.concentration * counts / counts.sum(), 1e-12)

        weights = _dirichlet_weights(rng, prior)
        quota = self.sizes(len(labels), clients, rng)
        return assigned_by_class(labels, examples.classes, quota, lambda: flat(rng, weights), rng)


class LongTail(Simulated):
    """Prior shift: each client's label frequencies decay geometrically in its own random order.

    Of C labels, a client's label of rank r (from 0) has a frequency proportional to
    ratio^(-r / (C - 1)), so `ratio` is the frequency ratio of its first and last label (the
    imbalance ratio of long-tailed recognition; per client as in FedFOR, Tian, Smith & Kira 2022). A
    ratio of 1 is IID. Every example is assigned exactly once, so the last clients take the
    remaining examples, whatever their labels.
    """

    ratio: float = Field(100.0, ge=1, le=1e9)
    """Frequency ratio of a client's most and least frequent labels."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels, classes = _classes(examples, "long_tail"), examples.classes
        tail = self.ratio ** -(np.arange(classes) / max(classes - 1, 1))

        def draw_label_counts() -> LabelCountSampler:
            frequencies = rng.permutation(tail)
            return flat(rng, lambda left: frequencies)

        quota = self.sizes(len(labels), clients, rng)
        return assigned_by_class(labels, classes, quota, draw_label_counts, rng)


class Pachinko(Simulated):
    """Pachinko allocation over coarse and fine labels (Reddi et al. 2021, appendix F).

    `coarse` is the coarse label of each fine label. A client draws a distribution over coarse
    labels ~ Dir(concentration) and over each one's fine labels ~ Dir(fine_concentration), and its
    examples from these without replacement; an exhausted label is removed from its distribution,
    which is renormalised.
    """

    coarse: list[Annotated[int, Field(ge=0)]] = Field(examples=[[0, 0, 1]])
    """The coarse label of each fine label."""
    concentration: float = Field(0.1, gt=0, le=1e9)
    """Similarity of clients in coarse labels: small values give one coarse label per client."""
    fine_concentration: float = Field(10.0, gt=0, le=1e9)
    """Similarity of clients in the fine labels of each coarse label."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels = _classes(examples, "pachinko")
        if len(self.coarse) != examples.classes:
            raise Refused(
                f"data.coarse has {len(self.coarse)} entries, but there are {examples.classes} "
                "labels; name one coarse label for each"
            )
        children = [np.flatnonzero(np.equal(self.coarse, c)) for c in np.unique(self.coarse)]
        quota = self.sizes(len(labels), clients, rng)
        return assigned_by_class(
            labels, examples.classes, quota, lambda: self._draw_label_counts(rng, children), rng
        )

    def _draw_label_counts(
        self, rng: np.random.Generator, children: list[Indices]
    ) -> LabelCountSampler:
        """Returns a function that draws a client's label counts: over coarse, then over fine ones.

        If a fine label runs out, the missing draws are made among fine labels of the same coarse
        label.
        """
        root = flat(rng, _dirichlet_weights(rng, self.concentration))
        leaves = [flat(rng, _dirichlet_weights(rng, self.fine_concentration)) for _ in children]

        def take(left: Indices, quota: int) -> Indices:
            share = np.zeros_like(left)
            roots = root(np.array([left[mine].sum() for mine in children]), quota)
            for mine, leaf, count in zip(children, leaves, roots, strict=True):
                share[mine] = leaf(left[mine], int(count))
            return share

        return take


def _dirichlet_weights(
    rng: np.random.Generator, concentration: NDArray[np.float64] | float
) -> Weights:
    """Returns a function that draws Dirichlet weights `[labels]`, 0 for labels that are used up.

    A Dirichlet variable renormalised over some labels is a Dirichlet variable over these.
    """

    def weights(left: NDArray[np.bool_]) -> NDArray[np.float64]:
        drawn = np.zeros(len(left))
        drawn[left] = _dirichlet(rng, np.broadcast_to(concentration, left.shape)[left])
        return drawn

    return weights


def _dirichlet(rng: np.random.Generator, prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a draw of Dir(prior); if all entries underflow, one entry, drawn by `prior`, is 1."""
    shares = rng.dirichlet(prior)
    if np.isfinite(shares).all() and shares.sum() > 0.5:
        return np.asarray(shares)
    shares = np.zeros(len(prior))
    shares[rng.choice(len(prior), p=prior / prior.sum())] = 1.0
    return shares


def flat(rng: np.random.Generator, weights: Weights) -> LabelCountSampler:
    """Returns a function that draws labels independently, by the `weights` of the remaining labels.

    It maps the remaining number of examples `[labels]` and a quota to the numbers drawn `[labels]`.
    If a label runs out, the missing draws are repeated among the other labels. If the weights of
    these underflow, `weights` draws new ones.
    """

    def take(left: Indices, quota: int) -> Indices:
        share = np.zeros_like(left)
        drawn = weights(left > 0) if quota else np.zeros(len(left))
        while (missing := quota - int(share.sum())) > 0:
            available = share < left
            shares = np.where(available, drawn, 0.0)
            if shares.sum() < 1e-12:
                drawn = weights(available)
                shares = np.where(available, drawn, 0.0)
            share = np.minimum(share + rng.multinomial(missing, shares / shares.sum()), left)
        return share

    return take


def assigned_by_class(
    labels: Indices,
    classes: int,
    quota: Indices,
    draw_label_counts: Callable[[], LabelCountSampler],
    rng: np.random.Generator,
) -> Indices:
    """Assigns each example `[N]` to an owner, exactly once.

    Clients take their examples one after another, in random order.

    Args:
      labels: class of each example, shape [N].
      classes: number of classes.
      quota: number of examples that each client takes, shape [clients]; in total N.
      draw_label_counts: returns a function for the next client, which draws its number of examples
        of each class.
      rng: random generator.
    """
    piles = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    left = np.array([len(pile) for pile in piles])
    owners = np.empty(len(labels), dtype=np.int64)
    for client in rng.permutation(len(quota)):
        share = draw_label_counts()(left, int(quota[client]))
        for pile, first, count in zip(piles, left - share, share, strict=True):
            owners[pile[first : first + count]] = client
        left -= share
    return owners


class Shards(Simulated):
    """Sorts examples by label, cuts them into equal shards, and assigns `shards` per client.

    Most clients have at most `shards` labels (McMahan et al. 2017, section 3). If the examples do
    not divide evenly, shard sizes differ by at most one.
    """

    shards: int = Field(2, ge=1, le=1_000_000)
    """Number of shards per client."""
    size_exponent: Annotated[float, only(0.0, "shards are of equal size; remove the key")] = 0.0
    """Only 0: shards are of equal size."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels = _classes(examples, "shards")
        shuffled = rng.permutation(len(labels))
        order = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shard = rng.permutation(np.repeat(np.arange(clients), self.shards))
        ends = np.linspace(0, len(labels), len(shard) + 1).astype(np.int64)
        owners = np.empty(len(labels), dtype=np.int64)
        owners[order] = np.repeat(shard, np.diff(ends))
        return owners


def _classes(examples: Examples, name: str) -> Indices:
    """Returns the class `[N]` of each example. Refuses labels that are not single classes."""
    if examples.y.dim() != 1 or examples.y.dtype != torch.int64:
        raise Refused(
            f"data.partition is {name!r}, which assigns examples by class, but a label here is "
            f'not one class (its shape is {tuple(examples.y.shape[1:])}); use "iid" or "natural"'
        )
    return examples.y.numpy()
