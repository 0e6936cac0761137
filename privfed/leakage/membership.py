"""Membership inference on what a run ends with, over all users or all examples (simulation only).

A configuration is run several times, on people of whom each target is left out by a fair coin, and
every run in turn is attacked with the others as its shadows. A run that exists is attacked as it
is: its clients are the members, its public test set, who took no part, the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accounting.guarantee import Guarantee
from attacks.privacy.membership import RULES, Shadows, leave_one_out, lira_offline
from attacks.privacy.roc import Roc, roc
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.config.config import Config
from privfed.errors import Broken, Refused
from privfed.leakage.outsiders import outsiders
from privfed.leakage.targets import (
    Flags,
    Level,
    Progress,
    Reals,
    fair_coins,
    models_on_halves,
    target_scores,
)
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class Exposure:
    """How well each attack, by name, told members from non-members at `level`.

    `path` is the run or run file that was attacked, if any. Each of `targets` was a trial in
    `attacked` runs, beside `shadows` other runs. `guarantee` is the user-level claim; `examples` is
    that about one example of a silo, if any. `score` is the first `measure` on the test set, a mean
    over the attacked runs. `others` says who the non-members are.
    """

    path: Path | None
    level: Level
    curves: dict[str, Roc]
    targets: int
    attacked: int
    shadows: int
    seed: int
    guarantee: Guarantee
    examples: Guarantee | None
    measure: str
    score: float
    others: str


def attack_configuration(
    config: Config,
    level: Level,
    shadows: int,
    seed: int,
    show: Progress,
    path: Path | None = None,
) -> Exposure:
    """Attack `shadows` + 1 runs of `config`, each with the others as its shadows.

    `path` is the run file that it was read from, to be named in the report.

    Raises `Refused` where the configuration cannot run, or a coin leaves nobody on a side.
    """
    before = priors(config)
    setup = prepare(config, before)
    rounds = config.run.rounds
    models, inside = models_on_halves(setup, level, shadows + 1, seed, rounds, show)
    people = setup.federation.at(rounds)
    of_targets = target_scores(setup.network, models, people.examples, people.client_offsets, level)
    runs = Shadows(of_targets.statistics, inside)
    scores = {"loss": -of_targets.losses}
    scores |= {name: leave_one_out(rule, runs) for name, rule in RULES.items()}
    measures = [setup.network.evaluate(model, people.test) for model in models]
    measure = next(iter(measures[0]))
    return Exposure(
        path=path,
        level=level,
        curves={name: _roc(of_attack, inside) for name, of_attack in scores.items()},
        targets=inside.shape[1],
        attacked=len(models),
        shadows=shadows,
        seed=seed,
        guarantee=setup.plan.guarantee,
        examples=setup.plan.examples(rounds),
        measure=measure,
        score=float(np.mean([by_name[measure] for by_name in measures])),
        others=f"{level}s left out of a run by a fair coin each",
    )


def attack_run(path: Path, level: Level, shadows: int, seed: int, show: Progress) -> Exposure:
    """Attack the model of the run at `path`, which stays as it is.

    LiRA is offline: shadows are trained without some of the run's clients, never on the test set.
    Non-members are compared with a random half of the shadows too, as members are with those that
    are without them, so that neither side's scores say more than the other's.

    Raises `Refused` where the test set has nobody like the run's targets, `Broken` where the ledger
    proves nothing.
    """
    setup, last, claimed = _finished_run(path)
    people = setup.federation.at(last.round)
    test, offsets = outsiders(setup.plan.config, people, level, seed, path)
    models, inside = models_on_halves(setup, level, shadows, seed, last.round, show)
    models.append(last.state.params)
    members = target_scores(setup.network, models, people.examples, people.client_offsets, level)
    others = target_scores(setup.network, models, test, offsets, level)
    both = members.beside(others)
    ignored = fair_coins(seed, "membership/others", shadows, others.losses.shape[1])
    of_shadows = Shadows(both.statistics[:-1], np.concatenate([inside, ignored], axis=1))
    scores = {
        "loss": -both.losses[-1],
        "lira_offline": lira_offline(both.statistics[-1], of_shadows),
    }
    member = np.arange(both.losses.shape[1]) < inside.shape[1]
    measure, score = next(iter(setup.network.evaluate(last.state.params, people.test).items()))
    return Exposure(
        path=path,
        level=level,
        curves={name: _roc(of_attack, member) for name, of_attack in scores.items()},
        targets=len(member),
        attacked=1,
        shadows=shadows,
        seed=seed,
        guarantee=claimed[0],
        examples=claimed[1],
        measure=measure,
        score=score,
        others=f"{level}s of the public test set, taken to be drawn as the clients' data were",
    )


def _finished_run(path: Path) -> tuple[Setup, Checkpoint, tuple[Guarantee, Guarantee | None]]:
    """The run at `path`, where it stands, and what its ledger guarantees of users and examples."""
    directory = RunDirectory.open(path)
    config = directory.config.read()
    if not directory.checkpoint.round():
        raise Refused(f"{path} has trained no round yet: there is nothing to attack")
    claimed = audit(path)
    if claimed.guarantee is None or claimed.problems:
        raise Broken(f"{path}: {'; '.join(claimed.problems)}")
    setup = prepare(config, constants=directory.constants.read())
    last = Checkpoint.load(directory, setup.network, setup.network.initial_params.device)
    return setup, last, (claimed.guarantee, claimed.examples)


def _roc(scores: Reals, member: Flags) -> Roc:
    """The curve over all trials, of any shape. Raises `Refused` where all are on one side."""
    if member.all() or not member.any():
        raise Refused(
            f"all of {member.size} trials are on one side, so nothing can be told apart; take more "
            "clients, more --shadows, or another --seed"
        )
    return roc(scores.ravel(), member.ravel())
