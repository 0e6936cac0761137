"""Late clients: rows at the model that they received, weighted, within one clip; and an attack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Rounds
from lanes import every_case

from accounting.empirical.claimed_releases import claimed_points
from accounting.empirical.two_sample import judge
from accounting.over_rounds import Separated
from defenses.by_sums.mean import Mean
from defenses.on_rows.median import Median
from privfed.auditing.neighbours import LastRelease
from privfed.auditing.scenarios import LENGTH
from privfed.client.exchange import Chunk
from privfed.client.objective import Sgd
from privfed.core.streams import Streams
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.algorithm import Algorithm
from privfed.round.round import run_round
from privfed.round.updates import ClientUpdates
from privfed.round.world import World
from privfed.sampling.asynchronous import Asynchronous
from privfed.sampling.cohort import Cohort, Population
from privfed.secure.plain_sum import PlainSum
from privfed.server.fedopt import FedAvg

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
LATE = Asynchronous(separation=2, delays=(0, 1, 3), damping=0.5).of(len(SIZES))
CLIP = 0.3


def by_hand(rounds, ticks, clipped=True):
    """The models before tick 1, 2, … : each client's row at the model it received, weighted."""
    world, models = rounds.world, [rounds.state.params]
    stale = 0
    for tick in range(1, ticks + 1):
        cohort = LATE.sample(tick, len(SIZES), world.population, world.streams)
        total = torch.zeros_like(models[0])
        for client in cohort.clients:
            late = int(cohort.staleness[client])
            received = models[max(tick - 1 - late, 0)]  # of the start of tick - late
            ids = np.array([client])
            keys = world.streams.at("shuffle", tick, world.population.identities[ids])
            row = rounds.local.train(ids, {"params": received}, None, keys)[0]
            row = clip_rows(row, CLIP).rows[0] if clipped else row[0]
            total += row / np.sqrt(1 + late)
            stale += late > 0 and not torch.equal(received, models[-1])
        models.append(models[-1] + total / cohort.divisor)
    assert stale > 3
    return models


def tiny(folder, **changes):
    mechanism = CentralGaussian(clip=CLIP, noise_multiplier=0.0)
    return Rounds(folder, SIZES, **{"sampler": LATE, "mechanism": mechanism, **changes})


def test_a_late_row_is_trained_at_the_model_that_the_client_received(tmp_path):
    """From the first tick on, as long as earlier models go back to the first."""
    rounds = tiny(tmp_path)
    state = rounds.run(9)
    models = by_hand(rounds, 9)
    torch.testing.assert_close(state.params, models[9], rtol=0, atol=1e-6)
    earlier = torch.stack([models[8], models[7], models[6]])
    torch.testing.assert_close(state.earlier["models"], earlier, rtol=0, atol=1e-6)


def newest_model_for_all(monkeypatch):
    real = ClientUpdates._answers

    def answers(self, exchange, present):
        return real(self, exchange, replace(present, staleness=None))

    monkeypatch.setattr(ClientUpdates, "_answers", answers)


def a_model_too_new(monkeypatch):
    real = ClientUpdates._answers

    def answers(self, exchange, present):
        return real(
            self, exchange, replace(present, staleness=np.maximum(present.staleness - 1, 0))
        )

    monkeypatch.setattr(ClientUpdates, "_answers", answers)


def no_weights(monkeypatch):
    monkeypatch.setattr(ClientUpdates, "_damped", lambda self, ids, rows, layout: rows)


def weights_of_rows_before_the_clip(monkeypatch):
    monkeypatch.setattr(ClientUpdates, "clipped", lambda self, rows, byzantine: rows)


@every_case(
    "wrong",
    [newest_model_for_all, a_model_too_new, no_weights, weights_of_rows_before_the_clip],
)
def test_other_models_or_weights_give_other_rows(tmp_path_factory, wrong):
    with pytest.MonkeyPatch.context() as patch:
        wrong(patch)
        rounds = tiny(tmp_path_factory.mktemp(wrong.__name__), lr=5.0)
        state = rounds.run(9)
    right = by_hand(rounds, 9)[9]
    assert (state.params - right).abs().max() > 1e-3


def test_without_privacy_updates_are_weighted_and_weights_by_examples_are_not(tmp_path):
    """FedBuff divides by the number of updates, so late ones move the model less."""
    rounds = tiny(tmp_path, mechanism=NoPrivacy(), sampler=replaced(LATE, damping=1.0))
    rounds.state = rounds.state.after(rounds.state.params + 0.1)
    updates, cohort = late_updates(rounds)
    rows = torch.ones(len(cohort.clients), 3)
    wire = Sgd().layout(2).plus("weight", 1)
    sent = updates.bounded(cohort.clients, rows, wire, 0, {}).rows
    late = torch.from_numpy(cohort.staleness[cohort.clients]).float()
    torch.testing.assert_close(sent[:, :2], (1 / (1 + late))[:, None].expand(-1, 2))
    assert (sent[:, 2] == 1).all()


def replaced(part, **keys):
    return part.model_copy(update=keys)


def late_updates(rounds, weights=None):
    """Updates of a cohort of all clients, each with the staleness of its tier."""
    drawn = rounds.algorithm.draw(5, rounds.world.population, rounds.world.streams)
    cohort = replace(drawn, clients=np.arange(len(SIZES)))
    if weights is not None:
        cohort = replace(cohort, weights=weights)
    return ClientUpdates(rounds.algorithm, rounds.world, rounds.state, cohort), cohort


@every_case("weight", [0.01, 0.5, 1.0, 1.5, 1e30, float("nan")])
def test_no_weight_lifts_a_row_above_the_clip(tmp_path_factory, weight):
    """Samplers are tested to have no such weights; if one had, its rows would still be bounded."""
    rounds = tiny(tmp_path_factory.mktemp("rounds"))
    updates, cohort = late_updates(rounds, np.full(len(SIZES), weight))
    rows = torch.randn(len(SIZES), 5) * torch.logspace(-6, 6, len(SIZES))[:, None]
    rows[3, 2], layout = torch.inf, Sgd().layout(5)
    sent = updates.bounded(cohort.clients, rows, layout, 0, {})
    assert sent.bound == CLIP
    assert (sent.rows.double().norm(dim=1) <= CLIP).all()
    if weight <= 1:
        expected = clip_rows(rows, CLIP).rows * weight
        torch.testing.assert_close(sent.rows, expected, rtol=1e-5, atol=1e-9)


def test_a_clip_that_is_skipped_is_seen(tmp_path, monkeypatch):
    """So the test above would see it."""
    monkeypatch.setattr(CentralGaussian, "bound", lambda self, rows, *_: clip_rows(rows, 1e6))
    updates, cohort = late_updates(tiny(tmp_path), np.full(len(SIZES), 1.5))
    sent = updates.bounded(cohort.clients, torch.ones(len(SIZES), 5), Sgd().layout(5), 0, {})
    assert (sent.rows.norm(dim=1) > CLIP).all()


def test_a_rule_on_rows_sees_weighted_rows(tmp_path):
    rounds = tiny(tmp_path, mechanism=NoPrivacy(), rule=Median())
    released = rounds.released(6)
    assert np.isfinite(released).all()
    equal = tiny(tmp_path / "equal", mechanism=NoPrivacy(), rule=Median(), sampler=EQUAL)
    assert not np.array_equal(released, equal.released(6))


EQUAL = replaced(LATE, damping=0.0)


# An adversary that decides, by what was released, who arrives, and how late.

B, TICKS, NOISE = 6, 8, 1.0
TARGET, OTHERS = 0, 6


class Adversarial(Asynchronous):
    """Arrivals chosen from all releases: against the target, as often as `every` ticks allows.

    The target arrives in the first tick and again after `every` ticks; one tick later if the last
    release moved against its row. Others arrive where their rows cover those of the target least.
    """

    every: int = B
    seen: list

    def sample(self, round, clients, population, streams):
        taken = [tick for tick, _ in self.seen]
        late = bool(self.seen) and self.every > 1 and self.seen[-1][1] < 0
        due = not taken or round - taken[-1] >= self.every + late
        chosen = [TARGET] * due + [k for k in range(1, OTHERS + 1) if (k + round + late) % 3 == 0]
        delay = np.array([min(round - 1, k % 3 + late) for k in range(len(population))])
        return Cohort(
            round, np.array(chosen), float(self.size), self.witness(round, clients), staleness=delay
        )


class Rows:
    """Clients' rows: the target's along the first coordinate, others' from the model they train."""

    def __init__(self, member):
        self.member = member

    def answering(self, cohort):
        return cohort

    def chunks(self, exchange, cohort):
        rows = torch.sign(exchange.broadcast["params"]).repeat(len(cohort.clients), 1)
        rows[cohort.clients == TARGET] = torch.eye(LENGTH)[0] * (9.0 if self.member else 0.0)
        yield Chunk(cohort.clients, rows, torch.ones(len(rows)))


def game(member, seed, noise=NOISE, every=B):
    """The score of one run: the log-likelihood ratio at the target's arrivals, and how many."""
    sampler = Adversarial(separation=B, delays=(0, 3), every=every, seen=[]).of(OTHERS + 1)
    mechanism = CentralGaussian(clip=1.0, noise_multiplier=noise)
    algorithm = Algorithm(
        Sgd(), FedAvg(), Mean(), mechanism, sampler, PlainSum(), clients=OTHERS + 1
    )
    last, streams = LastRelease(), Streams(seed, simulated=True)
    population = Population.of(np.ones(OTHERS + 1, np.int64))
    world = World(Rows(member), population, last, last, streams)
    state, score, often = algorithm.initial_state(torch.zeros(LENGTH)), 0.0, 0
    for tick in range(1, TICKS + 1):
        cohort = algorithm.draw(tick, population, streams)
        expected = expected_of_others(cohort, state)
        state = run_round(tick, algorithm, state, world)
        moved = float(last.released[0][0]) * float(sampler.size) - expected
        if TARGET in cohort.clients:
            score, often = score + moved, often + 1
            sampler.seen.append((tick, moved))
    return score, often


def expected_of_others(cohort: Cohort, state):
    """The first coordinate of the sum of all clients' rows without the target's and the noise."""
    others = [k for k in cohort.clients if k != TARGET]
    models = [state.model_before(int(cohort.staleness[k])) for k in others]
    rows = [clip_rows(torch.sign(model)[None], 1.0).rows[0, 0] for model in models]
    return float(sum(rows, torch.zeros(())))


def verdict(**wrong):
    """Judges the ε of the accountant on runs with the target's rows and with zeros."""
    runs = 1000
    played = [[game(member, 10**6 * member + k, **wrong) for k in range(runs)] for member in (0, 1)]
    sampler = Asynchronous(separation=B, delays=(0, 3)).of(OTHERS + 1)
    event = CentralGaussian(noise_multiplier=NOISE).event(sampler.witness(1, OTHERS + 1), 1)
    assert isinstance(event.release, Separated)
    scores = [np.array([score for score, _ in side]) for side in played]
    claims = list(claimed_points(event, TICKS, 1e-3))
    most = max(often for side in played for _, often in side)
    return judge(*scores, 1e-3, 0.95, claims), most, claims


@pytest.mark.slow
def test_arrivals_that_an_adversary_chooses_reveal_no_more_than_is_charged():
    """The target takes part as often as the separation allows, and the ε holds."""
    seen, most, claims = verdict()
    assert most == -(-TICKS // B)
    assert seen.p_value > 1e-6
    assert seen.epsilon_lower <= {delta: epsilon for epsilon, delta in claims}[1e-3]
    assert seen.epsilon_lower > 0.5  # the audit sees something


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"every": 1}, {"noise": NOISE / 2}])
def test_a_broken_separation_or_half_of_the_noise_is_refuted(wrong):
    seen, _, _ = verdict(**wrong)
    assert seen.p_value < 1e-6
