"""Forecasts a run's bytes, time and signal-to-noise ratio from public facts only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from defenses.types import SumRule
from privfed.client.compression.compressed import ShapesByName
from privfed.core.vector import Shapes
from privfed.plan.plan import Plan
from privfed.round.algorithm import Algorithm
from privfed.run.evaluation.charged_measures import expected_widths
from privfed.run.input_canaries import CanaryUpdates, canary_updates
from privfed.run.setup import Setup

_NUMBER = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run: means over sampled cohorts, for the declared number of clients.

    Attributes:
      parameters: Number of shared parameters of the model.
      cohort: Expected number of clients in a cohort.
      empty: Probability that a round's cohort is empty.
      down: Bytes sent to all `parties` per round.
      up: Bytes sent by all `parties` per round.
      remembered: Bytes that a client keeps between rounds.
      signal: Upper bound on the norm of the clients' average (all at the clipping norm, in the same
        direction); None without privacy.
      noise: Expected norm of the noise on that average; None without privacy.
      parties: Number of parties of a sum: the cohort, or all sites.
      seconds: Time for all rounds and evaluations, and for crafting canaries' examples.
      examples: Estimated examples per client, from public data; two batches if unknown.
      guessed: Whether `examples` is the default of two batches.
      encoded: Ratio of the norm bound of an encoded row to that of the row; 1 without a secure sum.
      aborts: Upper bound on the probability that a round aborts.
      step: Grid spacing of a secure sum's integers; None without a secure sum.
    """

    parameters: int
    cohort: float
    empty: float
    down: float
    up: float
    remembered: int
    signal: float | None
    noise: float | None
    parties: float
    seconds: float
    examples: float
    guessed: bool
    encoded: float
    aborts: float
    step: float | None
    half_widths: Mapping[str, float] = field(default_factory=dict)
    """Expected half-widths of the intervals of the clients' measures, from the noise."""
    message: int = 0
    """Number of values in one row of a client, without the rule's terms and the weight."""
    shortening: float = 1.0
    """Approximate ratio of a message's norm to the norm of the update it encodes."""
    unstacked: str | None = None
    """Reason for training clients one after the other, if speed is not the reason."""
    precision: str = ""
    """Training precision and the reason for it, if that is to be reported."""
    clipped: str = ""
    """A warning that public test examples exceed their declared bounds, or ""."""
    averaged: int = 0
    """Number of `parameters` that are running statistics of batch normalisations."""
    local: int = 0
    """Number of local parameters of each client's model, in addition to `parameters`."""
    canaries: CanaryUpdates | None = None
    """Statistics of the first updates of canaries that train; None without such canaries."""
    without_adapters: int | None = None
    """Number of parameters of the model without adapters; None if no adapters are trained."""

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        return {**facts, "kept": facts.pop("remembered")}


@dataclass(frozen=True)
class RoundForecast:
    """Message sizes and noise of one round: the figures of `Forecast` with the same names."""

    cohort: float
    down: float
    up: float
    signal: float | None
    noise: float | None
    encoded: float
    parties: float


def round_exchange(
    plan: Plan, parameters: int, shapes: ShapesByName | None = None
) -> RoundForecast:
    """Returns the figures of a forecast that need neither population nor timing.

    A report computes them from a run directory, whose population may be elsewhere.

    Args:
      plan: the plan of the run.
      parameters: number of parameters of the model.
      shapes: shapes of the parameters by name; None treats them as one vector.
    """
    config, algorithm = plan.config, plan.algorithm(shapes=shapes)
    layout = algorithm.objective.layout(parameters)
    cohort = float(algorithm.sampler.size)
    parties = float(algorithm.sites or cohort)
    encoded = algorithm.encoding_factor(parameters)
    broadcasts = algorithm.exchanges - config.compression.exchanges
    broadcasts += algorithm.objective.broadcasts
    broadcasts += isinstance(algorithm.rule, SumRule) and algorithm.rule.remembers  # the center
    received = parameters * broadcasts + config.compression.received(_shapes(parameters, shapes))
    noise_share = algorithm.noise_share
    keys = algorithm.summation.download(round(cohort), noise_share)
    signal = noise = None
    if algorithm.mechanism.private and plan.noise_multiplier is not None:
        signal = float(config.mechanism.clip)
        factor = algorithm.mechanism.noise_on_update(round(cohort))
        std = factor * float(algorithm.mechanism.clip) * encoded
        noise = std * math.sqrt(layout.length) / cohort
    return RoundForecast(
        cohort=cohort,
        down=parties * (_NUMBER * received + algorithm.exchanges * keys),
        up=parties * _upload(plan, algorithm, parameters, shapes) * algorithm.exchanges,
        signal=signal,
        noise=noise,
        encoded=encoded,
        parties=parties,
    )


def _upload(
    plan: Plan, algorithm: Algorithm, parameters: int, shapes: ShapesByName | None
) -> float:
    """Bytes of a party's message: compressed, or as the sum's protocol requires."""
    layout, cohort = algorithm.objective.layout(parameters), round(algorithm.sampler.size)
    width = algorithm.mechanism.width(algorithm.wire(layout))
    bits = plan.config.compression.bits(_shapes(parameters, shapes))
    if bits is None:
        return algorithm.summation.upload(width, cohort, algorithm.noise_share)
    return bits / 8 + (width - layout.length) * _NUMBER


def _shapes(parameters: int, shapes: ShapesByName | None) -> Shapes:
    """The model's shapes; if unknown, one vector."""
    return Shapes.named(shapes or {"all": (parameters,)})


def forecast(setup: Setup) -> Forecast:
    """Returns the forecast of the run `setup`, executed on this machine from its beginning."""
    config, algorithm = setup.plan.config, setup.algorithm
    d = setup.network.shapes.length
    witness = algorithm.sampler.witness(1, algorithm.clients)
    exchange = round_exchange(setup.plan, d, setup.network.shapes.by_name)
    cohort = exchange.cohort
    width = algorithm.mechanism.width(algorithm.wire(algorithm.objective.layout(d)))
    typical = setup.federation.typical
    examples = typical if typical is not None else 2.0 * config.client.batch_size
    work = setup.executor.trainer.steps(np.array([math.ceil(examples)]), config.client.epochs)
    if config.example_privacy:
        work = np.array([config.example_privacy.steps(config.client.epochs)])
    a_sum = algorithm.summation.seconds(width, round(cohort), algorithm.noise_share)
    sums = config.run.rounds * algorithm.exchanges * a_sum
    evaluations = -(-config.run.rounds // config.run.evaluate_every) + 1
    training = config.run.rounds * cohort * float(work[0]) * setup.speed.seconds
    canaries = canary_updates(setup)
    crafting = config.audit.canaries * canaries.seconds if canaries else 0.0
    return Forecast(
        parameters=d,
        cohort=cohort,
        empty=(1.0 - witness.rate) ** algorithm.clients if witness.random else 0.0,
        down=exchange.down,
        up=exchange.up,
        remembered=setup.state_length * _NUMBER,
        clipped=setup.clipped,
        averaged=setup.network.averaged.length,
        local=setup.network.local.length,
        signal=exchange.signal,
        noise=exchange.noise,
        parties=exchange.parties,
        seconds=training + sums + evaluations * setup.scoring_seconds + crafting,
        examples=examples,
        guessed=typical is None,
        encoded=exchange.encoded,
        aborts=setup.plan.cost.aborts,
        step=algorithm.grid_step(d),
        message=algorithm.objective.layout(d).length,
        shortening=config.compression.factor(setup.network.shapes),
        unstacked=setup.speed.unstacked,
        precision=setup.speed.precision,
        half_widths=expected_widths(setup),
        canaries=canaries,
        without_adapters=setup.network.without_adapters if config.start.lora else None,
    )
