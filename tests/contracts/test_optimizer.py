"""What every server optimizer keeps: pure steps, a state that survives a checkpoint, no drift."""

import torch
from contracts.registered import contract_tests
from contracts.runs import resumes_to_the_same_bits, spelled
from safetensors.torch import load, save

from privfed.server.fedopt import FedAvg, FedAvgM

DELTAS = torch.tensor([[0.5, -2.0], [0.1, 0.0], [-0.3, 1.0], [0.7, 0.2], [0.0, -0.4], [1.5, 0.3]])
"""Six rounds: enough for one that does something in every fifth."""


def start():
    return torch.tensor([1.0, -1.0])


def run(server, deltas, params, state):
    for delta in deltas:
        params, state = server.step(params, delta, state)
    return params, state


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def steps_are_pure(server):
    """Nothing is changed in place or remembered outside of the state."""
    params, state = run(server, DELTAS[:3], start(), server.init(start()))
    before = params.clone(), {key: value.clone() for key, value in state.items()}
    once = server.step(params, DELTAS[3].clone(), state)
    again = server.step(params, DELTAS[3].clone(), state)
    assert torch.equal(params, before[0]), "the model is changed in place"
    assert equal(state, before[1]), "the state is changed in place"
    assert torch.equal(once[0], again[0])
    assert equal(once[1], again[1])
    assert (once[0].dtype, once[0].shape) == (params.dtype, params.shape)


def resumes_from_a_checkpoint(server):
    """After any round, the state is read from a file, and the run goes on to the same bits."""
    whole = run(server, DELTAS, start(), server.init(start()))
    for stop in range(len(DELTAS)):
        params, state = run(server, DELTAS[:stop], start(), server.init(start()))
        assert all(isinstance(value, torch.Tensor) for value in state.values()), "no tensors"
        read = load(save({key: value.contiguous() for key, value in state.items()}))
        assert equal(read, dict(state))
        server.model_copy().init(start())  # as of another process, before it reads
        resumed = run(server.model_copy(), DELTAS[stop:], params, read)
        assert torch.equal(resumed[0], whole[0])
        assert equal(resumed[1], whole[1])


def stays_without_an_update(server):
    zeros = torch.zeros_like(DELTAS)
    params, state = run(server, zeros, start(), server.init(start()))
    assert torch.equal(params, start())
    assert all(value.isfinite().all() for value in state.values())
    still, _ = run(server.at(0.0), DELTAS, start(), server.init(start()))
    assert torch.equal(still, start()), "at rate zero it stays"


def moves_along_the_first_update(server):
    params, _ = server.step(start(), DELTAS[0], server.init(start()))
    assert float((params - start()) @ DELTAS[0]) > 0


def is_plain_only_where_it_adds_the_update(server):
    params, state = start(), server.init(start())
    added = True
    for delta in DELTAS:
        moved, state = server.step(params, delta, state)
        added &= torch.allclose(moved, params + delta)
        params = moved
    assert added or not server.plain


def rates_multiply(server):
    halves = server.at(0.5).at(0.5)
    params = [
        each.step(start(), DELTAS[0], each.init(start()))[0]
        for each in (halves, server.at(0.25), server.at(1.0), server)
    ]
    assert torch.allclose(params[0], params[1])
    assert torch.equal(params[2], params[3])
    assert not torch.equal(params[1], params[3]), "the rate changes nothing"
    assert type(server).model_validate(server.model_dump()) == server, "its keys say all of it"


def trains_in_a_run_and_resumes(server, folder):
    falling = ("server.schedule=cosine", "server.over=9")
    resumes_to_the_same_bits(folder, f"server.optimizer={spelled('optimizer', server)}", *falling)


class InPlace(FedAvg):
    """It moves the model that it is given."""

    def step(self, params, delta, state):
        return params.add_(self.lr * delta), state


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


class Decaying(FedAvg):
    """It shrinks the model, whatever it is told."""

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
        steps_are_pure: [InPlace(), Remembering()],
        resumes_from_a_checkpoint: [Remembering(), Counting()],
        stays_without_an_update: [Decaying(), Fixed()],
        moves_along_the_first_update: [Backwards()],
        is_plain_only_where_it_adds_the_update: [NotPlain()],
        rates_multiply: [Fixed()],
        trains_in_a_run_and_resumes: [Remembering()],
    },
)
