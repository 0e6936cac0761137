"""The contracts of optimizers, schedules and samplers, as checks of their hooks.

Each check is a function of the part, and raises `AssertionError` if the part violates it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from scipy import stats
from torch import Tensor

from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.sampling.cohort import Cohort, Population

_DELTAS = torch.tensor([[0.5, -2.0], [0.1, 0.0], [-0.3, 1.0], [0.7, 0.2], [0.0, -0.4], [1.5, 0.3]])
"""Aggregates of six rounds."""


def _start() -> Tensor:
    return torch.tensor([1.0, -1.0])


def _run(server: Any, deltas: Tensor, params: Tensor, state: Any) -> tuple[Tensor, Any]:
    for delta in deltas:
        params, state = server.step(params, delta, state)
    return params, state


def _equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def _forms(state: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Returns the dtype and the shape of each tensor of a state."""
    return {key: (value.dtype, tuple(value.shape)) for key, value in sorted(state.items())}


def steps_are_pure(server: Any) -> None:
    """Checks that an optimizer's step changes no argument in place and depends on no other value.

    The names, shapes and dtypes of model and state must be the same in every round.
    """
    params, state = _run(server, _DELTAS[:3], _start(), server.init(_start()))
    before = params.clone(), {key: value.clone() for key, value in state.items()}
    once = server.step(params, _DELTAS[3].clone(), state)
    again = server.step(params, _DELTAS[3].clone(), state)
    assert torch.equal(params, before[0]), "the model is changed in place"
    assert _equal(state, before[1]), "the state is changed in place"
    assert torch.equal(once[0], again[0]), "two equal steps give two models"
    assert _equal(once[1], again[1]), "two equal steps give two states"
    form, expected = ((each.dtype, tuple(each.shape)) for each in (once[0], _start()))
    assert form == expected, f"the model is {form} after a step, and {expected} before"
    forms, first = map(_forms, (once[1], server.init(_start())))
    assert forms == first, (
        f"the state is {forms} after a step, but {first} in `init`; return the same names, shapes "
        "and dtypes"
    )


def resumes_from_a_checkpoint(server: Any) -> None:
    """Checks that an optimizer resumed from a stored state gives the same bits as uninterrupted."""
    uninterrupted = _run(server, _DELTAS, _start(), server.init(_start()))
    for stop in range(len(_DELTAS)):
        params, state = _run(server, _DELTAS[:stop], _start(), server.init(_start()))
        other = sorted(key for key, value in state.items() if not isinstance(value, Tensor))
        assert not other, f"the state has values that are no tensors: {', '.join(other)}"
        read = load(save({key: value.contiguous() for key, value in state.items()}))
        assert _equal(read, dict(state)), "a checkpoint does not hold the whole state"
        server.model_copy().init(_start())
        resumed = _run(server.model_copy(), _DELTAS[stop:], params, read)
        advice = "keep nothing outside of the state"
        assert torch.equal(resumed[0], uninterrupted[0]), f"a resumed model differs; {advice}"
        assert _equal(resumed[1], uninterrupted[1]), f"a resumed state differs; {advice}"


def stays_without_an_update(server: Any) -> None:
    """Checks that aggregates of zero, or a learning rate of zero, leave the model unchanged.

    After aggregates of zero, the optimizer's state must be finite.
    """
    zeros = torch.zeros_like(_DELTAS)
    params, state = _run(server, zeros, _start(), server.init(_start()))
    assert torch.equal(params, _start()), "aggregates of zero move the model"
    broken = sorted(key for key, value in state.items() if not value.isfinite().all())
    assert not broken, f"the state is not finite after aggregates of zero: {', '.join(broken)}"
    still, _ = _run(server.at(0.0), _DELTAS, _start(), server.init(_start()))
    assert torch.equal(still, _start()), (
        "the step moves the model at rate zero; multiply the rate in `at`"
    )


def moves_along_the_first_update(server: Any) -> None:
    """Checks that an optimizer's first step has a positive component along the aggregate."""
    params, _ = server.step(_start(), _DELTAS[0], server.init(_start()))
    along = float((params - _start()) @ _DELTAS[0])
    assert along > 0, f"the first step moves by {along:g} along the aggregate; expected above 0"


def is_plain_only_where_it_adds_the_update(server: Any) -> None:
    """Checks that an optimizer that declares `plain` adds the aggregate unchanged."""
    params, state = _start(), server.init(_start())
    added = True
    for delta in _DELTAS:
        moved, state = server.step(params, delta, state)
        added &= torch.allclose(moved, params + delta)
        params = moved
    assert added or not server.plain, "plain is declared, but the aggregate is not added unchanged"


def rates_multiply(server: Any) -> None:
    """Checks that `server.at(factor)` multiplies the learning rate, and that the optimizer built
    from the configuration keys of `server` equals it.
    """
    halves = server.at(0.5).at(0.5)
    params = [
        each.step(_start(), _DELTAS[0], each.init(_start()))[0]
        for each in (halves, server.at(0.25), server.at(1.0), server)
    ]
    assert torch.allclose(params[0], params[1]), "at(0.5).at(0.5) is not at(0.25)"
    assert torch.equal(params[2], params[3]), "at(1.0) changes the step"
    assert not torch.equal(params[1], params[3]), "the rate changes nothing"
    assert type(server).model_validate(server.model_dump()) == server, "keys do not define the part"


_SCHEDULED = range(1, 1001)


def gives_a_factor_for_every_round(schedule: Any) -> None:
    """Checks that a schedule's factors in 1,000 rounds are from 0 to 1, and the largest is 1."""
    factors = [schedule.factor(round) for round in _SCHEDULED]
    for round, factor in zip(_SCHEDULED, factors, strict=True):
        valid = isinstance(factor, float) and 0 <= factor <= 1
        assert valid, f"the factor of round {round} is {factor!r}; expected a float from 0 to 1"
    assert abs(max(factors) - 1.0) <= 1e-6, "the configured rate is never reached"


def follows_from_the_round_alone(schedule: Any) -> None:
    """Checks that a schedule's factor depends on the round only."""
    backwards = [schedule.factor(round) for round in reversed(_SCHEDULED)]
    again = [schedule.model_copy().factor(round) for round in _SCHEDULED]
    assert backwards[::-1] == again, "a factor depends on the rounds that were asked for before"


_CLIENTS, _DRAWS = 40, 1000
_STREAMS = Streams(3, simulated=True)


def _small(sampler: Any) -> Any:
    """Returns the sampler for `_CLIENTS` clients, with size 10 if its `size` is configurable."""
    free = "size" in type(sampler).model_fields and not sampler.derives_size
    return (sampler.model_copy(update={"size": 10}) if free else sampler).of(_CLIENTS)


def _fitting(sampler: Any) -> Iterator[int]:
    """Yields those of the population sizes 40, 25 and 60 that the sampler accepts."""
    for present in (_CLIENTS, 25, 60):
        with contextlib.suppress(Refused):
            sampler.fits(present, _CLIENTS)
            sampler.witness(1, _CLIENTS).refuse_population(present, _CLIENTS)
            yield present


def _population_of(present: int, sizes: Any = None) -> Population:
    return Population.of(np.ones(present, np.int64) if sizes is None else sizes)


def _drawn(
    sampler: Any, present: int, rounds: int = _DRAWS, streams: Streams = _STREAMS
) -> list[Cohort]:
    population = _population_of(present)
    return [sampler.sample(r, _CLIENTS, population, streams) for r in range(1, rounds + 1)]


def _entered(cohorts: list[Cohort], present: int) -> Any:
    """Returns a mask `[rounds, present]`: whether each of `present` clients is in each cohort."""
    return np.stack([np.isin(np.arange(present), cohort.clients) for cohort in cohorts])


def draws_cohorts_of_its_form(part: Any) -> None:
    """Checks the clients, the witness and the divisor of a sampler's cohorts.

    Clients must be present, in increasing order and at most `capacity`. The witness must be that of
    the round, and the divisor the sampler's size.
    """
    sampler = _small(part)
    assert sampler.of(_CLIENTS) == sampler, "`of` is not idempotent"
    for present in _fitting(sampler):
        divisors = set()
        for number, cohort in enumerate(_drawn(sampler, present, 60), 1):
            most, clients = sampler.capacity() or present, cohort.clients
            assert cohort.round == number, f"the cohort of round {number} states {cohort.round}"
            same = cohort.witness == sampler.witness(number, _CLIENTS)
            assert same, "the witness of a cohort is not that of its round"
            assert (np.diff(clients) > 0).all(), "clients are not in increasing order, each once"
            assert set(clients) <= set(range(present)), "a cohort has clients that are not present"
            assert len(clients) <= most, f"{len(clients)} clients exceed the capacity of {most}"
            divisors.add(cohort.divisor)
        expected = {float(sampler.size)}
        assert divisors == expected, f"divisors are {divisors}; expected the size, {expected}"


def includes_clients_at_the_declared_rate(part: Any) -> None:
    """Checks that clients are sampled equally often, at the declared rate.

    The test is chi-squared at the level 1e-6. If the samples of rounds depend on each other, or the
    rate is 1, clients must be sampled exactly as often as declared.
    """
    sampler = _small(part)
    for present in _fitting(sampler):
        often = _entered(_drawn(sampler, present), present).sum(0)
        rate = sampler.witness(1, _CLIENTS).rate
        release = sampler.witness(1, _CLIENTS).release
        if isinstance(release, TruncatedPoisson):  # a uniform sample of the sampled clients
            sizes = stats.binom(present, rate)
            among = np.arange(present + 1)
            rate = float((sizes.pmf(among) * np.minimum(among, release.cap)).sum()) / present
        mean = _DRAWS * rate
        if sampler.remembers or rate == 1:
            same = (often == round(mean)).all()
            assert same, f"clients are declared to be in {mean:g} of {_DRAWS} cohorts, but are not"
            continue
        total = (often.sum() - present * mean) / np.sqrt(present * mean * (1 - rate))
        assert abs(total) < 5, f"the rate is {often.mean() / _DRAWS:g}, but {rate:g} is declared"
        statistic = ((often - mean) ** 2 / (mean * (1 - rate))).sum()
        unequal = f"clients are sampled at different rates, from {often.min()} to {often.max()}"
        assert stats.chi2.sf(statistic, present) > 1e-6, f"{unequal} of {_DRAWS} cohorts"


def declares_the_release_of_its_draws(part: Any) -> None:
    """Checks sampled cohorts against the size, cap and rate of the sampler's declared release."""
    sampler = _small(part)
    witness = sampler.witness(1, _CLIENTS)
    sizes = {len(cohort.clients) for cohort in _drawn(sampler, _CLIENTS, 200)}
    release = witness.release
    drawn, name = f"cohorts have sizes {sorted(sizes)}", type(release).__name__
    varies = len(sizes) > 1
    assert witness.random == varies or sampler.remembers, f"random is {witness.random}, but {drawn}"
    assert witness.shares_places == sampler.shares_places, "the witness has another shares_places"
    if isinstance(release, PoissonSampled):
        assert release.rate == witness.rate, f"the witness's rate is {witness.rate}, not {release}"
        assert varies, f"the release is {name}, but {drawn}"
    if isinstance(release, TruncatedPoisson):
        limits = max(sizes), sampler.capacity(), release.cap
        assert len({*limits}) == 1, f"the largest size, capacity and cap are {limits}; expected one"
    if isinstance(release, WithoutReplacement):
        assert sizes == {sampler.size}, f"the release is {name} of {sampler.size}, but {drawn}"
    known = "the sampler reads sizes, which are private, so its release must be None"
    assert not sampler.reads_sizes or release is None, known


def keeps_the_separation_it_declares(part: Any) -> None:
    """Checks that cohorts keep the separation and the period that a sampler's witness declares."""
    sampler = _small(part)
    witness = sampler.witness(1, _CLIENTS)
    who = _entered(_drawn(sampler, _CLIENTS, 120), _CLIENTS)
    for start in range(len(who) - witness.separation + 1):
        near = who[start : start + witness.separation].sum(0)
        apart = f"a client is in two cohorts within the separation of {witness.separation} rounds"
        assert witness.separation == 1 or (near <= 1).all(), apart
    if witness.period > 1:
        periods = len(who) // witness.period
        turns = who[: periods * witness.period].reshape(periods, witness.period, -1)
        once = (turns.sum(1) == 1).all()
        assert once, f"a client is not in one cohort in each period of {witness.period} rounds"


def bounds_the_staleness_it_declares(part: Any) -> None:
    """Checks that staleness is within the declared bound, and weights are in (0, 1]."""
    sampler, none = _small(part), np.zeros(_CLIENTS)
    for cohort in _drawn(sampler, _CLIENTS, 60):
        ages = none if cohort.staleness is None else cohort.staleness
        weights = none + 1 if cohort.weights is None else cohort.weights
        assert ages.shape == weights.shape == (_CLIENTS,), "expected one entry for each client"
        most, ages = sampler.largest_staleness(), ages[cohort.clients]
        within = ((ages >= 0) & (ages <= most)).all()
        assert within, f"the staleness in round {cohort.round} is not from 0 to {most}"
        assert ((weights > 0) & (weights <= 1)).all(), "weights are not above 0 and at most 1"


def draws_afresh_and_in_secret(part: Any) -> None:
    """Checks that cohorts differ between rounds and between runs, unless the sampling rate is 1.

    10 rounds must have at least 5 different cohorts, and the first rounds of 20 runs at least 16.
    """
    sampler = _small(part)
    if sampler.witness(1, _CLIENTS).rate == 1:
        return
    rounds = {cohort.clients.tobytes() for cohort in _drawn(sampler, _CLIENTS, 10)}
    keys = (
        [Streams(0, key=bytes([n] * 32)) for n in range(20)]
        if sampler.remembers
        else [Streams(3)] * 20
    )
    runs = {
        sampler.sample(1, _CLIENTS, _population_of(_CLIENTS), each).clients.tobytes()
        for each in keys
    }
    assert len(rounds) >= 10 / 2, f"10 rounds have {len(rounds)} different cohorts"
    assert len(runs) > 15, f"20 runs have {len(runs)} different first cohorts"


def reads_no_sizes_it_does_not_declare(part: Any) -> None:
    """Checks that cohorts depend on sizes exactly if `reads_sizes` is set."""
    sampler = _small(part)
    sizes = np.arange(_CLIENTS, dtype=np.int64) ** 2
    pairs = [
        [
            sampler.sample(
                round, _CLIENTS, _population_of(_CLIENTS, each), _STREAMS
            ).clients.tolist()
            for each in (None, sizes)
        ]
        for round in range(1, 21)
    ]
    reads = any(first != second for first, second in pairs)
    wrong = f"reads_sizes is {sampler.reads_sizes}, but cohorts depend on sizes: {reads}"
    assert sampler.reads_sizes == reads, wrong


# All checks of an optimizer, of a sampler and of a schedule.
OPTIMIZER_CHECKS = (
    steps_are_pure,
    resumes_from_a_checkpoint,
    stays_without_an_update,
    moves_along_the_first_update,
    is_plain_only_where_it_adds_the_update,
    rates_multiply,
)
SAMPLER_CHECKS = (
    draws_cohorts_of_its_form,
    includes_clients_at_the_declared_rate,
    declares_the_release_of_its_draws,
    keeps_the_separation_it_declares,
    bounds_the_staleness_it_declares,
    draws_afresh_and_in_secret,
    reads_no_sizes_it_does_not_declare,
)
SCHEDULE_CHECKS = (gives_a_factor_for_every_round, follows_from_the_round_alone)
