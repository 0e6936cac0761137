"""A test of a mechanism as configured, without training: does what it releases keep its claim?

Thousands of releases on neighbouring populations (`privfed.auditing.neighbours`) are told apart as well as a
linear rule can, fitted to one half of them, and the other half is held against every point of the
claimed privacy profile (`accounting.two_sample`). Beside that, the noise of releases on clients
that send nothing is held against the deviation that was charged: an accountant that knows a loose
bound only would not miss a fifth of the noise.

What is tested: sampler, rule with all its passes, secure sum (its arithmetic, no cryptography),
clip, noise and divisor, on updates of 16 numbers. Where participation is public, all who are there
take part: as few as noise is guaranteed for. What is not: local training, and clients' states.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import chdtr

from accounting.errors import AccountingError
from accounting.events import ADD_REMOVE, CHANGE, Event
from accounting.guarantee import guarantee
from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement, noise_of
from accounting.two_sample import REFUTED_BELOW, Claim, Verdict, judge
from defenses.mean import Mean
from privfed.auditing.neighbours import AIMED, LENGTH, Numbers, Present, Scene, Stage
from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.errors import Refused
from privfed.plan.plan import Plan, plan
from privfed.round.algorithm import Algorithm
from privfed.streams import Streams

_DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_ONE, _SPREAD = (1.0, 0.0, 0.0, 0.0), (1.0, -1.0, 1.0, -1.0)
_WEAK = 0.5
"""The noise multiplier at which what a client may do, and may not, are told apart best."""
_SECONDS, _FEWEST = 60.0, 400


@dataclass(frozen=True)
class Tested:
    """One scene: what was claimed for its rounds at `verdict.delta`, and what releases say."""

    scene: str
    rounds: int
    epsilon: float
    verdict: Verdict


@dataclass(frozen=True)
class MechanismAudit:
    """`noise` is the deviation that was measured, over the one that was charged; its p-value.

    `p_value` is the smallest of all tests, times their number. `releases` were made for each
    neighbour and scene.
    """

    tested: tuple[Tested, ...]
    noise: float
    noise_p_value: float
    confidence: float
    releases: int
    event: Event

    @property
    def p_value(self) -> float:
        smallest = min([self.noise_p_value, *(one.verdict.p_value for one in self.tested)])
        return min(1.0, smallest * (len(self.tested) + 1))

    @property
    def refuted(self) -> bool:
        return self.p_value < REFUTED_BELOW

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed audit --mechanism --json` prints."""
        return {
            "refuted": self.refuted,
            "p_value": self.p_value,
            "confidence": self.confidence,
            "releases": self.releases,
            "relation": self.event.relation,
            "sampler": self.event.sampler,
            "noise": {"measured_over_charged": self.noise, "p_value": self.noise_p_value},
            "scenes": [
                {
                    "scene": one.scene,
                    "rounds": one.rounds,
                    "epsilon": one.epsilon,
                    "delta": one.verdict.delta,
                    "epsilon_lower_bound": one.verdict.epsilon_lower,
                    "p_value": one.verdict.p_value,
                    "against": dict(zip(("epsilon", "delta"), one.verdict.claim, strict=True)),
                }
                for one in self.tested
            ],
        }


def audit_mechanism(config: Config, releases: int | None = None) -> MechanismAudit:
    """Test the mechanism that `config` runs. Raises `Refused` where it claims nothing.

    `releases` for each neighbour and scene: 10,000, or as many as a minute or two allows.
    """
    planned = _planned(config)
    torch.set_num_threads(config.run.threads)
    if guarantee({planned.event: 1}, 0.5).epsilon == math.inf:
        raise Refused(
            "privacy: this configuration claims no finite epsilon, so there is nothing to test; "
            "set privacy.mechanism, and privacy.epsilon or privacy.noise_multiplier above 0"
        )
    algorithm, scenes = _cast(planned)
    many = releases or _affordable(algorithm, scenes)
    return examine(algorithm, scenes, many, config.privacy.delta, config.audit.confidence)


def examine(
    algorithm: Algorithm,
    scenes: list[Scene],
    releases: int,
    delta: float,
    confidence: float,
    seed: int | None = None,
) -> MechanismAudit:
    """Play `scenes` that often for either neighbour, and hold them against what they are charged.

    A `seed` makes all of it repeatable.
    """
    tested, noise = [], (math.nan, 1.0)
    for number, scene in enumerate(scenes):
        played = at_noise(algorithm, scene)
        event = played.event(1)
        stage = Stage(played, event.relation)
        sides = [
            np.stack(
                [
                    stage.play(scene, member, streams)
                    for streams in _streams(seed, 2 * number + member, releases)
                ]
            )
            for member in (False, True)
        ]
        if number == 0:
            noise = _scale(sides[0][:, 0], played, event)
        zero, one = _told_apart(*(_flat(side[:, :, stage.aimed(scene)]) for side in sides))
        claims = list(_claims(event, scene.rounds, delta))
        own = guarantee({event: scene.rounds}, delta).epsilon
        verdict = judge(zero, one, delta, confidence, claims)
        tested.append(Tested(scene.name, scene.rounds, own, verdict))
    return MechanismAudit(tuple(tested), *noise, confidence, releases, algorithm.event(1))


def at_noise(algorithm: Algorithm, scene: Scene) -> Algorithm:
    """With the noise that `scene` is played at: where that is strong, a test sees little."""
    noise = noise_of(algorithm.event(1).release)
    if not scene.weak or noise is None or noise.noise_multiplier <= _WEAK:
        return algorithm
    factor = _WEAK / noise.noise_multiplier
    configured = float(getattr(algorithm.mechanism, "noise_multiplier", 0.0))
    return replace(algorithm, mechanism=algorithm.mechanism.at(configured * factor))


def _planned(config: Config) -> Plan:
    """With a secure sum's arithmetic alone, for updates of a few numbers."""
    if config.secured:
        config = overridden(config, ["secure.simulate=arithmetic"])
    return plan(config, length=LENGTH)


def _cast(planned: Plan) -> tuple[Algorithm, list[Scene]]:
    """The algorithm to play, and who else has to be there."""
    config, event = planned.config, planned.event
    algorithm = planned.algorithm()
    if planned.mechanism.trust == "client":  # messages are seen; what is made of them is not more
        algorithm = replace(algorithm, rule=Mean(), byzantine=0)
    secret = PoissonSampled | TruncatedPoisson | WithoutReplacement
    separation = algorithm.sampler.witness(0, config.data.clients).separation
    everybody = config.data.clients - 1
    if isinstance(event.release, secret):
        alone = not config.secured and event.relation == ADD_REMOVE
        some = 0 if alone else everybody
        return algorithm, [
            Scene("as configured", 1, _ONE, some, weak=False),
            Scene("one round, one number", 1, _ONE, some),
            Scene("two rounds, several numbers", 2, _SPREAD, some),
            Scene("one round, against all others", 1, _ONE, everybody, against=True),
        ]
    algorithm = replace(
        algorithm, sampler=Present(algorithm.sampler, algorithm.sampler.size), dropout=0.0
    )
    some = everybody if config.secured else 0
    if config.shared_noise and config.row_hiding and planned.cost.limits.minimum:
        # Who, with the target, make up the noise.
        some = config.row_hiding.begun(planned.cost.limits) - 1
    return algorithm, [
        Scene("as configured", 1, _ONE, some, weak=False),
        Scene(f"{separation + 1} rounds, several numbers", separation + 1, _SPREAD, some),
    ]


def _affordable(algorithm: Algorithm, scenes: list[Scene]) -> int:
    """Releases per neighbour and scene that take about a minute in all; at most 10,000."""
    began = time.perf_counter()
    examine(algorithm, scenes, 20, 0.1, 0.95)
    each = (time.perf_counter() - began) / 20
    return int(min(max(_SECONDS / each, _FEWEST), 10_000))


def _streams(seed: int | None, side: int, count: int) -> Iterator[Streams]:
    """Randomness of `count` plays: no two share any."""
    for number in range(count):
        if seed is None:
            yield Streams(0, key=os.urandom(32))
        else:
            yield Streams((seed * 100 + side) * 1_000_000 + number, simulated=True)


def _claims(event: Event, rounds: int, delta: float) -> Iterator[Claim]:
    """Points of the claimed profile of so many rounds."""
    for at in sorted({*_DELTAS, delta}):
        try:
            epsilon = guarantee({event: rounds}, at).epsilon
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at


def _flat(seen: Numbers) -> Numbers:
    """`[n, rounds, k]` as `[n, rounds * k + 1]`: of an aborted round that alone is seen."""
    aborted = np.isnan(seen).any(axis=(1, 2))
    flat = np.nan_to_num(seen).reshape(len(seen), -1)
    return np.column_stack([flat, aborted])


def _told_apart(zero: Numbers, one: Numbers) -> tuple[Numbers, Numbers]:
    """Scores of releases `[n, k]`, along Fisher's linear discriminant of the first half of them.

    In the span of what varies: a combination that varies (nearly) not at all, and differs, tells
    most.
    """
    half0, half1 = zero[: len(zero) // 2], one[: len(one) // 2]
    spread = np.concatenate([half0, half1]).std(0)
    scale = np.where(spread > 0, spread, 1.0)
    within = (np.cov((half0 / scale).T) + np.cov((half1 / scale).T)) / 2
    values, vectors = np.linalg.eigh(within)
    apart = vectors.T @ ((half1.mean(0) - half0.mean(0)) / scale)
    along = vectors @ (apart / np.maximum(values, 1e-9)) / scale
    return zero @ along, one @ along


def _scale(seen: Numbers, algorithm: Algorithm, event: Event) -> tuple[float, float]:
    """Of releases `[n, k]` on clients that send nothing: noise over what was charged, and p.

    In clips, one exchange's noise deviates by at least z times what one client can change, times
    the root of the exchanges, as together they are charged as one. p is the probability of squares
    so small, of Gaussians: chi-squared, with a degree less for the mean of every number.
    """
    noise = noise_of(event.release)
    if noise is None:
        raise ValueError("an event without noise claims nothing")
    charged = noise.noise_multiplier * CHANGE[event.relation] * math.sqrt(algorithm.exchanges)
    idle = seen[~np.isnan(seen).any(1), AIMED:LENGTH]
    if len(idle) < 2:
        return math.nan, 1.0
    squares = float((((idle - idle.mean(0)) / charged) ** 2).sum())
    freedom = (len(idle) - 1) * idle.shape[1]
    return math.sqrt(squares / freedom), float(chdtr(freedom, squares))
