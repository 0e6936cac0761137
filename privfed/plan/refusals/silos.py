"""What is refused of privacy inside silos, and of constants declared for each silo."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def silo_refusals(config: Config) -> Iterator[str]:
    """Every reason against these weights of silos, and against DP-SGD in silos like these."""
    yield from _silo_weights(config)
    if config.client_mechanism.private:
        yield from _examples_of_phones(config)
        yield from _mixed_precision(config)
        yield from _unnoised_reads_of_examples(config)
        yield from _weights_that_tell_sizes(config)
        yield from _draws_that_tell_sizes(config)
        yield from _steps_counted_twice(config)


def _silo_weights(config: Config) -> Iterator[str]:
    """Declared weights stand where everybody has to weigh one, or for other silos than these."""
    weights = config.aggregation.silo_weights
    if not weights:
        return
    if config.mechanism.private or config.objective.sums_states:
        yield (
            "aggregation.silo_weights are set, but under user-level privacy, and where the server "
            "sums what clients keep, everybody weighs one; remove the key"
        )
    elif len(weights) != config.data.clients or not any(weights):
        yield (
            f"aggregation.silo_weights has {len(weights)} numbers for data.clients = "
            f"{config.data.clients}; expected one for each, not all 0"
        )
    elif config.aggregation.weights != "auto" or config.data.setting != "cross_silo":
        yield (
            'aggregation.silo_weights go with data.setting = "cross_silo" and '
            "aggregation.weights left out"
        )


def _examples_of_phones(config: Config) -> Iterator[str]:
    """DP-SGD protects one example of a silo; of a phone, whole clients are to be protected."""
    if config.data.setting != "cross_silo":
        yield (
            f"client.privacy.mechanism is {_name(config)!r}, which protects single examples of a "
            'silo; set data.setting = "cross_silo", or protect whole clients by privacy.mechanism'
        )


def _mixed_precision(config: Config) -> Iterator[str]:
    """Gradients of single examples are clipped in full precision."""
    if config.run.precision in ("mixed", "fast"):
        yield (
            f'run.precision is "{config.run.precision}", but client.privacy.mechanism = '
            f"{_name(config)!r} takes gradients of single examples, which stay in full precision; "
            'use "full"'
        )


def _unnoised_reads_of_examples(config: Config) -> Iterator[str]:
    """Examples are read (`anchored`, `measures`, `exchanges`, `grouping`) beside the local steps,
    which alone have noise.
    """
    objective = config.objective
    reads = objective.anchored or objective.measures or objective.grouping
    if reads or objective.exchanges > 1:
        yield (
            f"client.objective = {config.names['objective']!r} reads a silo's examples beside its "
            f"local steps, and client.privacy.mechanism = {_name(config)!r} adds noise to these "
            'alone; use "sgd", "fedprox", "fedfor", "scaffold", "feddyn", "fedsplit", "adaalter", '
            '"fedpa", "per_fedavg" or "worker_momentum"'
        )


def _steps_counted_twice(config: Config) -> Iterator[str]:
    """A silo's steps are those that its ledger is charged for."""
    if config.client.steps:
        yield (
            f"client.steps is {config.client.steps}, and client.privacy.mechanism = "
            f"{_name(config)!r} takes the steps that its own keys say, each charged; remove the "
            "key, and set client.privacy.sampling_rate and client.epochs"
        )


def _weights_that_tell_sizes(config: Config) -> Iterator[str]:
    """Weights by examples tell how many a silo has, which DP-SGD protects."""
    if config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but how many examples a silo has is what '
            f"client.privacy.mechanism = {_name(config)!r} protects; declare "
            'aggregation.silo_weights as public constants, or use "uniform"'
        )


def _draws_that_tell_sizes(config: Config) -> Iterator[str]:
    """A draw by sizes (`sampler.reads_sizes`) tells how many examples a silo has."""
    if config.sampler.reads_sizes:
        yield (
            f"cohort.sampler is {config.names['sampler']!r}, but how many examples a silo has is "
            f'what client.privacy.mechanism = {_name(config)!r} protects; use "full" or "poisson"'
        )


def _name(config: Config) -> str:
    """The mechanism by which silos protect their examples."""
    return config.names["client_mechanism"]
