"""Canaries that train: synthetic clients with their own examples, and the score of the final model.

**Score.** To first order, the loss of a canary fell by -g_i (w_T - w_0): the model's change against
the gradient g_i of the canary's examples at the start. Much of that change is not due to the
canary: other canaries and real clients contribute, partly along g_i. So ridge regression decomposes
the change into the directions of all canaries and of public clients. A canary's score is its own
coefficient. Noise on the model is isotropic, so the score is the most likely coefficient under a
normal prior.

The validity of a bound on epsilon does not depend on the choice of scores, provided they do not
depend on the secret bits. The choice affects only the power.

**Public models.** The initial model is public, and so is the test set if it belongs to no client
that trains. Without such a test set, only the initial model is used.

**Canaries.** Each of K canaries realises one of two neighbours by a fair secret bit, and is subject
to the run's sampler, availability, local training, clipping and sum, like any client. With heads it
is in the population and holds its examples. With tails under add/remove it is not in the
population. Under other relations a canary with tails holds no examples and adds nothing to the sum.
Under zero-out that is the neighbour, and under replace-one it is one of the neighbours that the
claim covers. The proof, for canaries and for real clients, is in
`privfed.auditing.canaries.inclusion`. Examples follow from the key under private/, from the public
initial model and from public examples, and from no client's data.

**Adversary.** The adversary sees only the final model, which is the usual concern when a model is
published. Crafted canaries in that threat model: Annamalai & De Cristofaro 2024, "Nearly tight
black-box auditing of differentially private machine learning"; Cebere, Bellet & Papernot 2024,
"Tighter privacy auditing of DP-SGD in the hidden state threat model".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.inclusion import canary_identities
from privfed.auditing.canaries.input_space import InputSpace
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.client.exchange import Chunk, Exchange, Executor
from privfed.core.streams import Keys
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.models.network import Network
from privfed.sampling.cohort import Cohort, Population


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
        """Returns the population of the canaries `numbers`.

        Canaries without `heads` hold no examples, so their training leaves a model unchanged.
        Canaries' labels are the same in every round, even if those of `like` change.

        Args:
          numbers: numbers of canaries, shape `[c]`.
          heads: whether each of these canaries has the bit heads, shape `[c]`.
          like: the real population, whose number of classes, test set and device are used.
        """
        holding = torch.from_numpy(numbers[heads])
        x, y = (part[holding].flatten(0, 1) for part in (self.x, self.y))
        device = like.examples.y.device
        examples = Examples(x.to(device), y.to(device), like.examples.classes)
        offsets = np.concatenate([[0], np.cumsum(heads * self.y.shape[1])]).astype(np.int64)
        return Federation(examples, offsets, like.test, canary_identities(numbers))


def synthetic(
    keys: Keys, each: int, steps: int, space: InputSpace, influence: SelfInfluence
) -> CanaryExamples:
    """Returns random examples for canaries; `steps` > 0 crafts them so that canaries are detected.

    Args:
      keys: one key per canary.
      each: number of examples per canary.
      steps: crafting steps; 0 leaves the examples random.
      space: the space of inputs.
      influence: the worth that crafting maximises.
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
"""Numbers of steps on public examples after which a model is taken, and the batch size."""
_CLIENTS, _HELD = 128, 8
"""Largest number of clients simulated by public examples, and examples per simulated client."""
_MOST_NUMBERS = 2**26
"""Largest number of entries in the directions."""


def public_examples(federation: Federation) -> Examples | None:
    """Returns the test examples if they belong to no training client; None without such ones."""
    return None if federation.shared or not len(federation.test) else federation.test


def public_models(network: Network, public: Examples | None, start: Tensor, lr: float) -> Tensor:
    """Returns public models `[p, d]`: the `start` `[d]`, and models after steps on `public`.

    Those are the models after 4 and after 32 steps in all; one that is not finite is left out.

    Args:
      network: the network.
      public: examples for the steps; None returns the start alone.
      start: initial parameters, shape `[d]`.
      lr: learning rate of the steps.
    """
    models, w = [start], start
    if public is None:
        return torch.stack(models)
    for step in range(max(_STEPS)):
        w = w - lr * _gradient(network, w, public, step * _BATCH, _BATCH)
        if step + 1 in _STEPS and bool(w.isfinite().all()):
            models.append(w)
    return torch.stack(models)


def public_directions(network: Network, public: Examples | None, models: Tensor) -> Tensor:
    """Returns unit gradients `[p, q, d]` of q simulated public clients at each of the models.

    The number q depends on the numbers of public examples, models and parameters; it is 0 without
    public examples.
    """
    if public is None:
        return models.new_zeros(len(models), 0, models.shape[1])
    count = max(1, min(_CLIENTS, len(public) // _HELD, _MOST_NUMBERS // models.numel()))
    ways = [torch.stack([*_ways(network, model, public, count)]) for model in models]
    return torch.nn.functional.normalize(torch.stack(ways), dim=2)


def _ways(network: Network, model: Tensor, public: Examples, count: int) -> Iterator[Tensor]:
    for client in range(count):
        yield _gradient(network, model, public, client * _HELD, _HELD)


def _gradient(network: Network, w: Tensor, public: Examples, first: int, count: int) -> Tensor:
    """Returns the gradient `[d]` of `count` public examples from `first` on, cyclically."""
    rows = (torch.arange(min(count, len(public))) + first) % len(public)
    rows = rows.to(public.y.device)
    return network.gradient(w, public.x[rows], public.y[rows])


@dataclass(frozen=True)
class WithTraining:
    """An executor for cohorts of real clients and canaries; `training` executes the canaries.

    Attributes:
      inner: the executor of the real clients.
      training: the executor of the canaries.
      clients: number of real clients; the id of a canary is its position plus this number.
      silent: whether each canary's rows are replaced by ones that add zero, bool `[canaries]`.
      nothing: the number that fills a row which adds zero.
    """

    inner: Executor
    training: Executor
    clients: int
    silent: NDArray[np.bool_]
    nothing: float = 0.0

    def answering(self, cohort: Cohort) -> Cohort:
        real, synthetic = self._parted(cohort)
        there = (
            self.inner.answering(replace(cohort, clients=real)).clients,
            self.training.answering(replace(cohort, clients=synthetic)).clients + self.clients,
        )
        return replace(cohort, clients=np.concatenate(there))

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        real, synthetic = self._parted(cohort)
        yield from self.inner.chunks(exchange, replace(cohort, clients=real))
        for chunk in self.training.chunks(exchange, replace(cohort, clients=synthetic)):
            silent = torch.from_numpy(self.silent[chunk.ids]).to(chunk.rows.device)
            rows = chunk.rows.masked_fill(silent[:, None], self.nothing)
            yield replace(chunk, ids=chunk.ids + self.clients, rows=rows)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        return self.inner.root(exchange, round)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """Divides a cohort into real clients, and canaries by their position among all canaries."""
        ids = cohort.clients
        return ids[ids < self.clients], ids[ids >= self.clients] - self.clients


def with_trainees(population: Population, there: Indices, sites: int) -> Population:
    """Returns the population with the canaries numbered `there` `[c]` appended.

    If the population is at sites, canary k is at site k modulo `sites`.
    """
    sizes = np.concatenate([population.sizes, np.zeros(len(there), dtype=np.int64)])
    identities = np.concatenate([population.identities, canary_identities(there)])
    if population.sites is None:
        return Population(sizes, identities)
    return Population(sizes, identities, np.concatenate([population.sites, there % sites]))


_RIDGE = 0.3
"""Ratio of noise variance to prior variance; values between 0.1 and 1 give similar scores."""


@dataclass(frozen=True)
class Learning:
    """The `examples` of K canaries; the first model of `influence` is the run's initial model."""

    examples: CanaryExamples
    influence: SelfInfluence

    @property
    def start(self) -> Tensor:
        """The initial model `[d]` of the run."""
        return self.influence.models[0]

    def scores(self, params: Tensor) -> NDArray[np.float64]:
        """Returns each canary's coefficient `[K]` in the change from `start` to `params` `[d]`.

        The coefficients are those of a ridge regression of the change on the canaries' directions
        and those of public clients (see the module's description).
        """
        canaries = self.influence.directions(self.examples.x, self.examples.y)
        ways = torch.cat([canaries, self.influence.others[0]])
        along = -(ways @ (params - self.start)).double()
        gram = (ways @ ways.T).double()
        ridge = _RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        parts = torch.linalg.solve(gram + ridge, along)
        return np.asarray(parts[: len(canaries)].cpu().numpy())
