"""What every mechanism inside silos keeps: each step has the noise and the rate it charges for."""

import math

import numpy as np
import torch
from contracts.registered import contract_tests
from helpers import assert_normal

from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, Repeated
from privfed.client.dp_sgd import DpSgd
from privfed.core.streams import Streams
from privfed.privacy.clipping import clip_rows

EXAMPLES, LENGTH, BATCH = 40, 500, 8
STREAMS = Streams(5, simulated=True)


def step(part, gradients, number=1):
    keys = next(STREAMS.at("noise/silo", number, np.array([3])).each())
    return part.gradient(torch.zeros(LENGTH), EXAMPLES, BATCH, gradients, keys)


def of_nothing(w, drawn):
    return torch.zeros(len(drawn), LENGTH)


def charges_for_the_steps_it_takes(part):
    if not part.private:
        return
    assert 0 < part.delta < 1
    for epochs in (1, 3):
        event = part.event(epochs)
        assert event.unit == "example"
        assert isinstance(event.release, Repeated)
        assert event.release.count == part.steps(epochs)
        assert isinstance(event.release.of, PoissonSampled)
    assert part.steps(3) > part.steps(1) > 0


def noises_each_step_as_it_charges(part):
    """Of one clipping norm, which one long gradient shows."""
    if not part.private:
        return
    noise = part.event(1).release.of.of
    clip = getattr(part, "clip", 1.0)
    released = [step(part, of_nothing, number).numpy() * BATCH for number in range(1, 9)]
    assert isinstance(noise, Gaussian)
    assert_normal(np.concatenate(released), noise.noise_multiplier * clip)


def draws_and_clips_each_example(part):
    """Each is drawn by itself at the charged rate, and moves the sum by the clip at most."""
    if not part.private:
        return
    often, sizes, clip = np.zeros(EXAMPLES), [], getattr(part, "clip", 1.0)

    def long(w, drawn):
        often[drawn] += 1
        sizes.append(len(drawn))
        gradients = torch.zeros(len(drawn), LENGTH)
        gradients[:, 0] = 1e6
        return gradients

    rounds = 300
    sums = [float(step(part, long, number)[0]) * BATCH for number in range(1, rounds + 1)]
    rate = part.event(1).release.of.rate
    error = math.sqrt(rate * (1 - rate) / (rounds * EXAMPLES))
    assert abs(often.mean() / rounds - rate) < 5 * error
    expected = rate * EXAMPLES * clip
    spread = part.event(1).release.of.of.noise_multiplier * clip / math.sqrt(rounds)
    assert abs(np.mean(sums) - expected) < 5 * (spread + error * EXAMPLES * clip * 2)


class HalfTheNoise(DpSgd):
    """Its noise is half of what it charges for."""

    def gradient(self, w, examples, batch_size, gradients, keys):
        less = DpSgd(**{**self.model_dump(), "noise_multiplier": self.noise_multiplier / 2})
        return less.gradient(w, examples, batch_size, gradients, keys)


class Unclipped(DpSgd):
    """Gradients of examples keep their length."""

    def gradient(self, w, examples, batch_size, gradients, keys):
        drawn = np.flatnonzero(keys.derived(b"sampling").bernoulli(self.sampling_rate, examples))
        return gradients(w, drawn).sum(0) / batch_size


class AllOfThem(DpSgd):
    """Every example enters every step."""

    def gradient(self, w, examples, batch_size, gradients, keys):
        rows = clip_rows(gradients(w, np.arange(examples)), self.clip).rows
        return rows.sum(0) / batch_size


class OneStep(DpSgd):
    """It charges for one step of many."""

    def steps(self, epochs):
        return 1


test_every_client_mechanism_keeps, test_a_wrong_client_mechanism_is_rejected_by = contract_tests(
    "client_mechanism",
    {
        charges_for_the_steps_it_takes: [OneStep()],
        noises_each_step_as_it_charges: [HalfTheNoise()],
        draws_and_clips_each_example: [Unclipped(), AllOfThem()],
    },
)
