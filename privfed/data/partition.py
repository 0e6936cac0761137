"""Who owns which example, in simulation: IID, Dirichlet over labels, or as the source says."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from privfed.errors import Refused
from privfed.federation import Examples, Indices
from privfed.parts import Part
from privfed.streams import Streams


class Iid(Part):
    """A random deal: sizes differ by at most one."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        return rng.permutation(np.arange(len(examples)) % clients)


class Dirichlet(Part):
    """Latent Dirichlet allocation over labels (Hsu, Qi & Brown 2019, section 3).

    Clients get equally many examples (up to one). Client k draws its label distribution
    q_k ~ Dir(concentration * p), p the labels' overall distribution, and fills its share from q_k,
    renormalised over the labels that are left. Large concentrations approach IID, small ones one
    label per client. Every example is given away exactly once.
    """

    concentration: float = Field(0.1, gt=0)

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        rng = streams.at("partition").generator()
        labels = examples.y.numpy()
        piles = [rng.permutation(np.flatnonzero(labels == c)) for c in range(examples.classes)]
        left = np.array([len(pile) for pile in piles])
        prior = np.maximum(self.concentration * left / left.sum(), 1e-12)
        quota = np.diff(np.linspace(0, len(labels), clients + 1).astype(np.int64))
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


class Natural(Part):
    """As the source says: each example belongs to the client it came from."""

    def owners(self, examples: Examples, clients: int, streams: Streams) -> Indices:
        if examples.owners is None:
            raise Refused(
                'data.partition is "natural", but this source does not know whose an example is; '
                'use "iid" or "dirichlet"'
            )
        return examples.owners
