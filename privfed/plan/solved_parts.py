"""The values that a run's first plan solves for: the noise, and constants of parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from accounting.calibration import noise_multiplier
from accounting.errors import AccountingError
from accounting.events import Event, Spending, best_of
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.plan.evaluation_cost import EvaluationCost, evaluation_cost
from privfed.plan.round_cost import RoundCost, round_cost
from privfed.privacy.noise_on_model import InBands, SolvedForRun
from privfed.sampling.cohort import InGroups, Sampler


def spending_of(config: Config, alone: Spending) -> Spending:
    """Returns the spending of a run whose own rounds have the charges `alone`.

    For a candidate of private tuning, this is one event: the choice among all candidates.
    """
    return {best_of(alone, config.chosen.repetitions): 1} if config.chosen else alone


def solved_noise(
    config: Config, cost: RoundCost, evaluation: EvaluationCost | None, earlier: Spending
) -> float:
    """Returns the smallest noise multiplier of training rounds within the run's budget.

    Args:
      config: the run.
      cost: the cost of a training round.
      evaluation: the cost of its evaluation rounds; None if clients do not evaluate.
      earlier: the charges of earlier runs.

    Raises:
      AccountingError: if no noise is enough.
    """
    privacy, extra_spending = config.privacy, evaluation.spending if evaluation else None
    training = config.run.rounds - (evaluation.count if evaluation else 0)
    requested = (privacy.epsilon or 0.0, privacy.delta, privacy.accountant, earlier)
    if config.chosen is None:
        return cost.solve(training, *requested, extra_spending)
    repetitions = config.chosen.repetitions

    def choice(z: float) -> Event:
        alone = Counter({cost.event(z): training}) + Counter(
            extra_spending(z) if extra_spending else {}
        )
        return best_of(alone, repetitions)

    return noise_multiplier(choice, 1, *requested)


def with_solved_parts(config: Config, earlier: Spending) -> Config:
    """Returns `config` with the constants that its sampler and mechanism solve for.

    Args:
      config: the run; returned unchanged if its noise was already solved for.
      earlier: the charges of earlier runs.

    Raises:
      Refused: if no constants are possible.
    """
    if config.noise_multiplier is not None:
        return config
    if isinstance(config.sampler, InGroups):
        config = _grouped(config, config.sampler, earlier)
    return _solved(config)


def training_rounds(config: Config) -> int:
    """Returns the number of the run's rounds that train."""
    return config.run.rounds - config.evaluation_rounds.among(config.run.rounds)


def _solved(config: Config) -> Config:
    """Returns `config` with the constants that its mechanism solves for."""
    mechanism = config.mechanism
    if not isinstance(mechanism, SolvedForRun):
        return config
    separation = config.sampler.witness(0, config.data.clients).separation
    rounds = max(training_rounds(config), 1)
    return replace(config, mechanism=mechanism.solved_for_run(rounds, separation))


def _grouped(config: Config, sampler: InGroups, earlier: Spending) -> Config:
    """Returns `config` with the number of groups and, if the mechanism has bands, of bands.

    Without bands, the number of groups is the smallest possible one. With configured bands, it is
    the smallest that is at least their number. Otherwise both numbers minimise the noise on the
    model. Raises `Refused` if too few groups are possible.
    """
    mechanism, possible = config.mechanism, sampler.possible_groups()
    if not isinstance(mechanism, InBands):
        return replace(config, sampler=sampler.in_groups(possible[0]))
    if mechanism.bands:
        enough = [groups for groups in possible if groups >= mechanism.bands]
        if not enough:
            raise Refused(
                f"privacy.bands is {mechanism.bands}, but clients can be divided into at most "
                f"{possible[-1]} groups (cohort.slots, cohort.groups), one for each band; raise "
                "cohort.slots, or lower privacy.bands"
            )
        return replace(config, sampler=sampler.in_groups(enough[0]))
    return _with_least_noise(config, sampler, possible, earlier)


def _with_least_noise(
    config: Config, sampler: InGroups, possible: tuple[int, ...], earlier: Spending
) -> Config:
    """Returns `config` with the `possible` number of groups and bands that minimises the noise.

    The noise on the model is assumed to be unimodal in this number, so not all values are tried.
    """
    if len(possible) > 1 and config.privacy.epsilon is None:
        raise Refused(
            "privacy.bands is 0 (the number that needs the least noise at a budget), but no budget "
            "is set; set privacy.bands, or set privacy.epsilon instead of privacy.noise_multiplier"
        )
    choices = [groups for groups in possible if groups > 1 or len(possible) == 1]
    noise: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in noise:
            noise[place] = _noise_on_model(_in_groups(config, sampler, choices[place]), earlier)
        return noise[place]

    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
    return _in_groups(config, sampler, choices[low])


def _in_groups(config: Config, sampler: InGroups, groups: int) -> Config:
    """Returns `config` with clients in `groups` groups, and with `groups` bands of noise."""
    grouped: Sampler = sampler.in_groups(groups)
    assert isinstance(config.mechanism, InBands)
    return replace(config, sampler=grouped, mechanism=config.mechanism.in_bands(groups))


def _noise_on_model(config: Config, earlier: Spending) -> float:
    """Returns the noise on the model, in clipping norms, that the budget needs."""
    solved = _solved(config)
    try:
        noise = solved_noise(solved, round_cost(solved), evaluation_cost(solved), earlier)
    except AccountingError as error:
        raise Refused(f"privacy: {error}") from error
    mechanism = solved.mechanism.at(noise)
    assert isinstance(mechanism, InBands)
    return mechanism.noise_on_model(max(training_rounds(config), 1))
