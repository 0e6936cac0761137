"""Builds, from a plan, a population and a model, a run that is ready to start."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from defenses.types import SumRule
from privfed.client.autotune import Speed, fastest, speedup
from privfed.client.byzantine import Attackers, FalseClaims, targeted
from privfed.client.client_measures import ClientMeasures, Measurement
from privfed.client.compression.compressed import with_student
from privfed.client.device_memory import memory_of
from privfed.client.executor import LocalExecutor
from privfed.client.objective import Grouping
from privfed.client.partial import Averaging, Partial
from privfed.client.silos import PerExample
from privfed.client.student import NetworkStudent
from privfed.client.trainer import LocalTrainer
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.data.holdout import bounds_warning, with_held_back
from privfed.metrics.groups import ClientGroups, ExampleGroups
from privfed.models.form import Form
from privfed.models.local_part import full_network, local_start
from privfed.models.network import Network
from privfed.models.precision import FASTER, as_asked_for, unsound
from privfed.plan.evaluation_cost import measure_row_of
from privfed.plan.plan import Plan
from privfed.privacy.mechanism import Mechanism
from privfed.round.algorithm import Algorithm
from privfed.run.input_canaries import refuse_uncraftable
from privfed.run.setup import Setup
from privfed.run.students import client_trainers, student_of
from privfed.run.unfit import refuse_other_population, refuse_unfit_model

_COPIES, _FLOAT32 = 3, 4
"""Copies of a round's rows in memory (as trained, as sent, and a margin for a larger cohort than
expected), and the bytes of a float32.
"""


def assemble(plan: Plan, federation: Federation, network: Network, streams: Streams) -> Setup:
    """Checks that the plan fits population and model, and chooses the fastest training mode.

    Args:
      plan: the solved plan of the run.
      federation: clients and test set.
      network: the model.
      streams: random streams of the run.

    Returns:
      A run that is ready to start.

    Raises:
      Refused: if the plan does not fit this population, or cannot train this model.
    """
    config = plan.config
    student = student_of(config, federation, network)
    algorithm = _averaging(plan.algorithm(shapes=network.shapes.by_name), network)
    algorithm = replace(algorithm, objective=with_student(algorithm.objective, student))
    refuse_other_population(plan, federation)
    refuse_unfit_model(config, algorithm, network)
    if config.audit.by_inputs:
        refuse_uncraftable(config.audit, federation, network)
    evaluation, measures = None, None
    if plan.evaluation:
        federation, scored = with_held_back(federation, config.evaluation.holdout)
        personal = config.evaluation.personal
        evaluation, measures = evaluation_of(plan.evaluation, scored, network, personal)
    algorithm.encoding_factor(network.shapes.length)  # refuses a codec that cannot hold the sums
    if config.evaluation.by == "test":  # refuses columns that define no groups
        ExampleGroups.by(config.evaluation.group, Form.of(federation.test))
    public = len(federation.test) > 0 and not federation.test_is_few
    scoring_seconds = _seconds_to_score(network, federation)
    network, trainer, speed = _measured(config, algorithm, federation, network, student)
    if config.client_mechanism.private:  # refuses models that mix examples, sent or not
        PerExample(trainer.network).verify(*federation.examples.synthetic(3))
    attackers = _attackers(config, federation, streams)
    executor = _executor(plan, trainer, speed, streams, attackers)
    own_trainers = client_trainers(config, executor.trainer, student, streams)
    return Setup(
        plan=replace(plan, config=_as_measured(config, network, speed)),
        federation=federation,
        network=network,
        algorithm=algorithm,
        evaluation=evaluation,
        executor=replace(executor, measures=measures, own_trainers=own_trainers),
        streams=streams,
        speed=speed,
        scoring_seconds=scoring_seconds,
        clipped="" if federation.shared else bounds_warning(federation.test),
        attackers=attackers,
        targeted=targeted(attackers, federation.test) if attackers and public else None,
    )


def _averaging(algorithm: Algorithm, network: Network) -> Algorithm:
    """Returns `algorithm`; if the model has batch normalisations, it averages their statistics."""
    count = network.averaged.length
    if not count:
        return algorithm
    objective = Averaging(inner=algorithm.objective, count=count)
    return replace(algorithm, objective=objective, averaged=count)


def evaluation_of(
    plan: Plan, scored: Federation, network: Network, personal: bool = False
) -> tuple[Algorithm, ClientMeasures]:
    """Returns the algorithm of evaluation rounds, and the measures that clients compute in them.

    Args:
      plan: the plan of the evaluation rounds.
      scored: the examples on which clients evaluate.
      network: the model.
      personal: whether clients evaluate their personal models instead of the run's.

    Raises:
      Refused: if a measure does not suit the labels, or a secure sum cannot encode the measures.
    """
    form = Form.of(scored.examples)
    row = measure_row_of(plan.config, form)
    groups = ExampleGroups.by(plan.config.evaluation.group, form)
    algorithm = plan.algorithm(evaluates=True)
    algorithm = replace(algorithm, objective=Measurement(length=row.length))
    algorithm.encoding_factor(network.shapes.length)  # refuses a codec that cannot hold the sums
    scoring = full_network(network) if personal else network
    return algorithm, ClientMeasures(scored, scoring, row, groups, personal)


def _seconds_to_score(network: Network, federation: Federation) -> float:
    """Returns the seconds to score the test set, 0 if empty. `Refused` passes if it is complete."""
    if not len(federation.test):
        return 0.0
    began = time.perf_counter()
    with contextlib.suppress(*[Refused] if federation.test_is_few else []):
        network.evaluate(network.initial_params, federation.test)
    return (time.perf_counter() - began) * federation.test_scale


def _measured(
    config: Config,
    algorithm: Algorithm,
    federation: Federation,
    network: Network,
    student: NetworkStudent | None,
) -> tuple[Network, LocalTrainer, Speed]:
    """Returns the network in its training precision, its trainer, and its speed.

    With `run.precision` "fast", the precision is mixed if that is sound and faster (`FASTER`).
    Speeds are measured on synthetic examples, so no choice depends on client data.
    """
    trainer = _trainer(config, federation, network, student)
    speed = _speed(config, algorithm, trainer)
    if config.run.precision != "fast":
        precision = as_asked_for(network, federation.examples)
        return network, trainer, replace(speed, precision=precision)
    if reason := unsound(network, federation.examples, config.client.batch_size):
        return network, trainer, replace(speed, precision=f"in full precision: mixed {reason}")
    rounded = replace(network, mixed=config.client.batch_size)
    candidate = _trainer(config, federation, rounded, student)
    ratio = speedup(candidate, trainer, speed, config.sampler.size)
    if ratio < FASTER:
        why = f"in full precision: mixed is not faster here ({ratio:.2f} x)"
        return network, trainer, replace(speed, precision=why)
    why = f"in mixed precision, {ratio:.2f} x as fast here"
    return rounded, candidate, replace(speed, seconds=speed.seconds / ratio, precision=why)


def _as_measured(config: Config, network: Network, speed: Speed) -> Config:
    """Returns `config` with the measured choices; a requested chunk size is not replaced."""
    precision = "mixed" if network.mixed else "full"
    chunk = config.run.chunk or speed.chunk
    return config.with_run(trainer=speed.way, chunk=chunk, precision=precision)


def _trainer(
    config: Config, federation: Federation, network: Network, student: NetworkStudent | None
) -> LocalTrainer:
    client = config.client
    objective = with_student(config.messages(network.shapes.by_name), student)
    if count := network.averaged.length:
        objective = Averaging(inner=objective, count=count)
    if network.local.names:
        start = local_start(network)
        objective = Partial(inner=objective, start=start, local_epochs=client.local_epochs)
    return LocalTrainer(
        federation,
        full_network(network),
        objective,
        client.lr,
        client.epochs,
        client.batch_size,
        "stacked",
        client.steps,
        groups=_groups(config, federation),
    )


def _groups(config: Config, population: Federation) -> ClientGroups | None:
    """Returns the rule that assigns clients to groups; None if the objective needs no groups.

    Raises `Refused` if there are no groups, or another number of groups than declared.
    """
    grouping = config.objective.grouping
    if grouping is None:
        return None
    sites = 0 if config.at_remote_sites else config.data.sites
    groups = ClientGroups.by(grouping.by, Form.of(population.examples), sites)
    _refuse_other_groups(grouping, groups.names)
    return groups


def _refuse_other_groups(grouping: Grouping, names: Sequence[str]) -> None:
    """Raises `Refused` if there are fewer or more groups, `names`, than a key declares."""
    makes = f"client.group = {grouping.by!r} makes {len(names)}: {', '.join(names)}"
    if grouping.count and grouping.count != len(names):
        raise Refused(
            f"client.groups is {grouping.count}, but {makes}; set client.groups = {len(names)}",
            key="client.groups",
        )
    if grouping.least > len(names):
        key = f"client.{grouping.key}"
        raise Refused(
            f"{key} has a value for each of {grouping.least} groups, but {makes}; remove the last "
            f"{grouping.least - len(names)} of {key}",
            key=key,
        )


def _speed(config: Config, algorithm: Algorithm, trainer: LocalTrainer) -> Speed:
    """Returns the `Speed` of the fastest training mode that fits into memory with the rows."""
    rule, run = algorithm.rule, config.run
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", run.workers))
    device, named = trainer.network.initial_params.device, ":" in run.device
    memory = memory_of(device, processes, named)
    length = trainer.objective.layout(trainer.network.shapes.length).length
    keeps = not isinstance(rule, SumRule) or rule.uploads > 1
    held = _COPIES * config.sampler.size * length * _FLOAT32 if keeps else 0
    return fastest(trainer, config.sampler.size, run.trainer, run.chunk, memory, held)


def _executor(
    plan: Plan, trainer: LocalTrainer, speed: Speed, streams: Streams, attackers: Attackers | None
) -> LocalExecutor:
    config, poisons = plan.config, attackers is not None and attackers.attack.poisons
    return LocalExecutor(
        replace(trainer, way=speed.way),
        streams,
        speed.chunk,
        plan.by_examples,
        config.client_schedule,
        config.client.stragglers,
        config.client.drop_stragglers,
        availability=config.availability,
        weights=tuple(config.aggregation.silo_weights),
        most_examples=config.aggregation.most_examples,
        attackers=attackers,
        poisoned=attackers.poisoned(trainer.federation) if attackers and poisons else None,
        unordered=speed.way == "loop" and _exact(plan.mechanism),
    )


def _attackers(config: Config, federation: Federation, streams: Streams) -> Attackers | None:
    if not config.has_attackers:
        return None
    attackers = Attackers(
        config.attack,
        config.attackers.fraction,
        config.attackers.selection == "round",
        config.unbounded,
        federation.population().identities,
        streams,
        federation.clients if federation.identities is None else None,
        _false_claims(config),
        (config.attackers.first_round, config.attackers.last_round or math.inf),
    )
    return attackers.instructed(federation)


def _false_claims(config: Config) -> FalseClaims:
    """Returns what attackers state falsely, such as a number of examples, clipped to the limit."""
    attackers, most = config.attackers, config.aggregation.most_examples
    return FalseClaims(
        everything=attackers.replaces == "messages",
        weight=attackers.weight,
        most=most if most and not config.unbounded else math.inf,
        within=None if attackers.clip_count == "true" else attackers.clip_count == "within",
    )


def _exact(mechanism: Mechanism) -> bool:
    """Whether the mechanism's rows are on a grid, so that sums in any order are equal."""
    return mechanism.encoding(mechanism.init()).resolution < math.inf
