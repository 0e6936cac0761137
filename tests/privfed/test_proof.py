"""The rules of proof hold for the shipped mechanism, and each planted fault turns a check red."""

from dataclasses import replace

import checks
import numpy as np
import pytest
import torch

from accounting.ledger import Charge, Ledger
from defenses.by_sums import geometric_median, norm_bound
from privfed.client.trainer import LocalTrainer
from privfed.core.streams import Keys, Streams
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms import central_gaussian as gaussian
from privfed.round.algorithm import Algorithm
from privfed.round.by_sums import BySums
from privfed.round.updates import ClientUpdates
from privfed.sampling.samplers import Poisson
from privfed.secure.plain_sum import PlainAccumulator


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
def test_the_rule_holds(check, tmp_path):
    check(tmp_path)


def halved_noise(monkeypatch):
    real = gaussian.gaussian_on_grid
    monkeypatch.setattr(gaussian, "gaussian_on_grid", lambda *args: 0.5 * real(*args))


def slightly_little_noise(monkeypatch):
    real = gaussian.gaussian_on_grid
    monkeypatch.setattr(gaussian, "gaussian_on_grid", lambda *args: 0.9 * real(*args))


def a_thousandth_less_noise(monkeypatch):
    real = gaussian.gaussian_on_grid
    monkeypatch.setattr(gaussian, "gaussian_on_grid", lambda *args: 0.999 * real(*args))


def one_noise_for_all_rounds(monkeypatch):
    real = Streams.at

    def at(self, stream, round=0, clients=None):
        return real(self, stream, 0 if stream.startswith("noise") else round, clients)

    monkeypatch.setattr(Streams, "at", at)


def one_noise_for_all_exchanges(monkeypatch):
    real = Streams.at

    def at(self, stream, round=0, clients=None):
        return real(self, "noise/0" if stream.startswith("noise/") else stream, round, clients)

    monkeypatch.setattr(Streams, "at", at)


def exchanges_charged_as_one(monkeypatch):
    real = gaussian.CentralGaussian.event
    monkeypatch.setattr(
        gaussian.CentralGaussian, "event", lambda self, witness, exchanges: real(self, witness, 1)
    )


def skipped_clip(monkeypatch):
    monkeypatch.setattr(gaussian, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


def a_rule_and_a_clip_that_bound_nothing(monkeypatch):
    skipped_clip(monkeypatch)
    for module in (norm_bound, geometric_median):
        monkeypatch.setattr(module, "pull", lambda rows, center, _: (rows - center, rows[:, :1]))


def sum_scaled_after_the_clip(monkeypatch):
    real = BySums.sum

    def scaled(*args):
        total = real(*args)
        return BoundedSum(total.total * 8, total.bound, total.survivors)

    monkeypatch.setattr(BySums, "sum", scaled)


def weights_after_the_clip(monkeypatch):
    """Each bounded row enters its plain sum times the client's weight."""
    weights, chunks, add = {}, ClientUpdates.chunks, PlainAccumulator.add

    def weighed(self, *args):
        for chunk in chunks(self, *args):
            weights.update(zip(chunk.ids.tolist(), chunk.weights, strict=True))
            yield chunk

    def added(self, ids, rows):
        factors = torch.stack([weights[client] for client in ids.tolist()])
        add(self, ids, replace(rows, rows=rows.rows * factors[:, None]))

    monkeypatch.setattr(ClientUpdates, "chunks", weighed)
    monkeypatch.setattr(PlainAccumulator, "add", added)


def weights_before_the_clip(monkeypatch):
    """Bounded, yet not the event's mechanism: short rows would be scaled by what is private."""
    monkeypatch.setattr(Algorithm, "fixed_divisor", False)


def realised_divisor(monkeypatch):
    real = Poisson.sample

    def sample(self, *args):
        cohort = real(self, *args)
        return replace(cohort, divisor=float(max(len(cohort.clients), 1)))

    monkeypatch.setattr(Poisson, "sample", sample)


def charge_after_release(monkeypatch):
    """The charge is promised at the draw, and paid when the round is over."""
    real, owed = Ledger.charge, []

    def charge(self, round, event):
        for earlier in owed:
            real(self, *earlier)
        owed[:] = [(round, event)]
        return Charge(round, event, "0" * 64)

    monkeypatch.setattr(Ledger, "charge", charge)


def fixed_size_sampler(monkeypatch):
    real = Poisson.sample

    def sample(self, round, clients, sizes, streams):
        cohort = real(self, round, clients, sizes, streams)
        chosen = np.random.default_rng(round).permutation(len(sizes))[: self.size]
        return replace(cohort, clients=np.sort(chosen))

    monkeypatch.setattr(Poisson, "sample", sample)


def half_the_population_is_never_drawn(monkeypatch):
    real = Poisson.sample

    def sample(self, *args):
        cohort = real(self, *args)
        return replace(cohort, clients=cohort.clients[cohort.clients % 2 == 0])

    monkeypatch.setattr(Poisson, "sample", sample)


def noise_drawn_once_and_reused(monkeypatch):
    real = Keys.bits
    monkeypatch.setattr(Keys, "bits", lambda self, count: real(Keys(bytes(16)), count))


def a_rate_two_percent_higher(monkeypatch):
    real = Keys.bernoulli
    monkeypatch.setattr(Keys, "bernoulli", lambda self, rate, n: real(self, rate * 1.02, n))


def one_word_more_counts_as_in(monkeypatch):
    """Of 2^53 words: no frequency tells, and yet the rate is above the one that is charged."""
    real = Keys.bernoulli
    monkeypatch.setattr(Keys, "bernoulli", lambda self, rate, n: real(self, rate + 2.0**-53, n))


def silence_for_an_empty_cohort(monkeypatch):
    real = gaussian.CentralGaussian.release

    def release(self, total, divisor, keys, state):
        if total.survivors == 0:
            return torch.zeros_like(total.total).float(), state
        return real(self, total, divisor, keys, state)

    monkeypatch.setattr(gaussian.CentralGaussian, "release", release)


def a_neighbour_in_the_batch(monkeypatch):
    """Each client also moves by what the next one in its chunk learned."""
    real = LocalTrainer.train

    def train(self, ids, *args):
        rows, own = real(self, ids, *args)
        return rows + rows.roll(1, dims=0), own

    monkeypatch.setattr(LocalTrainer, "train", train)


@pytest.mark.parametrize(
    "fault, check",
    [
        (halved_noise, checks.noise_has_the_charged_scale),
        (slightly_little_noise, checks.noise_has_the_charged_scale),
        (a_thousandth_less_noise, checks.noise_has_the_charged_scale),
        (one_noise_for_all_rounds, checks.noise_is_fresh_every_round),
        (noise_drawn_once_and_reused, checks.noise_is_fresh_every_round),
        (skipped_clip, checks.one_client_moves_the_sum_by_at_most_the_clip),
        (sum_scaled_after_the_clip, checks.one_client_moves_the_sum_by_at_most_the_clip),
        (a_neighbour_in_the_batch, checks.one_client_moves_the_sum_by_at_most_the_clip),
        (weights_after_the_clip, checks.a_weight_never_lengthens_a_clipped_row),
        (weights_before_the_clip, checks.a_weight_never_lengthens_a_clipped_row),
        (realised_divisor, checks.the_divisor_does_not_depend_on_who_took_part),
        (charge_after_release, checks.the_charge_is_durable_before_anybody_is_drawn),
        (fixed_size_sampler, checks.the_sampler_is_the_one_charged_for),
        (half_the_population_is_never_drawn, checks.the_sampler_is_the_one_charged_for),
        (a_rate_two_percent_higher, checks.the_sampler_is_the_one_charged_for),
        (one_word_more_counts_as_in, checks.the_sampler_is_the_one_charged_for),
        (one_noise_for_all_exchanges, checks.exchanges_are_charged_together_and_noised_apart),
        (exchanges_charged_as_one, checks.exchanges_are_charged_together_and_noised_apart),
        (one_noise_for_all_exchanges, checks.passes_are_charged_together_and_noised_apart),
        (exchanges_charged_as_one, checks.passes_are_charged_together_and_noised_apart),
        (slightly_little_noise, checks.passes_are_charged_together_and_noised_apart),
        (sum_scaled_after_the_clip, checks.one_client_moves_a_rules_terms_by_at_most_the_clip),
        (
            a_rule_and_a_clip_that_bound_nothing,
            checks.one_client_moves_a_rules_terms_by_at_most_the_clip,
        ),
        (silence_for_an_empty_cohort, checks.an_empty_cohort_is_charged_and_noised),
    ],
    ids=lambda value: value.__name__,
)
def test_a_planted_fault_is_caught(fault, check, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check(tmp_path)
