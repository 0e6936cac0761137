"""Computes the plan and cost of private tuning, before any candidate is drawn.

*Releases*: the directory of the best run by a score that is fixed here, and one line in a ledger.
*Mechanism*: K runs, where the secret K has a public distribution; each run trains one combination
of `tune.over`, drawn uniformly with replacement, from the start. *Sensitivity, relation, unit and
sampler*: those of a run. *Charged*: one event, `accounting.choosing.private_selection` of the
spending of a run. This spending has to be the same for every combination: a bound on each run is
then a bound on a run with a random combination. *Source*: Papernot & Steinke 2022, Theorem 2;
Koskela, Redberg & Wang 2024.

The score is a charged metric of clients, or a metric on the public test set. Both are
post-processing of a run's releases.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from accounting.choosing.repetitions import Repetitions
from accounting.events import Event
from accounting.guarantee import Guarantee, guarantee
from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.resolved import Chosen
from privfed.core.errors import Refused
from privfed.core.parts import expected
from privfed.grid.cells import Cell, cells
from privfed.grid.grid import Grid, Tuning
from privfed.grid.results import Files, number_or_none
from privfed.grid.tables import tuning_measure
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import Priors
from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.forecast import forecast
from privfed.run.population import load_representatives
from privfed.run.prepare import prepare
from privfed.run.setup import Setup


def score(tuning: Tuning, setup: Setup) -> tuple[str, bool]:
    """Returns the metric by which the best candidate is chosen, and whether lower values are
    better.

    If `tune.by` is empty, this is the first metric that clients evaluate, or if they evaluate none,
    the first metric of the loss.

    Args:
      tuning: the section [tune] of the grid file.
      setup: the setup of a candidate's run.

    Raises:
      Refused: if candidates have no such metric, or no examples to evaluate it on.
    """
    charged = _charged(setup)
    by = tuning.by or next(iter(charged), "")
    if by in charged:
        lower = tuning.lower_is_better
        return by, charged[by] if lower is None else lower
    if setup.plan.config.nothing_public and by not in charged:
        instead = f"tune.by = {next(iter(charged))!r}" if charged else 'evaluation.by = "clients"'
        given = repr(by) if by else "missing"
        raise Refused(
            f'tune.by is {given}, but data.holdout = "none" leaves no public examples to score '
            f"candidates on; let clients score them, which is charged: set {instead}"
        )
    network = setup.network
    measure, lower = tuning_measure(by, tuning.lower_is_better, network.loss)
    known = {network.loss.measure, "loss"}
    if measure not in known and len(setup.federation.test):
        known |= {*network.evaluate(network.initial_params, setup.federation.test)}
    if measure not in known:
        names = [*charged, *sorted(known)]
        raise Refused(
            f"tune.by is {measure!r}, but these runs have no such measure; "
            f"{expected(measure, names)}"
        )
    return measure, lower


def score_of(outcome: Mapping[str, Any], measure: str) -> float | None:
    """Returns the value of `measure` in a run's `outcome`; None if it is missing or NaN."""
    if not measure.startswith(PREFIX):
        return number_or_none(outcome.get(measure))
    estimate = outcome.get("clients", {}).get(measure.removeprefix(PREFIX), {})
    return number_or_none(estimate.get("value"))


def _charged(setup: Setup) -> dict[str, bool]:
    """Returns, for each metric that clients evaluate, whether lower values are better."""
    measures = setup.executor.measures
    if measures is None:
        return {}
    return {
        f"{PREFIX}{each.title(measures.row.scoring)}": each.lower_is_better
        for each in measures.row.measures
    }


_EACH = 3.0
"""Default expected number of candidates, per combination."""


@dataclass(frozen=True)
class Proposal:
    """A private tuning that can be run: its combinations, and the cost of the choice.

    Attributes:
      cells: one cell for each combination to choose from.
      repetitions: the distribution of the number of candidates.
      plan: the plan of a candidate, with the noise at which the complete tuning spends the budget.
      before: the earlier runs whose charges are included.
      event: the event that is charged, once, for the complete tuning.
      measure: the metric by which the best candidate is chosen.
      lower: whether lower values of the metric are better.
      seconds: the estimated run time of a candidate, in seconds.
    """

    cells: tuple[Cell, ...]
    repetitions: Repetitions
    plan: Plan
    before: Priors
    event: Event
    measure: str
    lower: bool
    seconds: float = field(compare=False)

    @property
    def config(self) -> Config:
        """The configuration of one candidate; others differ in the keys of `tune.over`."""
        return self.plan.config

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the release of the best run, including earlier runs."""
        return self.plan.guarantee

    @property
    def single(self) -> Guarantee:
        """The guarantee of a single run with the same noise, without the choice and without earlier
        runs.
        """
        privacy = self.config.privacy
        alone = self.plan.spending(self.config.run.rounds)
        return guarantee(alone, privacy.delta, privacy.accountant)

    @property
    def promise(self) -> tuple[Any, ...]:
        """A candidate's guarantee, population and terms, which all combinations must share."""
        config, privacy = self.config, self.config.privacy
        requested = (privacy.epsilon, privacy.delta, privacy.accountant)
        population = (config.data, config.source, config.partition, config.shift)
        sense = (config.run.randomness, self.plan.simulation, self.plan.void, self.plan.assumed)
        return (self.event, self.before, requested, population, sense)

    @property
    def seeded(self) -> bool:
        """Whether the tuning is a simulation in which all draws derive from the seed."""
        return self.config.run.randomness == "seeded"

    @property
    def tried(self) -> float:
        """The probability that a given combination is tried at least once."""
        return 1.0 - self.repetitions.generating(1.0 - 1.0 / len(self.cells))

    @property
    def digest(self) -> str:
        """A hash of the combinations, the score, and the distribution of candidates' number."""
        stated = [
            sorted(cell.name for cell in self.cells),
            self.repetitions.to_json(),
            [self.measure, self.lower],
        ]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()

    def better(self, scores: Sequence[float]) -> int:
        """Returns the index of the best of `scores`; among equal scores, the first."""
        return scores.index((min if self.lower else max)(scores))

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed experiment --dry-run --json` prints."""
        bound, single = self.guarantee, self.single
        return {
            "combinations": len(self.cells),
            "expected_candidates": self.repetitions.mean,
            "shape": self.repetitions.shape,
            "each_tried": self.tried,
            "epsilon": bound.epsilon,
            "epsilon_of_one_run": single.epsilon,
            "delta": bound.delta,
            "unit": bound.unit,
            "relation": bound.relation,
            "accountants": bound.by_accountant,
            "noise_multiplier": self.plan.noise_multiplier,
            "measure": self.measure,
            "lower_is_better": self.lower,
            "simulation": self.plan.simulation is not None,
        }


def propose(files: Files, grid: Grid) -> Proposal:
    """Returns the plan and cost of a private tuning; reads only the form of the data.

    Args:
      files: the paths of the grid's tables.
      grid: the grid, whose `tune.private` is true.

    Raises:
      Refused: if a combination cannot run, has no bound on its spending, lacks the metric, or
        differs from the others in its spending, its population or its metric.
    """
    assert grid.tune is not None
    combinations = tuple(cells(files.grid, grid))
    expected = grid.tune.candidates or _EACH * len(combinations)
    repetitions = Repetitions.with_mean(grid.tune.shape, expected)
    proposals = [_of_one(grid, cell, combinations, repetitions) for cell in combinations]
    first, *others = proposals
    for cell, other in zip(combinations[1:], others, strict=True):
        if other.promise != first.promise:
            raise Refused(
                f"{dict(cell.values)} and {dict(combinations[0].values)} differ in their guarantee "
                "or population, but all candidates need the same spending over one population, and "
                "must all be secret or all be simulations; remove from tune.over the keys that "
                "change rounds, cohort, noise, budget, [data] or run.randomness, and those that "
                "make a run a simulation"
            )
        if (other.measure, other.lower) != (first.measure, first.lower):
            raise Refused(
                "tune.by is missing, but these candidates' losses differ in their first measure: "
                f"{first.measure}, {other.measure}; name a measure that all candidates have"
            )
    seconds = sum(each.seconds for each in proposals) / len(proposals)
    return replace(first, seconds=seconds)


def _of_one(
    grid: Grid, cell: Cell, combinations: tuple[Cell, ...], repetitions: Repetitions
) -> Proposal:
    """Returns the proposal, computed from one of its combinations (`cell`), without client data."""
    assert grid.tune is not None
    if cell.config is None:
        raise Refused(f"{dict(cell.values)}: {cell.refusal}")
    config = replace(cell.config, chosen=Chosen(repetitions))
    before = priors(config)
    if before.spending and config.privacy.accountant == "pld":
        raise Refused(
            'privacy.accountant is "pld", but its bound on a choice among runs cannot be composed '
            'with earlier runs (privacy.prior); use "rdp" or "tightest"'
        )
    setup = prepare(config, before, load=load_representatives, begins=False)
    plan = setup.plan
    if plan.guarantee.epsilon == math.inf:
        raise Refused(
            f"{dict(cell.values)}: no accountant has a finite bound for a choice among such runs; "
            "add noise; if there are earlier runs, use a mechanism and a sampler for which RDP has "
            "a bound"
        )
    (event,) = plan.spent
    seconds = forecast(setup).seconds
    return Proposal(
        combinations, repetitions, plan, before, event, *score(grid.tune, setup), seconds
    )
