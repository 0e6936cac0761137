"""Membership inference on what a run ends with, over all users or all examples (simulation only).

A configuration is run several times, on people of whom each target is left out by a fair coin, and
every run in turn is attacked with the others as its shadows. A run that exists is attacked as it
is: its clients are the members, its public test set, who took no part, the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.guarantee import Guarantee
from attacks.membership import RULES, Shadows, confidence, leave_one_out, means_of
from attacks.roc import Roc, roc
from privfed.assemble import Setup, assemble
from privfed.audit import audit
from privfed.config import Config
from privfed.errors import Broken, Refused
from privfed.federation import Examples, Indices
from privfed.network import Network
from privfed.outsiders import outsiders
from privfed.plan import plan
from privfed.prior import priors
from privfed.rehearsal import keeping, rehearse
from privfed.rundir import RunDirectory
from privfed.streams import Streams

Level = Literal["user", "example"]
Told = Callable[[int, int], None]
"""Runs done, of how many."""
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Exposure:
    """How well each attack, by name, told members from non-members; at `level`.

    `targets` were each a trial in `attacked` runs, by the side of `shadows` others. `guarantee` is
    the user-level claim and `examples` that about one example of a silo, if any. `score` is the
    first measure on the test set, a mean over the attacked runs. `others` says who non-members are.
    """

    of: Path | None
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


@dataclass(frozen=True)
class _Scored:
    """Mean losses and statistics of targets, each `[s, t]`, under s models."""

    losses: Reals
    statistics: Reals


def attack_configuration(
    config: Config, level: Level, shadows: int, seed: int, told: Told, of: Path | None = None
) -> Exposure:
    """Attack `shadows` + 1 runs of `config`, each with the others as its shadows.

    Raises `Refused` where the configuration cannot run, or a coin leaves nobody on a side.
    """
    before = priors(config)
    setup = assemble(plan(config, before.spending, before.examples))
    params, inside = _rehearsed(setup, level, shadows + 1, seed, config.run.rounds, told)
    people = setup.federation.at(config.run.rounds)
    found = _under(setup.network, params, people.examples, _groups(people.offsets, level))
    runs = Shadows(found.statistics, inside)
    scores = {"loss": -found.losses}
    scores |= {name: leave_one_out(rule, runs) for name, rule in RULES.items()}
    measures = [setup.network.evaluate(one, people.test) for one in params]
    measure = next(iter(measures[0]))
    return Exposure(
        of=of,
        level=level,
        curves={name: _roc(each.ravel(), inside.ravel()) for name, each in scores.items()},
        targets=inside.shape[1],
        attacked=shadows + 1,
        shadows=shadows,
        seed=seed,
        guarantee=setup.plan.guarantee,
        examples=setup.plan.examples(config.run.rounds),
        measure=measure,
        score=float(np.mean([one[measure] for one in measures])),
        others=f"{level}s left out of a run by a fair coin each",
    )


def attack_run(path: Path, level: Level, shadows: int, seed: int, told: Told) -> Exposure:
    """Attack the model of the run at `path`, which stays as it is.

    LiRA is offline: shadows are trained without some of the run's clients, never on the test set.
    Non-members are compared with a random half of the shadows too, as members are with those that
    are without them, so that neither side's scores say more than the other's.

    Raises `Refused` where the test set has nobody like the run's targets, `Broken` where the ledger
    proves nothing.
    """
    directory = RunDirectory.open(path)
    config = directory.read_config()
    claimed = audit(path)
    if claimed.guarantee is None or claimed.problems:
        raise Broken(f"{path}: {'; '.join(claimed.problems)}")
    if not directory.has_checkpoint():
        raise Refused(f"{path} has no checkpoint: its run had not begun")
    setup = assemble(plan(config), directory.read_constants())
    last = directory.load_checkpoint(setup.network, setup.network.start.device)
    if not last.round:
        raise Refused(f"{path} has trained no round yet; there is nothing to attack")
    people = setup.federation.at(last.round)
    test, offsets = outsiders(config, people, level, seed, path)
    params, inside = _rehearsed(setup, level, shadows, seed, last.round, told)
    sides = [
        _under(setup.network, [*params, last.state.params], *side)
        for side in (
            (people.examples, _groups(people.offsets, level)),
            (test, _groups(offsets, level)),
        )
    ]
    losses = np.concatenate([side.losses for side in sides], axis=1)
    statistics = np.concatenate([side.statistics for side in sides], axis=1)
    ignored = _coins(seed, "membership/others", shadows, sides[1].losses.shape[1])
    known = Shadows(statistics[:-1], np.concatenate([inside, ignored], axis=1))
    member = np.arange(losses.shape[1]) < inside.shape[1]
    scores = {"loss": -losses[-1], "lira_offline": RULES["lira_offline"](statistics[-1], known)}
    measures = setup.network.evaluate(last.state.params, people.test)
    measure, score = next(iter(measures.items()))
    return Exposure(
        of=path,
        level=level,
        curves={name: _roc(each, member) for name, each in scores.items()},
        targets=len(member),
        attacked=1,
        shadows=shadows,
        seed=seed,
        guarantee=claimed.guarantee,
        examples=claimed.examples,
        measure=measure,
        score=score,
        others=f"{level}s of the public test set, taken to be drawn as the clients' data were",
    )


def _rehearsed(
    setup: Setup, level: Level, runs: int, seed: int, rounds: int, told: Told
) -> tuple[list[Tensor], NDArray[np.bool_]]:
    """The final models `[d]` of `runs` runs, and who was inside, `[runs, targets]`."""
    people = setup.federation
    sizes = people.sizes(np.arange(people.clients))
    coins = _coins(
        seed,
        "membership",
        runs,
        int((sizes > 0).sum()) if level == "user" else len(people.examples),
    )
    models = []
    for run, coin in enumerate(coins):
        told(run, runs)
        kept = np.repeat(coin, sizes[sizes > 0]) if level == "user" else coin
        if not kept.any():
            raise Refused(
                f"coins leave nobody in one of {runs} runs; take more clients, or another --seed"
            )
        own = Streams(seed).at("membership/run", run).integer()
        models.append(rehearse(setup, keeping(people, kept), own, rounds).params)
    told(runs, runs)
    return models, coins


def _under(
    net: Network, models: list[Tensor], examples: Examples, groups: Indices | None
) -> _Scored:
    """What every target scores under each of `models`; targets are groups of examples, or each."""
    losses = np.stack([_losses(net, params, examples) for params in models])
    statistics = confidence(losses)
    if groups is None:
        return _Scored(losses, statistics)
    means = [[means_of(row, groups) for row in of] for of in (losses, statistics)]
    return _Scored(np.stack(means[0]), np.stack(means[1]))


def _losses(net: Network, params: Tensor, examples: Examples) -> Reals:
    """The loss of each example `[N]`, in float64, as a confident model's would be cut off."""
    losses = [
        net.loss.losses(outputs.double(), y.double() if y.is_floating_point() else y)
        for outputs, y in net.scored(params, examples)
    ]
    return np.asarray(torch.cat(losses).cpu().numpy(), dtype=np.float64)


def _groups(offsets: Indices, level: Level) -> Indices | None:
    """Where the examples of each user who holds any begin and end; None: each for itself."""
    return np.unique(offsets) if level == "user" else None


def _coins(seed: int, stream: str, runs: int, targets: int) -> NDArray[np.bool_]:
    return Streams(seed).at(stream).generator().random((runs, targets)) < 0.5


def _roc(scores: Reals, member: NDArray[np.bool_]) -> Roc:
    if member.all() or not member.any():
        raise Refused(
            f"all of {len(member)} trials are on one side, so nothing can be told apart; take more "
            "clients, more --shadows, or another --seed"
        )
    return roc(scores, member)
