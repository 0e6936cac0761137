"""Adaptive clipping: the quantile it finds, the split of its noise, and what is released."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Rounds, assert_normal, set_fields
from lanes import every_case
from small import model, same_run, small, trained

from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.plan.plan import plan
from privfed.privacy.clipping import Split, clip_rows_and_report, next_clip
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.run.train import resume
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import Poisson

ON = "privacy.adaptive_clip=true"


def adaptive(clip=0.3, noise=1.0, count=2.0, **changes):
    return CentralGaussian(
        clip=clip, noise_multiplier=noise, count_noise=count, adaptive_clip=True, **changes
    )


@every_case("noise, count", [(1.0, 5.0), (3.0, 2.0), (0.5, 0.3), (10.0, 5.1)])
def test_the_split_spends_exactly_the_multiplier(noise, count):
    split = Split.of(noise, count)
    assert split.update**-2 + (2 * split.count) ** -2 == pytest.approx(noise**-2, rel=1e-12)
    for clip in (0.01, 1.0, 7.0):
        std = noise * split.bound(clip)
        assert std == pytest.approx(split.update * clip, rel=1e-9), "on the update"
        assert std / split.weight(clip) == pytest.approx(count, rel=1e-9), "on the count"
    assert Split.of(0.0, count).update == 0.0


def test_a_count_that_leaves_nothing_is_refused():
    with pytest.raises(Refused, match="has to be above half of the noise multiplier"):
        Split.of(4.0, 2.0)
    with pytest.raises(Refused, match="count_noise"):
        plan(small(ON, "privacy.noise_multiplier=2.0", "privacy.count_noise=0.9"))
    with pytest.raises(Refused, match="one exchange"):
        plan(small(ON, "privacy.count_noise=9", "client.objective=feddane"))


def test_a_row_tells_of_its_unclipped_norm_and_stays_within_the_joint_bound():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.nan, 0.0], [0.0, 0.0], [1e31, 0.0]])
    found = clip_rows_and_report(rows, 1.0, 0.8)
    assert found.rows[:, 2].tolist() == pytest.approx([-0.4, 0.4, -0.4, 0.4, -0.4])
    assert found.bound == pytest.approx(math.hypot(1.0, 0.4))
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(500, 30, generator=generator) * torch.logspace(-3, 3, 500)[:, None]
    for clip, weight in ((0.1, 5.0), (1.0, 0.01), (3.3, 1.7)):
        told = clip_rows_and_report(many, clip, weight)
        assert (torch.linalg.vector_norm(told.rows, dim=1, dtype=torch.float64) <= told.bound).all()
        norms = torch.linalg.vector_norm(many, dim=1, dtype=torch.float64)
        assert ((told.rows[:, -1] > 0) == (norms <= clip)).all()


def test_its_event_is_that_of_the_whole_multiplier():
    witness = Poisson(size=10).witness(0, 100)
    event = adaptive(noise=1.5).event(witness, 1)
    assert event.release == PoissonSampled(0.1, Gaussian(1.5))
    assert plan(small(ON, "privacy.count_noise=9")).event == plan(small()).event


@every_case("start", [0.1, 10.0])
@every_case("quantile", [0.3, 0.8])
def test_it_finds_the_quantile_from_ten_times_too_low_and_too_high(start, quantile):
    """Norms uniform on [0, 2]: the quantile g lies at 2 g. Cohorts of 200, their count noised."""
    mechanism = adaptive(start * 2 * quantile, 1.0, 10.0, clip_quantile=quantile)
    state, rng = mechanism.init(), np.random.default_rng(3)

    from privfed.privacy.mechanism import BoundedSum

    clips = []
    for _ in range(150):
        rows = torch.zeros(200, 4, dtype=torch.float64)
        rows[:, 0] = torch.from_numpy(rng.uniform(0, 2, 200))
        bounded = mechanism.bound(rows, None, None, state)
        total = BoundedSum(bounded.rows.sum(0), bounded.bound, 200)
        released, state = mechanism.release(total, 200.0, Keys(None), state)
        assert released.shape == (4,)
        clips.append(float(state["clip"]))
    assert np.mean(clips[-50:]) == pytest.approx(2 * quantile, rel=0.08)


def test_the_clip_moves_as_in_the_paper():
    assert next_clip(2.0, 0.9, 0.5, 0.2) == pytest.approx(2.0 * math.exp(-0.2 * 0.4))
    assert next_clip(2.0, 0.1, 0.5, 0.2) > 2.0
    assert next_clip(1e-6, 1.0, 0.0, 2.0) == 1e-6


def test_noise_follows_the_clip_that_was_applied_and_a_wrong_scale_is_rejected(tmp_path):
    """Nobody holds an example, so that what is released is the noise: z_delta C / divisor."""
    rounds = Rounds(tmp_path, [0] * 40, size=8, mechanism=adaptive(0.3, 1.0, 0.6, clip_rate=1.0))
    set_fields(rounds.state, mechanism=rounds.algorithm.mechanism.init())
    seen, clips = [], []
    from privfed.round.round import run_round

    state = rounds.state
    for round in range(1, 61):
        clips.append(float(state.mechanism["clip"]))
        state = run_round(round, rounds.algorithm, state, rounds.world)
        seen.append(rounds.store.releases[round][0].numpy().astype(np.float64))
    assert max(clips) / min(clips) > 3, "the clip hardly moved"
    update = Split.of(1.0, 0.6).update
    unit = np.stack([noise * 8 / (update * clip) for noise, clip in zip(seen, clips, strict=True)])
    assert_normal(unit, 1.0)
    for wrong in (0.5, 1 / update):  # halved; and as if the count had cost nothing
        with pytest.raises(AssertionError, match=r"not N|wrong scale"):
            assert_normal(unit * wrong, 1.0)


@pytest.mark.parametrize("clip", [0.05, 0.3])
def test_one_client_more_moves_the_whole_release_by_at_most_the_joint_bound(tmp_path, clip):
    sizes = [3, 9, 4, 6]
    from privfed.client.exchange import Exchange

    mechanism = adaptive(clip, 1.0, 2.0)
    rounds = Rounds(tmp_path, sizes, size=4, lr=50.0, mechanism=mechanism)
    algorithm, params = rounds.algorithm, rounds.state.params
    exchange = Exchange("train", {"params": params}, algorithm.objective.layout(len(params)))
    drawn = algorithm.sampler.sample(1, 4, Population.of(np.ones(4)), rounds.world.streams)

    def summed(clients):
        cohort = replace(drawn, clients=np.array(clients))
        return rounds.summed(exchange, cohort)

    whole = summed([0, 1, 2, 3])
    assert whole.bound == pytest.approx(Split.of(1.0, 2.0).bound(clip))
    assert len(whole.total) == params.numel() + 1
    moved = [
        float((whole.total - summed([c for c in range(4) if c != gone]).total).norm())
        for gone in range(4)
    ]
    assert max(moved) <= whole.bound * (1 + 1e-9)
    assert max(moved) > 0.99 * whole.bound  # a client far beyond the clip attains it


def test_the_clip_is_checkpointed_and_a_resume_goes_on_with_it(tmp_path):
    settings = ["run.randomness=seeded", ON, "privacy.count_noise=3"]
    trained(tmp_path / "whole", *settings)
    trained(tmp_path / "part", *settings, "run.rounds=4")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=7))
    same_run(tmp_path / "whole", tmp_path / "part")
    assert float(model(tmp_path / "whole")["mechanism/clip"]) != 0.4
    lines = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    clips = [json.loads(line)["clip"] for line in lines]
    assert clips[-1] == float(model(tmp_path / "whole")["mechanism/clip"])
    assert len(set(clips)) == len(clips)
    once = trained(tmp_path / "a", *settings, "run.rounds=1")
    assert float(model(once.path)["mechanism/clip"]) != float(
        model(tmp_path / "whole")["mechanism/clip"]
    )
