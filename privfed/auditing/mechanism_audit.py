"""A test of a mechanism as configured, without training: do its releases satisfy its claim?

Thousands of releases on neighbouring populations (`privfed.auditing.neighbours`) are distinguished
by a linear rule fitted to one half of the releases. The other half is tested against every point of
the claimed privacy profile (`accounting.empirical.two_sample`). In addition, the noise of releases
on clients that send nothing is compared with the standard deviation that was charged. If the
accountant's bound is loose, the test of the profile alone does not detect that a fifth of the noise
is missing.

The test covers the sampler, the rule with all its passes, the secure sum (its arithmetic, no
cryptography), clipping, noise and divisor, on updates of 16 numbers. If participation is public,
all available clients take part: the smallest number for which the noise is guaranteed. If sites add
the noise, the audit takes the view of the server, the network and colluding sites. The largest
tolerated number of sites drops out or colludes, and the colluding sites' noise is known. The test
does not cover local training and clients' states.
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
    plan_of_mechanism,
    scenarios_of,
    with_scenario_noise,
)
from privfed.auditing.slot_evidence import SlotEvidence
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm

Numbers = NDArray[np.float64]


def _column_norm(event: Event, algorithm: Algorithm) -> float:
    """Returns the norm by which a unit row changes C x; noise in the releases is C^-1 z.

    It is 1 if noise is independent over rounds.
    """
    if isinstance(event.release, BufferedToeplitz):
        return column_norm(event.release.decays, event.release.outputs)
    return float(np.linalg.norm(algorithm.mechanism.coefficients()))


def measured_noise(released: Numbers, algorithm: Algorithm, event: Event) -> tuple[float, float]:
    """Returns the ratio of measured to charged noise, and a p-value of the ratio being 1 or more.

    The clients send nothing. In clipping norms, the noise of one exchange has a standard deviation
    of at least the noise multiplier times the change by one client, times the root of the number of
    exchanges. The root appears because the exchanges are charged together as one event. If a
    client's sites are charged separately, their noises add up. If noise is correlated over rounds,
    the releases are those of the first round. The p-value is the probability that Gaussian noise
    has such a small sum of squares: chi-squared, with one degree of freedom less for each number's
    estimated mean. With fewer than two releases that did not abort, the result is NaN and 1.

    Args:
      released: releases, shape `[n, k]`.
      algorithm: the tested algorithm.
      event: the event charged per round.

    Raises:
      ValueError: if the event has no noise.
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
"""Approximate time limit of an audit in seconds, and limits on releases per neighbour."""


@dataclass(frozen=True)
class ScenarioVerdict:
    """The claimed `epsilon` of all `rounds` of the named scenario, and the verdict on releases."""

    scenario: str
    rounds: int
    epsilon: float
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Returns the scenario's object in `privfed audit --mechanism --json`."""
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
    """The result of testing a mechanism's claim in several scenarios.

    Attributes:
      tested: the verdict of each scenario.
      noise: ratio of the measured to the charged standard deviation of the noise.
      noise_p_value: p-value of the hypothesis that the noise is no less than charged.
      confidence: confidence of the lower bounds on epsilon.
      releases: number of releases per neighbour and scenario.
      event: the event charged per round.
    """

    tested: tuple[ScenarioVerdict, ...]
    noise: float
    noise_p_value: float
    confidence: float
    releases: int
    event: Event
    evaluation: MechanismAudit | None = None
    """The result of the same tests of evaluation rounds; None if there are none."""

    @property
    def p_value(self) -> float:
        """The smallest p-value of all tests, corrected for their number (Bonferroni)."""
        smallest = min([self.noise_p_value, *(test.verdict.p_value for test in self.tested)])
        alone = min(1.0, smallest * (len(self.tested) + 1))
        return min(1.0, 2 * min(alone, self.evaluation.p_value)) if self.evaluation else alone

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed audit --mechanism --json` prints."""
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
    """Returns the result of testing the mechanism that `config` runs.

    Args:
      config: the configuration of the run.
      releases: number of releases per neighbour and scenario; None: as many as take a minute or
        two, from 400 to 10,000.

    Raises:
      Refused: if the configuration claims no finite epsilon, or its plan is refused.
    """
    planned = plan_of_mechanism(config)
    torch.set_num_threads(config.run.threads)
    if guarantee({planned.event: 1}, 0.5).epsilon == math.inf:
        raise Refused(
            "this configuration claims no finite epsilon, so there is nothing to test; set "
            "privacy.mechanism, and privacy.epsilon or privacy.noise_multiplier above 0"
        )
    audited = _examined(planned, releases)
    if planned.evaluation is None:
        return audited
    return replace(audited, evaluation=_examined(planned.evaluation, releases))


def _examined(planned: Plan, releases: int | None) -> MechanismAudit:
    """Returns the test of `planned`; `releases` is that of `audit_mechanism`."""
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
    """Returns the result of testing releases of each scenario's neighbours against the charges.

    The first scenario's releases without the target also measure the noise.

    Args:
      algorithm: the tested algorithm.
      scenarios: the scenarios, with the one as configured first.
      releases: number of releases per neighbour and scenario.
      delta: delta of the claim.
      confidence: confidence of the lower bounds on epsilon.
      seed: makes the test repeatable; None: system randomness.
    """
    tested, noise = [], (math.nan, 1.0)
    for number, scenario in enumerate(scenarios):
        weakened = with_scenario_noise(scenario, algorithm)
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
    """Returns the numbers of each release that the target client may affect.

    Args:
      observed: releases, shape `[n, rounds, k]`.
      scenario: the scenario.
      neighbours: the tested pair of populations.
      event: the event charged per round.

    Returns:
      Shape `[n, rounds, m]`; for whole epochs of random allocation, statistics of the slots, `[n,
      1, 4]`.
    """
    if not scenario.steady or not isinstance(event.release, RandomAllocation):
        return observed[:, :, neighbours.moved(scenario)]
    mechanism = neighbours.algorithm.mechanism
    std = mechanism.noise_on_update(1) * neighbours.algorithm.exchanges**0.5
    known = np.nan_to_num(observed[:, :, :LENGTH])
    along, aside = (known @ side.double().numpy() for side in (scenario.along(), scenario.across()))
    return SlotEvidence(event.release, std, mechanism.coefficients()).of(along, aside)


def _affordable(algorithm: Algorithm, scenarios: list[Scenario]) -> int:
    """Returns the number of releases per neighbour and scenario that take about a minute in all."""
    began = time.perf_counter()
    examine(algorithm, scenarios, 20, 0.1, 0.95)
    each = (time.perf_counter() - began) / 20
    return int(min(max(_SECONDS / each, _FEWEST), _MOST))


def _streams(seed: int | None, side: int, count: int) -> Iterator[Streams]:
    """Yields independent randomness for `count` repetitions; reproducible for a `seed`."""
    for number in range(count):
        if seed is None:
            yield Streams(0, key=os.urandom(32))
        else:
            yield Streams((seed * 100 + side) * 1_000_000 + number, simulated=True)
