"""What the final model has learned of canaries' examples: one number for each canary.

To first order, the loss of a canary fell by -g_i (w_T - w_0): by how far the model went against the
gradient g_i of its examples at the start. Much of that way is not due to the canary: other canaries
pull, and so do real clients, some along g_i. So the way is taken apart into the directions of all
canaries and of public clients together, by ridge regression, and a canary's score is the part that
is its own. Noise on the model is alike in all directions, so this is the most likely part where
parts are normal beforehand.

Whether a bound on epsilon is valid does not depend on how scores are made, as long as no coin is
looked at; only how much it shows.

*Public models.* The start is public, and so is the test set where it is of nobody that trains.
Whoever has none is left with the start alone.

Canaries that train: made-up clients with examples of their own, in the run's own population.

Each of K canaries is one of two neighbours by a fair coin of its own, and follows the run's
sampler, availability, local training, clip, sum and draw, as any client does. With heads it is in
the population and holds its examples. With tails it is not in it, where the claim is about
add/remove; else it holds none, and adds nothing to the sum: under zero-out that is the neighbour,
and under replace-one it is one of those that the claim is about. The proof, for canaries and for
real clients, is in `privfed.auditing.canaries.coins`. Examples follow from the key under private/,
from the public start and from public examples: from nobody's data.

The adversary sees the final model only, as people who publish models fear. Crafted canaries in that
threat model: Annamalai & De Cristofaro 2024, "Nearly tight black-box auditing of differentially
private machine learning"; Cebere, Bellet & Papernot 2024, "Tighter privacy auditing of DP-SGD in
the hidden state threat model".

What crafted canaries hold: examples of the run's own kind, made up from its secret key.

They depend on nobody's private data: on the key, on the public model at the start, and on public
examples where the run has some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.coins import canary_identities
from privfed.auditing.canaries.input_space import InputSpace
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.client.exchange import Chunk, Exchange, Executor
from privfed.core.streams import Keys
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.models.network import Network
from privfed.sampling.cohort import Cohort, People


@dataclass(frozen=True)
class CanaryExamples:
    """Examples x `[K, n, *features]` and y `[K, n, *labels]` of K canaries."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def federation(
        self, numbers: Indices, heads: NDArray[np.bool_], like: Federation
    ) -> Federation:
        """A population of the canaries `numbers` `[c]`, whose examples are of the form of `like`.

        Those without `heads` `[c]` hold none, so that their training leaves a model as it is.
        Labels stay as they are in rounds in which those of `like` change.
        """
        holding = torch.from_numpy(numbers[heads])
        x, y = (part[holding].flatten(0, 1) for part in (self.x, self.y))
        device = like.examples.y.device
        examples = Examples(x.to(device), y.to(device), like.examples.classes)
        offsets = np.concatenate([[0], np.cumsum(heads * self.y.shape[1])]).astype(np.int64)
        return Federation(examples, offsets, like.test, canary_identities(numbers))


def made_up(
    keys: Keys, each: int, steps: int, space: InputSpace, influence: SelfInfluence
) -> CanaryExamples:
    """`each` examples for the canary of each of the `keys`, after `steps` of crafting.

    With 0 steps they are random.
    """
    parts = list(_chunks(list(keys.each()), each, steps, space, influence))
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    return CanaryExamples(x, y)


def _chunks(
    keys: Sequence[Keys], each: int, steps: int, space: InputSpace, influence: SelfInfluence
) -> Iterator[tuple[Tensor, Tensor]]:
    device = influence.models.device
    for first in range(0, len(keys), influence.together):
        some = keys[first : first + influence.together]
        drawn = [space.drawn(canary, each) for canary in some]
        x, y = (torch.stack(part).to(device) for part in zip(*drawn, strict=True))
        yield space.crafted(x, y, influence, steps, some) if steps else (x, y)


_STEPS, _BATCH = (4, 32), 64
"""After how many steps on public examples a model is taken, and of how many examples these are."""
_CLIENTS, _HELD = 128, 8
"""How many clients public examples play at most, and how many of them one of these holds."""
_MOST_NUMBERS = 2**26
"""How many numbers the directions may have."""


def public_examples(federation: Federation) -> Examples | None:
    """The examples that belong to nobody who trains; None where there are none."""
    return None if federation.shared or not len(federation.test) else federation.test


def public_models(network: Network, public: Examples | None, start: Tensor, lr: float) -> Tensor:
    """The models `[p, d]`: the `start` `[d]`, and what some steps at rate `lr` make of it."""
    models, w = [start], start
    if public is None:
        return torch.stack(models)
    for step in range(max(_STEPS)):
        w = w - lr * _gradient(network, w, public, step * _BATCH, _BATCH)
        if step + 1 in _STEPS and bool(w.isfinite().all()):
            models.append(w)
    return torch.stack(models)


def public_directions(network: Network, public: Examples | None, models: Tensor) -> Tensor:
    """Directions `[p, q, d]` of length one, in which public clients would move the models."""
    if public is None:
        return models.new_zeros(len(models), 0, models.shape[1])
    count = max(1, min(_CLIENTS, len(public) // _HELD, _MOST_NUMBERS // models.numel()))
    ways = [torch.stack([*_ways(network, model, public, count)]) for model in models]
    return torch.nn.functional.normalize(torch.stack(ways), dim=2)


def _ways(network: Network, model: Tensor, public: Examples, count: int) -> Iterator[Tensor]:
    for client in range(count):
        yield _gradient(network, model, public, client * _HELD, _HELD)


def _gradient(network: Network, w: Tensor, public: Examples, first: int, count: int) -> Tensor:
    """The gradient `[d]` of `count` public examples from `first` on, begun anew at their end."""
    rows = (torch.arange(min(count, len(public))) + first) % len(public)
    rows = rows.to(public.y.device)
    return network.gradient(w, public.x[rows], public.y[rows])


@dataclass(frozen=True)
class WithTraining:
    """An executor in whose cohorts canaries answer, too, as `training` has them.

    The real clients have the numbers below `clients`; a canary's number is its place behind them.
    Those that are `silent` `[canaries]` send rows of the number `nothing`, which add zero.
    """

    inner: Executor
    training: Executor
    clients: int
    silent: NDArray[np.bool_]
    nothing: float = 0.0

    def answering(self, cohort: Cohort) -> Cohort:
        real, made_up = self._parted(cohort)
        there = (
            self.inner.answering(replace(cohort, clients=real)).clients,
            self.training.answering(replace(cohort, clients=made_up)).clients + self.clients,
        )
        return replace(cohort, clients=np.concatenate(there))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, made_up = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        for chunk in self.training.chunks(exchange, replace(cohort, clients=made_up)):
            silent = torch.from_numpy(self.silent[chunk.ids]).to(chunk.rows.device)
            rows = chunk.rows.masked_fill(silent[:, None], self.nothing)
            yield replace(chunk, ids=chunk.ids + self.clients, rows=rows)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """The real clients of a cohort, and its canaries by their places among canaries."""
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients] - self.clients


def with_trainees(people: People, there: Indices, sites: int) -> People:
    """The population with the canaries `there` `[c]` behind the real clients, at sites in turn."""
    sizes = np.concatenate([people.sizes, np.zeros(len(there), dtype=np.int64)])
    identities = np.concatenate([people.identities, canary_identities(there)])
    if people.sites is None:
        return People(sizes, identities)
    return People(sizes, identities, np.concatenate([people.sites, there % sites]))


_RIDGE = 0.3
"""The variance of noise over that of parts: between a tenth and one it hardly matters."""


@dataclass(frozen=True)
class Learning:
    """The `examples` of K canaries, and the `influence` of these on a run's public start."""

    examples: CanaryExamples
    influence: SelfInfluence

    @property
    def start(self) -> Tensor:
        """The model `[d]` that the run started from."""
        return self.influence.models[0]

    def scores(self, params: Tensor) -> NDArray[np.float64]:
        """The part of each canary `[K]` in the way from the start to the model `params` `[d]`."""
        canaries = self.influence.directions(self.examples.x, self.examples.y)
        ways = torch.cat([canaries, self.influence.others[0]])
        along = -(ways @ (params - self.start)).double()
        gram = (ways @ ways.T).double()
        ridge = _RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        parts = torch.linalg.solve(gram + ridge, along)
        return np.asarray(parts[: len(canaries)].cpu().numpy())
