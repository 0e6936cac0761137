"""A test of a mechanism as configured, without training: does what it releases keep its claim?

Thousands of releases on neighbouring populations (`privfed.auditing.neighbours`) are told apart as
well as a linear rule can, fitted to one half of them, and the other half is held against every
point of the claimed privacy profile (`accounting.empirical.two_sample`). Beside that, the noise of
releases on clients that send nothing is held against the deviation that was charged: an accountant
that knows a loose bound only would not miss a fifth of the noise.

What is tested: sampler, rule with all its passes, secure sum (its arithmetic, no cryptography),
clip, noise and divisor, on updates of 16 numbers. Where participation is public, all who are there
take part: as few as noise is guaranteed for. Where sites make up the noise, the audit plays the
server, the network and colluding sites: as many drop out or collude as may, and these sites' noise
is known. What is not tested: local training, and clients' states.
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
from numpy.typing import NDArray
from scipy.special import chdtr

from accounting.bounds.toeplitz_sensitivity import column_norm
from accounting.documents import encoded
from accounting.empirical.claimed_releases import claimed_points
from accounting.empirical.release_scores import linear_scores
from accounting.empirical.two_sample import Verdict, judge
from accounting.empirical.verdicts import Verdicts
from accounting.events import CHANGE, Event
from accounting.guarantee import guarantee
from accounting.over_rounds import BufferedToeplitz, RandomAllocation
from accounting.releases import Repeated
from privfed.auditing.neighbours import Neighbours
from privfed.auditing.scenarios import (
    AIMED,
    LENGTH,
    Scenario,
    at_noise_of,
    plan_of_mechanism,
    scenarios_of,
)
from privfed.auditing.slot_evidence import SlotEvidence
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm

Numbers = NDArray[np.float64]


def _column_norm(event: Event, algorithm: Algorithm) -> float:
    """How far one row of a client moves C x, where noise is correlated over rounds by C; else 1."""
    if isinstance(event.release, BufferedToeplitz):
        return column_norm(event.release.decays, event.release.outputs)
    return float(np.linalg.norm(algorithm.mechanism.coefficients()))


def measured_noise(released: Numbers, algorithm: Algorithm, event: Event) -> tuple[float, float]:
    """The noise of releases `[n, k]` over what was charged, and a p-value that it is no less.

    The clients send nothing. In clips, one exchange's noise deviates by at least z times what one
    client can change, times the root of the exchanges, as together they are charged as one; of a
    client's sites charged apart, the noises add up. Where noise is correlated over rounds, the
    releases are those of the first one. p is the probability of squares so small, of Gaussians:
    chi-squared, with a degree less for the mean of every number. Raises `ValueError` for an event
    without noise.
    """
    noise = event.noise
    if noise is None:
        raise ValueError("an event without noise claims nothing")
    parts = event.release.count if isinstance(event.release, Repeated) else 1
    adding_up = math.sqrt(algorithm.exchanges * parts)
    charged = noise.noise_multiplier * CHANGE[event.relation] * adding_up
    charged *= _column_norm(event, algorithm)
    idle = released[~np.isnan(released).any(1), AIMED:LENGTH]
    if len(idle) < 2:
        return math.nan, 1.0
    squares = float((((idle - idle.mean(0)) / charged) ** 2).sum())
    freedom = (len(idle) - 1) * idle.shape[1]
    return math.sqrt(squares / freedom), float(chdtr(freedom, squares))


_SECONDS, _FEWEST, _MOST = 60.0, 400, 10_000
"""How long an audit may take, about, and how many releases it makes of each neighbour."""


@dataclass(frozen=True)
class ScenarioVerdict:
    """What was claimed for a scenario's rounds at `verdict.delta`, and what releases say."""

    scenario: str
    rounds: int
    epsilon: float
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """The scenario's object in `privfed audit --mechanism --json`."""
        return {
            "scene": self.scenario,
            "rounds": self.rounds,
            "epsilon": self.epsilon,
            "delta": self.verdict.delta,
            "epsilon_lower_bound": self.verdict.epsilon_lower,
            "p_value": self.verdict.p_value,
            "against": dict(zip(("epsilon", "delta"), self.verdict.claim, strict=True)),
        }


@dataclass(frozen=True)
class MechanismAudit(Verdicts):
    """What testing a mechanism in several scenarios says about its claim.

    `noise` is the deviation that was measured, over the one that was charged; `noise_p_value` that
    it is no less. `releases` were made for each neighbour and scenario, and `event` is what a round
    is charged.
    """

    tested: tuple[ScenarioVerdict, ...]
    noise: float
    noise_p_value: float
    confidence: float
    releases: int
    event: Event
    evaluation: MechanismAudit | None = None
    """The same of rounds in which clients evaluate, where there are any."""

    @property
    def p_value(self) -> float:
        """The smallest of all tests' p-values, times their number."""
        smallest = min([self.noise_p_value, *(test.verdict.p_value for test in self.tested)])
        alone = min(1.0, smallest * (len(self.tested) + 1))
        return min(1.0, 2 * min(alone, self.evaluation.p_value)) if self.evaluation else alone

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed audit --mechanism --json` prints."""
        return {
            "refuted": self.refuted,
            "doubted": self.doubted,
            "p_value": self.p_value,
            "confidence": self.confidence,
            "releases": self.releases,
            "relation": self.event.relation,
            "sampler": self.event.sampler,
            "noise": {"measured_over_charged": self.noise, "p_value": self.noise_p_value},
            "scenes": encoded(self.tested),
            **({"evaluation": self.evaluation.to_json()} if self.evaluation else {}),
        }


def audit_mechanism(config: Config, releases: int | None = None) -> MechanismAudit:
    """Test the mechanism that `config` runs. Raises `Refused` where it claims nothing.

    `releases` for each neighbour and scenario: 10,000, or as many as a minute or two allows.
    """
    planned = plan_of_mechanism(config)
    torch.set_num_threads(config.run.threads)
    if guarantee({planned.event: 1}, 0.5).epsilon == math.inf:
        raise Refused(
            "privacy: this configuration claims no finite epsilon, so there is nothing to test; "
            "set privacy.mechanism, and privacy.epsilon or privacy.noise_multiplier above 0"
        )
    audited = _examined(planned, releases)
    if planned.evaluation is None:
        return audited
    return replace(audited, evaluation=_examined(planned.evaluation, releases))


def _examined(planned: Plan, releases: int | None) -> MechanismAudit:
    """The test of rounds as they are `planned`."""
    (algorithm, scenarios), config = scenarios_of(planned), planned.config
    count = releases or _affordable(algorithm, scenarios)
    return examine(algorithm, scenarios, count, config.privacy.delta, config.audit.confidence)


def examine(
    algorithm: Algorithm,
    scenarios: list[Scenario],
    releases: int,
    delta: float,
    confidence: float,
    seed: int | None = None,
) -> MechanismAudit:
    """Run `scenarios` that often for either neighbour, and hold them against what they are charged.

    The first scenario's releases without the target also measure the noise. A `seed` makes all of
    it repeatable.
    """
    tested, noise = [], (math.nan, 1.0)
    for number, scenario in enumerate(scenarios):
        weakened = at_noise_of(scenario, algorithm)
        event = weakened.event(1)
        neighbours = Neighbours(weakened, event.relation)
        without, with_target = (
            np.stack(
                [
                    neighbours.observe(scenario, member, streams)
                    for streams in _streams(seed, 2 * number + member, releases)
                ]
            )
            for member in (False, True)
        )
        if number == 0:
            noise = measured_noise(without[:, 0], weakened, event)
        scores0, scores1 = linear_scores(
            *(evidence(each, scenario, neighbours, event) for each in (without, with_target))
        )
        claims = list(claimed_points(event, scenario.rounds, delta))
        epsilon = guarantee({event: scenario.rounds}, delta).epsilon
        verdict = judge(scores0, scores1, delta, confidence, claims)
        tested.append(ScenarioVerdict(scenario.name, scenario.rounds, epsilon, verdict))
    return MechanismAudit(tuple(tested), *noise, confidence, releases, algorithm.event(1))


def evidence(
    observed: NDArray[np.float64], scenario: Scenario, neighbours: Neighbours, event: Event
) -> NDArray[np.float64]:
    """What of releases `[n, rounds, k]` may tell of the target: all that it moves `[n, rounds, m]`.

    Of whole epochs, what they say together of its slots `[n, 1, 4]`.
    """
    if not scenario.steady or not isinstance(event.release, RandomAllocation):
        return observed[:, :, neighbours.moved(scenario)]
    mechanism = neighbours.algorithm.mechanism
    deviation = mechanism.noise_on_update(1) * neighbours.algorithm.exchanges**0.5
    known = np.nan_to_num(observed[:, :, :LENGTH])
    along, aside = (known @ side.double().numpy() for side in (scenario.along(), scenario.across()))
    return SlotEvidence(event.release, deviation, mechanism.coefficients()).of(along, aside)


def _affordable(algorithm: Algorithm, scenarios: list[Scenario]) -> int:
    """Releases per neighbour and scenario that take about a minute in all."""
    began = time.perf_counter()
    examine(algorithm, scenarios, 20, 0.1, 0.95)
    each = (time.perf_counter() - began) / 20
    return int(min(max(_SECONDS / each, _FEWEST), _MOST))


def _streams(seed: int | None, side: int, count: int) -> Iterator[Streams]:
    """Randomness of `count` repetitions: no two share any."""
    for number in range(count):
        if seed is None:
            yield Streams(0, key=os.urandom(32))
        else:
            yield Streams((seed * 100 + side) * 1_000_000 + number, simulated=True)
