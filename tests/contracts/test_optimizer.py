"""What every server optimizer keeps: pure steps, a state that survives a checkpoint, no drift."""

import torch
from contracts.registered import contract_tests
from contracts.runs import resumes_to_the_same_bits, spelled

from privfed.server.fedopt import FedAvg, FedAvgM
from privfed.testing.hooks import (
    is_plain_only_where_it_adds_the_update,
    moves_along_the_first_update,
    rates_multiply,
    resumes_from_a_checkpoint,
    stays_without_an_update,
    steps_are_pure,
)


def trains_in_a_run_and_resumes(server, folder):
    falling = ("server.schedule=cosine", "server.over=9")
    resumes_to_the_same_bits(folder, f"server.optimizer={spelled('optimizer', server)}", *falling)


class InPlace(FedAvg):
    """It moves the model that it is given."""

    def step(self, params, delta, state):
        return params.add_(self.lr * delta), state


class Double(FedAvg):
    """Its models are double, from its first step on."""

    def step(self, params, delta, state):
        return (params + self.lr * delta).double(), state


class Remembering(FedAvgM):
    """Its momentum lies outside of its state."""

    def init(self, params):
        _MOMENTUM[:] = [torch.zeros_like(params)]
        return {}

    def step(self, params, delta, state):
        _MOMENTUM.append(self.momentum * _MOMENTUM[-1] + delta)
        return params + self.lr * _MOMENTUM[-1], {}


_MOMENTUM = []


class Counting(FedAvg):
    """Its state is a number, which no checkpoint holds."""

    def init(self, params):
        return {"rounds": 0}

    def step(self, params, delta, state):
        return params + self.lr * delta, {"rounds": state["rounds"] + 1}


class Growing(FedAvgM):
    """Its state has one more aggregate after each round."""

    def step(self, params, delta, state):
        momentum = torch.cat([state["momentum"], delta])
        return params + self.lr * delta, {"momentum": momentum}


class Renaming(FedAvgM):
    """Its state has another name after the first round."""

    def step(self, params, delta, state):
        return params + self.lr * delta, {"velocity": delta.clone()}


class Decaying(FedAvg):
    """It shrinks the model in each step."""

    def step(self, params, delta, state):
        return 0.9 * params + self.lr * delta, state


class Backwards(FedAvg):
    """It takes the update for a gradient."""

    def step(self, params, delta, state):
        return params - self.lr * delta, state


class NotPlain(FedAvgM):
    """It claims to add the update, and adds momentum too."""

    plain = True


class Fixed(FedAvg):
    """Its rate is its own."""

    def at(self, factor):
        return self


test_every_optimizer_keeps, test_a_wrong_optimizer_is_rejected_by = contract_tests(
    "optimizer",
    {
        steps_are_pure: [InPlace(), Remembering(), Double(), Growing(), Renaming()],
        resumes_from_a_checkpoint: [Remembering(), Counting()],
        stays_without_an_update: [Decaying(), Fixed()],
        moves_along_the_first_update: [Backwards()],
        is_plain_only_where_it_adds_the_update: [NotPlain()],
        rates_multiply: [Fixed()],
        trains_in_a_run_and_resumes: [Remembering()],
    },
)
