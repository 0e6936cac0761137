"""Who owns which example, in simulation: by chance, by label, or as the source says."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from privfed.errors import Refused
from privfed.federation import Examples, Indices
from privfed.parts import Part, only
from privfed.streams import Streams


class Simulated(Part):
    """A partition made up by the simulation, with the keys that all of these share.

    The r-th largest client's share of the examples goes as r^-size_exponent (Zipf's law; Li et al.
    2020, section 5.1, "power law"); 0 makes them equal. Who is largest is drawn by chance.
    """

    size_exponent: float = Field(0.0, ge=0, le=10)
    natural: ClassVar[bool] = False

    def sizes(self, examples: int, clients: int, rng: np.random.Generator) -> Indices:
        """How many of `examples` each of `clients` gets `[clients]`; equal sizes differ by one."""
        shares = np.arange(1, clients + 1) ** -self.size_exponent
        ends = np.round(np.concatenate([[0.0], np.cumsum(shares / shares.sum())]) * examples)
        return rng.permutation(np.diff(ends).astype(np.int64))


class Iid(Simulated):
    """A random deal: sizes differ by at most one, or follow a power law."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        sizes = self.sizes(len(examples), clients, rng)
        return rng.permutation(np.repeat(np.arange(clients), sizes))


class Dirichlet(Simulated):
    """Latent Dirichlet allocation over labels (Hsu, Qi & Brown 2019, section 3).

    Clients get equally many examples (or by a power law). Client k draws its label distribution
    q_k ~ Dir(concentration * p), p the labels' overall distribution, and fills its share from q_k,
    renormalised over the labels that are left. Large concentrations approach IID, small ones one
    label per client. Every example is given away exactly once.
    """

    concentration: float = Field(0.1, gt=0)

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels = _classes(examples, "dirichlet")
        piles = [rng.permutation(np.flatnonzero(labels == c)) for c in range(examples.classes)]
        left = np.array([len(pile) for pile in piles])
        prior = np.maximum(self.concentration * left / left.sum(), 1e-12)
        quota = self.sizes(len(labels), clients, rng)
        owners = np.empty(len(labels), dtype=np.int64)
        for client in rng.permutation(clients):
            share = self._share(rng, prior, left, int(quota[client]))
            for pile, first, count in zip(piles, left - share, share, strict=True):
                owners[pile[first : first + count]] = client
            left -= share
        return owners

    @staticmethod
    def _share(
        rng: np.random.Generator, prior: np.ndarray, left: np.ndarray, quota: int
    ) -> np.ndarray:
        """How many of each label `[classes]`, at most `left`, `quota` in all."""
        wish = rng.dirichlet(prior)
        share = np.zeros_like(left)
        while (missing := quota - share.sum()) > 0:
            weights = np.where(share < left, wish, 0.0)
            if weights.sum() < 1e-12:
                weights = np.where(share < left, 1.0, 0.0)
            share = np.minimum(share + rng.multinomial(missing, weights / weights.sum()), left)
        return share


class Shards(Simulated):
    """Sorted by label and cut into equal shards, `shards` of which each client gets by chance.

    Most clients see at most `shards` labels (McMahan et al. 2017, section 3). Where the examples
    do not divide evenly, shards differ by one.
    """

    shards: int = Field(2, ge=1, le=1_000_000)
    size_exponent: Annotated[float, only(0.0, "shards are of equal size; remove the key")] = 0.0

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


class Natural(Part):
    """As the source says: each example belongs to the client it came from."""

    natural: ClassVar[bool] = True

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        if examples.owners is None:
            raise Refused(
                'data.partition is "natural", but this source does not know whose an example is; '
                'name its column of clients, or use "iid" or "dirichlet"'
            )
        return examples.owners


def _classes(examples: Examples, name: str) -> Indices:
    """One class label per example `[N]`. Raises `Refused` where there is none."""
    if examples.y.dim() != 1 or examples.y.dtype != torch.int64:
        raise Refused(
            f"data.partition is {name!r}, which deals examples by their class, but these have "
            f'labels of shape {tuple(examples.y.shape[1:])}; use "iid" or "natural"'
        )
    return examples.y.numpy()
