"""Noise on each client: every message is private by itself, so any rule may follow."""

import numpy as np
import pytest
import torch
from helpers import Rounds, assert_normal
from lanes import every_case
from small import small, trained

from accounting.accountants import epsilon
from accounting.events import REPLACE_ONE, Event
from accounting.noises import Gaussian
from defenses.on_rows.median import Median
from privfed.auditing.run_audit import audit
from privfed.core.streams import Keys, Streams
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms import local_gaussian as local
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.sampling.samplers import Full

STREAMS = Streams(5, simulated=True)


def messages(rows, clip=0.3, z=1.5, keys=None):
    part = LocalGaussian(clip=clip, noise_multiplier=z)
    ids = np.arange(len(rows))
    keys = keys or STREAMS.at("noise/client/0", 1, ids)
    return part.bound(rows, None, keys, {})


def noise_has_the_charged_scale():
    rows = torch.zeros(400, 300)
    noise = messages(rows).rows.numpy()
    event = LocalGaussian(clip=0.3, noise_multiplier=1.5).event(Full().of(4).witness(1, 4), 1)
    assert_normal(noise, event.release.noise_multiplier * 2 * 0.3)


def one_client_moves_its_message_by_two_clips_at_most():
    first, second = torch.full((1, 50), 9.0), torch.full((1, 50), -9.0)
    ids = np.array([3])
    sent = [
        messages(row, keys=STREAMS.at("noise/client/0", 1, ids)).rows for row in (first, second)
    ]
    moved = float(torch.linalg.vector_norm((sent[0] - sent[1]).double()))
    assert moved <= 2 * 0.3 + 1e-5
    assert moved > 0.59


def clients_draw_apart_and_afresh():
    rows = torch.zeros(3, 40)
    ids = np.arange(3)
    for streams in (STREAMS, Streams(0)):
        drawn = [
            messages(rows, keys=streams.at("noise/client/0", round, ids)).rows for round in (1, 2)
        ]
        assert len({row.numpy().tobytes() for both in drawn for row in both}) == 6


CHECKS = [
    noise_has_the_charged_scale,
    one_client_moves_its_message_by_two_clips_at_most,
    clients_draw_apart_and_afresh,
]


@every_case("check", CHECKS)
def test_a_message_is_what_its_event_says(check):
    check()


def halved(monkeypatch):
    real = local.gaussian_on_grid
    monkeypatch.setattr(local, "gaussian_on_grid", lambda *args: 0.5 * real(*args))


def unclipped(monkeypatch):
    monkeypatch.setattr(local, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


def one_noise_for_all(monkeypatch):
    monkeypatch.setattr(Keys, "each", lambda self: (Keys(bytes(16)) for _ in self.clients))


def charged_for_one_clip(monkeypatch):
    monkeypatch.setitem(local.CHANGE, REPLACE_ONE, 1)


@every_case(
    "fault, check",
    [
        (halved, CHECKS[0]),
        (charged_for_one_clip, CHECKS[0]),
        (unclipped, CHECKS[1]),
        (one_noise_for_all, CHECKS[2]),
    ],
)
def test_a_planted_fault_is_caught(fault, check, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_a_clients_noise_does_not_depend_on_its_chunk(tmp_path):
    part = LocalGaussian(clip=0.3, noise_multiplier=1.0)
    whole = Rounds(tmp_path / "a", (3,) * 6, size=6, mechanism=part, chunk=6).released(2)
    single = Rounds(tmp_path / "b", (3,) * 6, size=6, mechanism=part, chunk=1).released(2)
    np.testing.assert_allclose(whole, single, atol=1e-5)


def test_a_rule_sees_noised_rows_only(tmp_path):
    seen = []

    class Spy(Median):
        def __call__(self, rows, byzantine):
            seen.append(rows)
            return super().__call__(rows, byzantine)

    part = LocalGaussian(clip=1e-6, noise_multiplier=1e6)  # noise of deviation 1 on nothing
    rounds = Rounds(tmp_path, (3,) * 40, size=30, mechanism=part, rule=Spy())
    rounds.run(20)
    assert_normal(torch.cat(seen).numpy(), 1.0)


@every_case("sampler, times", [("poisson", 7), ("full", 7), ("cyclic", 3)])
@every_case("rule", ["mean", "median"])
def test_every_round_in_which_a_client_may_be_drawn_is_charged(tmp_path, sampler, times, rule):
    size = "4" if sampler == "poisson" else "0"
    separation = ["cohort.separation=3"] if sampler == "cyclic" else []
    trained(
        tmp_path / "run",
        f"cohort.sampler={sampler}",
        f"cohort.size={size}",
        *separation,
        "privacy.mechanism=local_gaussian",
        f"aggregation.rule={rule}",
    )
    audited = audit(tmp_path / "run")
    one = Event(Gaussian(1.0), sampler, REPLACE_ONE)
    assert audited.guarantee.epsilon == epsilon({one: times}, 1e-3, "pld")
    assert audited.guarantee.relation == REPLACE_ONE
    assert audited.noise_multiplier == 2.0
    assert not audited.problems


def test_the_analytic_calibration_meets_its_target():
    config = small("cohort.sampler=full", "cohort.size=0", "privacy.mechanism=local_gaussian")
    made = plan(
        small(
            *[
                f"{k}={v}"
                for k, v in {
                    "cohort.sampler": "full",
                    "cohort.size": 0,
                    "privacy.mechanism": "local_gaussian",
                    "privacy.epsilon": 3.0,
                }.items()
            ]
        )
    )
    assert made.guarantee.epsilon == pytest.approx(3.0, rel=1e-4)
    assert made.guarantee.epsilon <= 3.0
    assert config.mechanism.trust == "client"
