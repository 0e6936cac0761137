"""One draw with one mechanism: the noise that it leaves on the model, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting.events import REPLACE_ONE
from privfed.config.config import Config
from privfed.plan.advice.assumptions import assumptions, membership
from privfed.plan.plan import Plan
from privfed.privacy.noise_on_model import noise_on_model, remembered_rows
from privfed.privacy.solved_for_run import InBands
from privfed.sampling.cohort import InGroups


@dataclass(frozen=True)
class Alternative:
    """The plan of a run with these `keys`, in numbers.

    `noise_on_model` is the rms deviation over rounds on the sums of releases, in clips. `remembers`
    counts rows of past noise, as long as a message. `assumes` maps promises to what they mean here.
    """

    sampler: str
    mechanism: str
    keys: Mapping[str, Any]
    noise_multiplier: float
    noise_on_model: float
    epsilon: float
    relation: str
    remembers: int
    assumes: Mapping[str, str]
    membership: str

    @property
    def ranked(self) -> bool:
        """Whether its epsilon stands beside those of clients who come or go, or contribute zero."""
        return self.relation != REPLACE_ONE

    def to_json(self) -> dict[str, Any]:
        """One of the objects under "alternatives" that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Unavailable:
    """A draw with a mechanism that has no number here: `lacks` promises, or for a `reason`."""

    sampler: str
    mechanism: str
    reason: str
    lacks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One of the objects under "unavailable" that `--json` prints."""
        return asdict(self)


def alternative_of(plan: Plan, keys: Mapping[str, Any]) -> Alternative | None:
    """What the `plan` of a run with these `keys` comes to; None where its noise is not known."""
    config, mechanism = plan.config, plan.mechanism
    noise = noise_on_model(mechanism, max(plan.training_rounds, 1), config.sampler.size)
    if noise is None or plan.noise_multiplier is None:
        return None
    return Alternative(
        sampler=config.names["sampler"],
        mechanism=config.names["mechanism"],
        keys=_solved_keys(config, keys),
        noise_multiplier=plan.noise_multiplier,
        noise_on_model=noise,
        epsilon=plan.guarantee.epsilon,
        relation=plan.event.relation,
        remembers=remembered_rows(mechanism),
        assumes=assumptions(plan.cost.witness),
        membership=membership(plan.event.relation, config.data.clients),
    )


def _solved_keys(config: Config, keys: Mapping[str, Any]) -> dict[str, Any]:
    """`keys` with the numbers of groups and bands that were solved for where they are left open."""
    solved = dict(keys)
    if isinstance(config.sampler, InGroups) and "cohort.groups" in keys:
        solved["cohort.groups"] = config.sampler.possible_groups()[0]
    if isinstance(config.mechanism, InBands) and "privacy.bands" in keys:
        solved["privacy.bands"] = config.mechanism.bands
    return solved
