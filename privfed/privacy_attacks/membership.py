"""Membership inference on a run's final model, over all users or examples (simulation only).

A configuration is run several times on random subsets of the clients or examples: each target is
left out with probability 1/2. Each run in turn is attacked, with the other runs as its shadow
models. An existing run is attacked as it is: its clients are the members, and its public test set,
which took no part in training, supplies the non-members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.guarantee import Guarantee
from attacks.privacy.membership import (
    RULES,
    Shadows,
    confidence,
    leave_one_out,
    lira_offline,
    means_of,
)
from attacks.privacy.roc import Roc, roc
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.config.config import Config
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.models.network import Network
from privfed.run.prepare import prepare
from privfed.run.rehearsal import keeping, rehearse
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory

Level = Literal["user", "example"]
Progress = Callable[[int, int], None]
"""A callback that receives the number of finished runs and the number of all runs."""
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TargetScores:
    """Losses and confidence statistics `[s, t]` of t examples, or users (means), under s models."""

    losses: Reals
    statistics: Reals

    def joined(self, other: TargetScores) -> TargetScores:
        """Returns the scores of these targets, then those of `other`, under the same models."""
        pairs = ((self.losses, other.losses), (self.statistics, other.statistics))
        return TargetScores(*(np.concatenate(pair, axis=1) for pair in pairs))


def target_scores(
    net: Network, models: Sequence[Tensor], examples: Examples, offsets: Indices, level: Level
) -> TargetScores:
    """Returns the scores of the targets under each model.

    Args:
      net: the network.
      models: flat parameters, each of shape `[d]`.
      examples: the examples to score.
      offsets: user i owns the examples `offsets[i]:offsets[i + 1]`; users without any are left out.
      level: "example" scores each example, "user" averages over a user's examples.
    """
    losses = np.stack([_losses(net, params, examples) for params in models])
    scores = TargetScores(losses, confidence(losses))
    if level == "example":
        return scores
    held = np.unique(offsets)
    means = ([means_of(row, held) for row in rows] for rows in (scores.losses, scores.statistics))
    return TargetScores(*map(np.stack, means))


def _losses(net: Network, params: Tensor, examples: Examples) -> Reals:
    """Returns each example's loss `[N]` in float64; float32 is too coarse for confident models."""
    losses = [
        net.loss.losses(outputs.double(), y.double() if y.is_floating_point() else y)
        for outputs, y in net.scored(params, examples)
    ]
    return np.asarray(torch.cat(losses).cpu().numpy(), dtype=np.float64)


def models_on_halves(
    setup: Setup, level: Level, runs: int, seed: int, rounds: int, show: Progress
) -> tuple[list[Tensor], Flags]:
    """Trains `runs` models; each example, or user with any, is in each with probability 1/2.

    Returns:
      The final models, each of shape `[d]`, and the membership of targets, bool `[runs, targets]`.

    Raises:
      Refused: if a run would have no member.
    """
    population = setup.federation
    sizes = np.diff(population.client_offsets)
    sizes = sizes[sizes > 0]
    targets = len(sizes) if level == "user" else len(population.examples)
    inside = fair_bits(seed, "membership", runs, targets)
    models = []
    for run, chosen in enumerate(inside):
        show(run, runs)
        if not chosen.any():
            raise Refused(
                f"one of {runs} runs has no member, because of the inclusion bits; use more "
                "clients, or another --seed"
            )
        included = np.repeat(chosen, sizes) if level == "user" else chosen
        run_seed = Streams(seed).at("membership/run", run).integer()
        models.append(rehearse(setup, keeping(population, included), run_seed, rounds).params)
    return models, inside


def fair_bits(seed: int, stream: str, runs: int, targets: int) -> Flags:
    """Returns fair bits, bool `[runs, targets]`, from the random stream `stream` of `seed`."""
    return Streams(seed).at(stream).generator().random((runs, targets)) < 0.5


def outsiders(
    config: Config, population: Federation, level: str, seed: int, path: Path
) -> tuple[Examples, Indices]:
    """Returns the public test examples and their division into users, who are non-members.

    If the run's clients were formed at random, test examples are drawn at random for users of the
    same sizes, as many as the test set suffices for. Otherwise the owners stated by the data source
    are used. At level "example" all test examples are returned, and the offsets have no meaning.

    Returns:
      The examples, and their users' offsets, of shape `[users + 1]` (as in `target_scores`).

    Raises:
      Refused: if features are shifted by client, users of test examples are unknown or took part in
        training, or the first random user needs more test examples than there are.
    """
    test, rest = population.test, f"attack {path / 'config.toml'} instead, which leaves clients out"
    partition = config.partition
    if config.shift.moves_features:
        raise Refused(
            f"data.shift is {config.names['shift']!r}, but a client's examples were shifted "
            "together and public test examples one by one, which would distinguish members from "
            f"non-members; {rest}"
        )
    if level == "example":
        return test, np.array([0, len(test)])
    if population.shared:
        raise Refused(
            'data.holdout is "examples", so that the test set is of clients that trained and no '
            f"client is a non-member; use --level example, or {rest}"
        )
    if partition.by_chance:
        return _assigned(population, seed)
    if partition.natural and test.owners is not None:
        order = np.argsort(test.owners, kind="stable")
        starts = np.unique(test.owners[order], return_index=True)[1]
        return test.take(order), np.append(starts, len(test)).astype(np.int64)
    raise Refused(
        f"data.partition is {config.names['partition']!r}, but the clients of the public test "
        f"examples are unknown, so that non-members cannot resemble the run's clients; {rest}"
    )


def _assigned(population: Federation, seed: int) -> tuple[Examples, Indices]:
    """Returns shuffled test examples, divided into users of the clients' sizes, and offsets."""
    rng = Streams(seed).at("membership/outsiders").generator()
    sizes = np.diff(population.client_offsets)
    ends = np.cumsum(rng.permutation(sizes[sizes > 0]))
    ends = ends[ends <= len(population.test)]
    if not len(ends):
        raise Refused(
            f"the {len(population.test)} public test examples are fewer than one client of this "
            "run holds; raise data.holdout_fraction, or use --level example"
        )
    chosen = rng.permutation(len(population.test))[: ends[-1]]
    return population.test.take(chosen), np.concatenate([[0], ends]).astype(np.int64)


@dataclass(frozen=True)
class Exposure:
    """The success of each attack at distinguishing members from non-members.

    Attributes:
      path: the attacked run or run file, if any.
      level: unit of a target.
      curves: the ROC curve of each attack, by name.
      targets: number of targets, members and non-members; each is one trial per attacked run.
      attacked: number of attacked runs.
      shadows: number of shadow models per attacked run.
      seed: seed of the random subsets of targets that models were trained on.
      guarantee: the run's stated user-level guarantee.
      examples: the guarantee for one example of a client; None if clients train without DP-SGD.
      measure: name of the first measure on the test set.
      score: value of `measure`, a mean over the attacked runs.
      others: a description of the non-members.
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
    """Attacks `shadows` + 1 runs of `config`, each with the others as its shadow models.

    Args:
      config: the configuration to run.
      level: unit of a target.
      shadows: number of shadow models per attacked run.
      seed: seed of the subsets and of the runs.
      show: receives the progress.
      path: the run file, named in the report.

    Raises:
      Refused: if the configuration cannot run, a run would have no member, or no run a non-member.
    """
    before = priors(config)
    setup = prepare(config, before)
    rounds = config.run.rounds
    models, inside = models_on_halves(setup, level, shadows + 1, seed, rounds, show)
    population = setup.federation.at(rounds)
    of_targets = target_scores(
        setup.network, models, population.examples, population.client_offsets, level
    )
    runs = Shadows(of_targets.statistics, inside)
    scores = {"loss": -of_targets.losses}
    scores |= {name: leave_one_out(rule, runs) for name, rule in RULES.items()}
    measures = [setup.network.evaluate(model, population.test) for model in models]
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
        others=f"{level}s left out of a run, each with probability 1/2",
    )


def attack_run(path: Path, level: Level, shadows: int, seed: int, show: Progress) -> Exposure:
    """Attacks the model of the run at `path`, which is left unchanged.

    LiRA is used offline. Shadow models train on random halves of the run's clients or examples, and
    never on the test set. Members are compared with the shadow models trained without them, and
    non-members with a random half of these models, so that both scores are equally informative.

    Args:
      path: the run directory.
      level: unit of a target.
      shadows: number of shadow models.
      seed: seed of the subsets and of the shadow runs.
      show: receives the progress.

    Raises:
      Refused: if no round was trained, a shadow run would have no member, or `outsiders` refuses.
      Broken: if the run's audit states a problem or no guarantee.
    """
    setup, last, claimed = _finished_run(path)
    population = setup.federation.at(last.round)
    test, offsets = outsiders(setup.plan.config, population, level, seed, path)
    models, inside = models_on_halves(setup, level, shadows, seed, last.round, show)
    models.append(last.state.params)
    members = target_scores(
        setup.network, models, population.examples, population.client_offsets, level
    )
    others = target_scores(setup.network, models, test, offsets, level)
    both = members.joined(others)
    ignored = fair_bits(seed, "membership/others", shadows, others.losses.shape[1])
    of_shadows = Shadows(both.statistics[:-1], np.concatenate([inside, ignored], axis=1))
    scores = {
        "loss": -both.losses[-1],
        "lira_offline": lira_offline(both.statistics[-1], of_shadows),
    }
    member = np.arange(both.losses.shape[1]) < inside.shape[1]
    measure, score = next(iter(setup.network.evaluate(last.state.params, population.test).items()))
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
        others=(
            f"{level}s of the public test set, assumed to have the distribution of the "
            "clients' data"
        ),
    )


def _finished_run(path: Path) -> tuple[Setup, Checkpoint, tuple[Guarantee, Guarantee | None]]:
    """Returns a trained run's setup, its last checkpoint, and its user and example guarantees."""
    directory = RunDirectory.open(path)
    config = directory.config.read()
    if not directory.checkpoint.round():
        raise Refused(
            f"{path} has trained no round yet, so that there is nothing to attack; resume the run "
            "first"
        )
    claimed = audit(path)
    if claimed.guarantee is None or claimed.problems:
        raise Broken(f"{path}: {'; '.join(claimed.problems)}")
    setup = prepare(config, constants=directory.constants.read())
    last = Checkpoint.load(directory, setup.network, setup.network.initial_params.device)
    return setup, last, (claimed.guarantee, claimed.examples)


def _roc(scores: Reals, member: Flags) -> Roc:
    """Returns the ROC curve over all trials. Raises `Refused` if all or none are of members."""
    if member.all() or not member.any():
        raise Refused(
            f"all {member.size} trials are members, or all are non-members, so that the attack "
            "cannot be scored; use more clients, more --shadows, or another --seed"
        )
    return roc(scores.ravel(), member.ravel())
