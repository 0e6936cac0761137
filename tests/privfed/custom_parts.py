"""A user's own parts, as `module:Name` names them."""

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from accounting.events import ADD_REMOVE, REPLACE_ONE, Event
from accounting.noises import Gaussian
from accounting.releases import WithoutReplacement
from defenses.types import RowRule
from privfed.core.parts import Part
from privfed.data.partitions.basic import Natural
from privfed.data.partitions.shift import Concept
from privfed.data.sources.synthetic import Synthetic
from privfed.data.sources.table import Table
from privfed.models.losses.cross_entropy import CrossEntropy
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.sampling.cohort import Cohort, Witness
from privfed.sampling.samplers import BySize, CappedPoisson, FixedSize, Poisson


class MySize(BySize):
    """By size, under another name."""


class MyFixed(FixedSize):
    """A fixed size, under another name."""


class MyCapped(CappedPoisson):
    """Truncated, under another name."""


class MyConcept(Concept):
    """Labels that change, under another name."""


class MyGaussian(CentralGaussian):
    """Noise, under another name."""


class Curious(Poisson):
    """Declares that it reads no sizes, and uses them nevertheless."""

    seen: ClassVar[list] = []

    def sample(self, round, clients, population, streams):
        self.seen.append(population.sizes.tolist())
        return super().sample(round, clients, population, streams)


class Silent(Part):
    """A sampler from scratch that does not declare whether it reads sizes."""

    size: int = 4
    remembers: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple] = ("rate",)

    def of(self, clients):
        return self

    def capacity(self):
        return None

    def largest_staleness(self):
        return 0

    def witness(self, round, clients):
        raise NotImplementedError

    def fits(self, population, clients):
        pass

    def sample(self, round, clients, population, streams):
        return np.arange(3)


class Twice(Poisson):
    """Samples at twice the rate, and declares so in its rule."""

    def witness(self, round, clients):
        return super().witness(round, clients // 2)

    def sample(self, round, clients, population, streams):
        return super().sample(round, clients // 2, population, streams)


class BySizeFromScratch(Part):
    """By size, from scratch, with all its declarations."""

    size: int = 4
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = True
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple] = ("clients", "size")

    def of(self, clients):
        return self

    def capacity(self):
        return None

    def largest_staleness(self):
        return 0

    def witness(self, round, clients):
        return Witness("mine", self.size / clients, ADD_REMOVE)

    def fits(self, population, clients):
        pass

    def sample(self, round, clients, population, streams):
        raise NotImplementedError


class Forgetful(BySizeFromScratch):
    """Fixed cohort size by its event alone: it declares no shared places, and checks no
    population.
    """

    reads_sizes: ClassVar[bool] = False

    def witness(self, round, clients):
        drawn = partial(WithoutReplacement, self.size, clients)
        return Witness("mine", self.size / clients, REPLACE_ONE, drawn, random=False)

    def sample(self, round, clients, population, streams):
        return Cohort(round, np.arange(self.size), float(self.size), self.witness(round, clients))


class Crowded(Poisson):
    """Declares that clients displace each other, contrary to its event."""

    shares_places: ClassVar[bool] = True


class Modest(NoPrivacy):
    """Declares that it is not private, and makes a claim nevertheless."""

    def event(self, witness, exchanges):
        return Event(witness.sampled(Gaussian(1.0)), witness.sampler, witness.relation)


class Secretly(Natural):
    """Assigns clients' examples to other clients, and declares that it does not."""

    def owners(self, examples, clients, streams):
        return super().owners(examples, clients, streams)[::-1].copy()


class Unsaid(Part):
    """An availability that does not declare whether it varies."""

    def present(self, round, who, streams):
        return np.ones(len(who), dtype=bool)


class Renamed(Synthetic):
    """A user's own source that is not a built-in one."""


class Sheet(Table):
    """A table, under another name."""


class Growing(Synthetic):
    """A source whose examples have more features for more clients."""

    def load(self, clients, streams):
        examples = super().load(clients, streams)
        return replace(examples, x=examples.x.repeat(1, 1 + clients // 300))


class Hospital(Synthetic):
    """Real people, under a name that no contract has."""

    found: ClassVar[bool] = True


class Graded(CrossEntropy):
    """A loss whose scores have a name that is never used."""

    def keep(self, outputs, y, meaning):
        return super().scores(outputs, y, meaning)


class Helped(RowRule):
    """A rule on rows with a helper that has the name of a method of rules by sums."""

    def step(self, rows):
        return rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])

    def __call__(self, rows, byzantine):
        return self.step(rows)


class Answering(Helped):
    """A rule on rows that declares attributes of a rule by sums."""

    extra: ClassVar[int] = 3


class Bare(Part):
    """A part without the declarations of its kind."""

    lr: float = 1.0


class MixesGradients(torch.nn.Module):
    """A model whose outputs depend on one example each, but whose gradients do not."""

    def __init__(self, features, width):
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(features)), width)

    def forward(self, x):
        outputs = self.layer(x.flatten(1))
        mean = outputs.mean(0)
        return outputs - (mean - mean.detach())
