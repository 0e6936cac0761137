"""Small federations in which a paper's algorithm can be written out, with known optima."""

import numpy as np
import torch
from helpers import Rounds, built, set_fields

from privfed.data.federation import Examples, Federation
from privfed.models.losses.squared_error import SquaredError
from privfed.models.recipes import Logistic
from privfed.privacy.mechanisms.none import NoPrivacy


def full_batches(folder, objective, *, epochs=2, way="stacked", **changes):
    """Returns rounds with full participation, one batch per epoch, and the plain mean of rows."""
    settings = {"size": 4, "mechanism": NoPrivacy()} | changes
    rounds = Rounds(folder, (3, 9, 4, 6), objective=objective, **settings)
    set_fields(rounds.local, epochs=epochs, batch_size=9, way=way)
    set_fields(rounds.world.executor, by_examples=False)
    return rounds


def gradients(rounds):
    population, net = rounds.local.federation, rounds.local.network

    def gradient(client, w):
        start, end = population.offsets[client : client + 2]
        leaf = w.detach().requires_grad_()
        x, y = population.examples.x[start:end], population.examples.y[start:end]
        net.losses(leaf, x, y).mean().backward()
        return leaf.grad

    return gradient


def quadratics(folder, objective, size, seed=0, empty=0, **changes):
    """Returns eight clients, each with its own least-squares problem, and their common optimum.

    `empty` further clients have no examples.
    """
    generator = torch.Generator().manual_seed(5)
    count, features = 8, 3
    x = torch.randn(count, 6, features, generator=generator)
    x = x * torch.linspace(0.3, 1.5, count)[:, None, None]
    y = x @ torch.randn(count, features, 1, generator=generator) * 2
    y = (y + torch.randn(count, 1, 1, generator=generator)).reshape(-1, 1)
    examples = Examples(x.reshape(-1, features), y, 1)
    sizes = (6,) * count + (0,) * empty
    population = Federation(examples, np.concatenate([[0], np.cumsum(sizes)]), examples)
    net = built(Logistic(), (features,), 1,
                y=y, x=examples.x, loss=SquaredError())  # fmt: skip
    rounds = Rounds(folder, sizes, federation=population, size=size, objective=objective,
                    mechanism=NoPrivacy(), seed=seed, network=net, chunk=count,
                    **changes)  # fmt: skip
    set_fields(rounds.local, lr=0.1, epochs=10, batch_size=6)
    set_fields(rounds.world.executor, by_examples=False)
    ones = torch.cat([examples.x, torch.ones(len(y), 1)], dim=1).double()
    best = torch.linalg.lstsq(ones, y.double()).solution.squeeze(1)
    return rounds, best.float()
