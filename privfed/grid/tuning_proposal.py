"""What a private tuning will do and cost, known before anybody is drawn.

*What is released*: the directory of the best run by a score that is fixed here, and one line in a
ledger. *Mechanism*: K runs, K drawn from a public law and secret; each draws one combination of
`tune.over` uniformly, with replacement, and trains it afresh. *Sensitivity, relation, unit and
sampler*: those of a run. *Charged*: one event, `accounting.choosing.private_selection` of what each
run spends, which has to be the same for every combination: a bound on each is then one on their
mixture. The score is post-processing (`privfed.grid.tuning_proposal`).
(Papernot & Steinke 2022, Theorem 2; Koskela, Redberg & Wang 2024.)

By what candidates are compared: what clients measured and was charged, or the public test set.

Both are post-processing of what a run releases.
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
from privfed.config.chosen import Chosen
from privfed.config.config import Config
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
    """The measure to choose by, and whether less is better. Raises `Refused` for no measure.

    Without `tune.by`, the first that clients measure, or the loss's own.
    """
    charged = _charged(setup)
    by = tuning.by or next(iter(charged), "")
    if by in charged:
        lower = tuning.lower_is_better
        return by, charged[by] if lower is None else lower
    if setup.plan.config.nothing_public and by not in charged:
        instead = f"tune.by = {next(iter(charged))!r}" if charged else 'evaluation.by = "clients"'
        raise Refused(
            f'data.holdout = "none" leaves no example to score candidates by'
            f"{f' ({by!r})' if by else ''}: let clients do it, and charge it ({instead})"
        )
    network = setup.network
    measure, lower = tuning_measure(by, tuning.lower_is_better, network.loss)
    known = {network.loss.measure, "loss"}
    if measure not in known and len(setup.federation.test):
        known |= {*network.evaluate(network.initial_params, setup.federation.test)}
    if measure not in known:
        names = [*charged, *sorted(known)]
        raise Refused(f"tune.by is {measure!r}, which is no measure; {expected(measure, names)}")
    return measure, lower


def score_of(outcome: Mapping[str, Any], measure: str) -> float | None:
    """The `measure` of a run that ended so; None where it has no such number."""
    if not measure.startswith(PREFIX):
        return number_or_none(outcome.get(measure))
    estimate = outcome.get("clients", {}).get(measure.removeprefix(PREFIX), {})
    return number_or_none(estimate.get("value"))


def _charged(setup: Setup) -> dict[str, bool]:
    """The measures that clients make, and whether less of each is better."""
    measures = setup.executor.measures
    if measures is None:
        return {}
    return {
        f"{PREFIX}{each.title(measures.row.scoring)}": each.lower_is_better
        for each in measures.row.measures
    }


_EACH = 3.0
"""How many candidates there are on average for each combination, unless it is configured."""


@dataclass(frozen=True)
class Proposal:
    """A tuning that would be accepted: the combinations, and what choosing among them costs.

    `plan` is that of a candidate, whose noise makes the whole spend the budget; `event` is what is
    charged, once. A run is the better by `measure`, of which less is better where `lower`, and
    takes about so many `seconds`.
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
        """The configuration of a candidate, for all that candidates have in common."""
        return self.plan.config

    @property
    def guarantee(self) -> Guarantee:
        """What the release of the best run guarantees, earlier runs included."""
        return self.plan.guarantee

    @property
    def single(self) -> Guarantee:
        """What a single run with the same noise would guarantee by itself."""
        privacy = self.config.privacy
        alone = self.plan.spending(self.config.run.rounds)
        return guarantee(alone, privacy.delta, privacy.accountant)

    @property
    def promise(self) -> tuple[Any, ...]:
        """What is promised to whom, and in what sense: the same for every combination."""
        config, privacy = self.config, self.config.privacy
        asked = (privacy.epsilon, privacy.delta, privacy.accountant)
        people = (config.data, config.source, config.partition, config.shift)
        sense = (config.run.randomness, self.plan.simulation, self.plan.void, self.plan.assumed)
        return (self.event, self.before, asked, people, sense)

    @property
    def seeded(self) -> bool:
        """Whether it is a simulation, whose draws all follow from the seed."""
        return self.config.run.randomness == "seeded"

    @property
    def tried(self) -> float:
        """The probability that a given combination is tried at all."""
        return 1.0 - self.repetitions.generating(1.0 - 1.0 / len(self.cells))

    @property
    def digest(self) -> str:
        """What is fixed before the first run: combinations, law, score."""
        stated = [
            sorted(cell.name for cell in self.cells),
            self.repetitions.to_json(),
            [self.measure, self.lower],
        ]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()

    def better(self, scores: Sequence[float]) -> int:
        """The place of the best of `scores`, the first of several."""
        return scores.index((min if self.lower else max)(scores))

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed experiment --dry-run --json` prints of it."""
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
    """What the tuning of `grid` will do and cost; reads the data's form, and trains nothing.

    Raises `Refused`, with the combination, where one of them cannot run, spends something else than
    the others, or is scored by a measure that it has not.
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
                f"{dict(cell.values)} promises something else, or to other people, than "
                f"{dict(combinations[0].values)}: all that is chosen from has to have one and the "
                "same spending over one population, all secret or all simulations; leave keys that "
                "change rounds, cohort, noise, budget, [data] or run.randomness, or make a run a "
                "simulation, out of tune.over"
            )
        if (other.measure, other.lower) != (first.measure, first.lower):
            raise Refused(
                f"tune.by is missing, and these losses have several measures: {first.measure}, "
                f"{other.measure}; name one that all of them have"
            )
    seconds = sum(each.seconds for each in proposals) / len(proposals)
    return replace(first, seconds=seconds)


def _of_one(
    grid: Grid, cell: Cell, combinations: tuple[Cell, ...], repetitions: Repetitions
) -> Proposal:
    """The proposal as it looks from one of its combinations, without its people."""
    assert grid.tune is not None
    if cell.config is None:
        raise Refused(f"{dict(cell.values)}: {cell.refusal}")
    config = replace(cell.config, chosen=Chosen(repetitions))
    before = priors(config)
    if before.spending and config.privacy.accountant == "pld":
        raise Refused(
            'privacy.accountant is "pld", whose bound on a choice among runs composes with no '
            'earlier runs (privacy.prior); use "rdp" or "tightest"'
        )
    setup = prepare(config, before, load=load_representatives)
    plan = setup.plan
    if plan.guarantee.epsilon == math.inf:
        raise Refused(
            f"{dict(cell.values)}: no accountant bounds a choice among such runs; add noise or, "
            "with earlier runs, use a mechanism and a sampler that RDP bounds"
        )
    (event,) = plan.spent
    seconds = forecast(setup).seconds
    return Proposal(
        combinations, repetitions, plan, before, event, *score(grid.tune, setup), seconds
    )
