"""One minimal part of every kind, written from scratch, as a user would write it."""

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn

from accounting.events import ADD_REMOVE, Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, Repeated
from attacks.types import Attack, Knowledge
from defenses.history import HistoryRule
from defenses.types import RowRule, SumRule
from defenses.weighing import PreAggregator
from privfed.client.compression.compression import Compression
from privfed.client.objective import Objective
from privfed.core.parts import Part
from privfed.data.federation import Examples
from privfed.metrics.mean_measure import MeanMeasure
from privfed.models.loss import Loss
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import Encoding, Mechanism, require_bounded
from privfed.privacy.noise.gaussian_on_grid import gaussian_on_grid, grid_of
from privfed.run.outcome import Observer
from privfed.sampling.cohort import Cohort, Witness
from privfed.secure.encoded_accumulator import Arithmetic
from privfed.secure.encoded_sum import SecureProtocol


class Stripes(Part):
    """A source: points on a line, striped by class; no real clients."""

    stripes: int = 3
    natural_partition: ClassVar[bool] = False
    holds_real_clients: ClassVar[bool] = False

    @property
    def squared_norm(self):
        return 1.0

    def sources(self, seed):
        return (f"stripes: {seed}",)

    def load(self, clients, streams):
        x = torch.from_numpy(streams.at("outside/stripes").generator().random((10 * clients, 1)))
        y = (x[:, 0] * self.stripes).long()
        return Examples(x.float(), y, self.stripes)

    def load_test(self, clients, streams):
        return None


class InTurn(Part):
    """A partition: one example after the other, in turn."""

    natural: ClassVar[bool] = False
    by_chance: ClassVar[bool] = False
    assigns: ClassVar[bool] = True

    def owners(self, examples, clients, streams):
        return np.arange(len(examples)) % clients


class Mirrored(Part):
    """A shift: every feature changes its sign, for all clients."""

    changes_labels: ClassVar[bool] = False
    moves_features: ClassVar[bool] = True

    def apply(self, federation, streams):
        mirrored, test = federation.examples, federation.test
        return replace(
            federation, examples=replace(mirrored, x=-mirrored.x), test=replace(test, x=-test.x)
        )


class TwoLayers(Part):
    """A model: two small layers."""

    width: int = 3

    def build(self, features, width):
        layers = nn.Linear(int(np.prod(features)), self.width), nn.Tanh()
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(self.width, width))


class Brier(Loss):
    """A loss: the squared distance of probabilities from the class (Brier 1950)."""

    measure: ClassVar[str] = "brier"
    lower_is_better: ClassVar[bool] = True

    def defaults(self, task):
        return {}

    def width(self, examples):
        return examples.classes

    def minimiser(self, y, width):
        return torch.bincount(y, minlength=width).float().div(len(y)).clamp(min=1e-9).log()

    def losses(self, outputs, y):
        target = nn.functional.one_hot(y, outputs.shape[-1])
        return (outputs.softmax(-1) - target).square().sum(-1)

    def stacked(self, outputs, y):
        return self.losses(outputs, y)

    def scores(self, outputs, y, meaning):
        return self.losses(outputs, y)[:, None]

    def measures(self, scores):
        return {"brier": float(scores.mean())}

    def expectation(self, outputs, meaning):
        return outputs.softmax(-1)

    def predict(self, outputs, meaning):
        return {"prediction": outputs.argmax(-1)}


class Halved(Objective):
    """An objective: local SGD whose update is halved before it is sent."""

    def message(self, w, broadcast, state, work):
        return (w - broadcast["params"]) / 2, state


class Evens(Compression):
    """A custom compression: every second coordinate is sent, the same ones each round."""

    fresh: ClassVar[bool] = False

    def length(self, shapes):
        return -(-shapes.length // 2)

    def encode(self, updates, error, sending):
        return updates[:, ::2], error

    def decode(self, released, sending, memory):
        update = released.new_zeros(sending.space.shapes.length)
        update[::2] = released
        return update, memory


class Smoothed(Objective):
    """An objective that changes the loss: it adds a multiple of the squared logits, which is larger
    for a client that has examples of few classes.
    """

    strength: float = Field(0.2, ge=0)

    def losses(self, batch):
        lacking = 1 - (batch.counts > 0).float().mean()
        penalty = batch.outputs.square().flatten(1).mean(1)
        return super().losses(batch) + self.strength * lacking * penalty


class Turns(Objective):
    """An objective with a local course of its own. It begins at the better of two models, moves the
    even coordinates in even epochs and the odd ones in odd epochs, and sends the mean of its
    gradients.

    Its gradients are those of a batch minus half of those at the mean of models so far, which it
    carries next to their sum.
    """

    anchored: ClassVar[str] = "batch"
    measures: ClassVar[str] = "loss"

    def prelude(self, params, memory):
        yield from ()
        return {"params": torch.cat([params, params + 0.5])}

    def origin(self, broadcast, state, measured):
        return broadcast["params"].view(2, -1)[measured.argmin(1)]

    def carry(self, broadcast, state):
        return torch.zeros_like(broadcast["params"])

    def anchor(self, w, broadcast, state, carried):
        return (carried.view(len(w), 2, -1)[:, 0] + w) / 2

    def along(self, step, broadcast):
        mean, total = step.carried.view(len(step.w), 2, -1).unbind(1)
        grad = step.grad - step.anchor / 2
        moves = (torch.arange(grad.shape[1]) + step.epoch[:, None]) % 2 == 0
        mean = (mean * step.number + step.w) / (step.number + 1)
        return grad * moves, torch.cat([mean, total + grad], dim=1)

    def message(self, w, broadcast, state, work):
        total = work.carried.view(len(w), 2, -1)[:, 1]
        return -work.lr * total / work.steps[:, None].clamp(min=1), None


class NoisySteps(Part):
    """A client mechanism: DP-SGD on Poisson samples of a silo's examples."""

    private: ClassVar[bool] = True
    delta: float = 1e-5
    rate: float = 0.2
    noise: float = 2.0

    def steps(self, epochs):
        return epochs

    def event(self, epochs):
        step = PoissonSampled(self.rate, Gaussian(self.noise))
        return Event(Repeated(epochs, step), "poisson", ADD_REMOVE, unit="example")

    def gradient(self, w, examples, batch_size, gradients, keys):
        drawn = np.flatnonzero(keys.derived(b"coins").bernoulli(self.rate, examples))
        rows = clip_rows(gradients(w, drawn), 1.0, grid_of(self.noise)).rows
        noise = gaussian_on_grid(keys.derived(b"noise"), self.noise, len(w))
        total = rows.double().sum(0) + torch.from_numpy(noise)
        return (total / batch_size).to(w.dtype)


class Fading(Part):
    """A schedule: the rate is divided by the round."""

    def factor(self, round):
        return 1.0 / round


class Signs(Part):
    """A server optimizer: a step of one length along each coordinate's sign."""

    in_client_rates: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    lr: float = 0.1

    def init(self, params):
        return {}

    def step(self, params, delta, state):
        return params + self.lr * delta.sign(), state

    def at(self, factor):
        return self.model_copy(update={"lr": self.lr * factor})


class Coins(Part):
    """A sampler: each client independently with the public probability `size` / clients
    declared.
    """

    size: int = Field(4, ge=1)
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ("rate",)

    def of(self, clients):
        return self

    def capacity(self):
        return None

    def largest_staleness(self):
        return 0

    def witness(self, round, clients):
        rate = self.size / clients
        return Witness("coins", rate, ADD_REMOVE, partial(PoissonSampled, rate))

    def fits(self, population, clients):
        pass

    def sample(self, round, clients, population, streams):
        keys = streams.at("cohort/toy", round, population.identities)
        drawn = keys.per_client(1)[:, 0] < np.uint64(self.size / clients * 2**64)
        return Cohort(round, np.flatnonzero(drawn), self.size, self.witness(round, clients))


class Alternating(Part):
    """An availability: all clients in odd rounds, half of them in even ones."""

    varies: ClassVar[bool] = True

    def present(self, round, who, streams):
        return (np.arange(len(who)) + round) % 2 == 1 if round % 2 == 0 else who == who


class Loud(Mechanism):
    """A mechanism: central Gaussian noise on a sum of clipped rows."""

    clip: float = 0.4
    sigma: float | None = None
    trust: ClassVar[str] = "server"
    arithmetic: ClassVar[str] = "rounded to a grid"
    private: ClassVar[bool] = True

    def event(self, witness, exchanges):
        noise = Gaussian(self.sigma / exchanges**0.5)
        return Event(witness.sampled(noise), witness.sampler, witness.relation)

    def init(self):
        return {}

    def encoding(self, state):
        return Encoding(self.clip)

    def width(self, layout):
        return layout.length

    def resolved(self, setting):
        return self

    def at(self, noise_multiplier):
        return self.model_copy(update={"sigma": noise_multiplier})

    def noise_on_update(self, size):
        return self.sigma

    def bound(self, rows, layout, keys, state):
        std = self.sigma * self.clip
        return clip_rows(rows, self.clip, grid_of(std))

    def release(self, total, divisor, keys, state):
        require_bounded(total, self.clip)
        std = self.sigma * total.bound
        noise = gaussian_on_grid(keys, std, len(total.total))
        return ((total.total + torch.from_numpy(noise)) / divisor).float(), state


class Shrunk(SumRule):
    """A rule by sums: half of every row."""

    passes: ClassVar[int] = 1
    robust: ClassVar[bool] = False

    def sensitivity(self, change):
        return float("inf")

    def terms(self, rows, center):
        return rows / 2

    def step(self, center, released):
        return released


class FirstRow(RowRule):
    """A rule on rows: the first of them."""

    def __call__(self, rows, byzantine):
        return rows[0] if len(rows) else rows.new_zeros(rows.shape[1])


class Acquainted(HistoryRule):
    """A rule with memory: the mean over clients that took part before, or over all at first."""

    def keeps(self, d):
        return 1

    def with_histories(self, rows, byzantine, histories, generator=None):
        known = histories.clients[:, 0] > 0
        chosen = rows[known] if known.any() else rows
        mean = chosen.sum(0) / max(len(chosen), 1)
        return mean, torch.ones_like(histories.clients)


class Doubling(Attack):
    """An attack: rows of twice their length."""

    knows: ClassVar[frozenset] = frozenset({Knowledge.OWN_UPDATES})

    @property
    def corrupts(self):
        return True

    def corrupt(self, view, state, rng):
        return 2 * view.byzantine, state


class Untouched(PreAggregator):
    """A pre-aggregator: every row unchanged."""

    def most(self, n):
        return n

    def mix(self, geometry, byzantine, generator):
        return torch.eye(len(geometry.gram) - 1, dtype=torch.float64)


class Counted(SecureProtocol):
    """A protocol: a trusted party adds up the encoded rows."""

    seen: ClassVar[str] = "a counter sees rows, and shows their sum"
    opener: ClassVar[str] = "the counter"

    def channel(self, session, codec, limits, layers=None):
        return Arithmetic(session, codec, limits, layers, lambda: None)


class Counting(Observer):
    """An observer that counts the rounds it is notified of."""

    rounds = 0

    def after_round(self, round):
        self.rounds += 1


class Sureness(MeanMeasure):
    """A measure: the probability of the predicted class, right or wrong."""

    def title(self, scoring):
        return "sureness"

    def lacks(self, scoring):
        return "" if scoring.form.classified else "classes"

    def bounds(self, scoring):
        return 0.0, 1.0

    def values(self, outputs, y, scoring):
        likely = scoring.loss.expectation(outputs, scoring.form.meaning).amax(-1)
        return likely.flatten(1).mean(1) if scoring.sequences else likely
