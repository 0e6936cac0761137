"""Parts of a user's own, as `module:Name` names them."""

from typing import ClassVar

import numpy as np

from privfed.data.shift import Concept
from privfed.parts import Part
from privfed.privacy.gaussian import CentralGaussian
from privfed.samplers import BySize, CappedPoisson, FixedSize, Poisson


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
    """Says that it reads no sizes, and draws the clients with most examples all the same."""

    seen: ClassVar[list] = []

    def sample(self, round, clients, people, streams):
        self.seen.append(people.sizes.tolist())
        return super().sample(round, clients, people, streams)


class Silent(Part):
    """A sampler from scratch, whose author forgot to say whether it reads sizes."""

    size: int = 4
    remembers: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple] = ("rate",)

    def of(self, clients):
        return self

    def capacity(self):
        return None

    def witness(self, round, clients):
        raise NotImplementedError

    def fits(self, population, clients):
        pass

    def sample(self, round, clients, people, streams):
        return np.arange(3)


class Twice(Poisson):
    """Draws at twice the rate, and says so in its rule."""

    def witness(self, round, clients):
        return super().witness(round, clients // 2)

    def sample(self, round, clients, people, streams):
        return super().sample(round, clients // 2, people, streams)
