"""The matrix of combinations of parts: whether each has a proof, or why it is refused.

Each combination is completed to a configuration by the keys that its parts require. The combination
has a proof if the plan of a run with this configuration is not refused.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounting.events import Event
from defenses.types import RowRule
from privfed.config.assembly import assembled, named
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign
from privfed.core.errors import Refused
from privfed.core.registry import BUILT_IN
from privfed.plan.plan import plan

AXES = {
    "rule": "aggregation.rule",
    "protocol": "secure.protocol",
    "mechanism": "privacy.mechanism",
    "sampler": "cohort.sampler",
    "objective": "client.objective",
    "compression": "compression.name",
    "attack": "attack.name",
}
"""The keys of a run file that name the combined parts, by kind."""
_LENGTH = 1000
"""The assumed length of a message, on which distributed noise depends."""
_NOISE = 4.0
"""The noise multiplier unless one is configured; its value affects the existence of a proof only
through the cost of aborts."""


_PLAIN_SERVER = {"optimizer": "fedavg", "lr": 1.0}
"""The keys of [server] for objectives that refuse any other server optimizer."""


@dataclass(frozen=True)
class Combination:
    """A combination of parts.

    Attributes:
      choice: the names of the parts, by kind.
      config: the configuration; None if refused.
      event: the charge of a round; None if refused.
      reasons: the reasons for the refusal; empty if there is none.
      void: whether there is no guarantee because the simulated attackers read protected data.
    """

    choice: Mapping[str, str]
    config: Config | None
    event: Event | None
    reasons: tuple[str, ...] = ()
    void: bool = False

    @property
    def verdict(self) -> str:
        """The result: "refused", "no privacy" without a private mechanism, "void" or "proved".

        "void" is a private combination with the attribute `void`.
        """
        if self.event is None:
            return "refused"
        if not self.private:
            return "no privacy"
        return "void" if self.void else "proved"

    @property
    def private(self) -> bool:
        """Whether the mechanism is private; False without a configuration."""
        return self.config is not None and bool(self.config.mechanism.private)

    def to_json(self) -> dict[str, Any]:
        """Returns one of the objects under "cells" that `privfed check --matrix --json` prints."""
        event = self.event.to_json() if self.event else None
        return {**self.choice, "is": self.verdict, "event": event, "reasons": list(self.reasons)}


def combinations(written: Raw, axes: Mapping[str, Sequence[str]]) -> Iterator[Combination]:
    """Yields `combination` of `written` and each combination of the names in `axes`, by kind."""
    for names in itertools.product(*axes.values()):
        yield combination(written, dict(zip(axes, names, strict=True)))


def built_in(*kinds: str) -> dict[str, list[str]]:
    """Returns the names of all built-in parts, by kind, for these `kinds`."""
    return {kind: list(BUILT_IN[kind]) for kind in kinds}


def combination(written: Raw, choice: Mapping[str, str]) -> Combination:
    """Returns the combination of parts in `choice` (name by kind); other keys are as `written`.

    Keys that these parts require are added, and keys of other parts removed (`_complete`).
    """
    raw: Raw = copy.deepcopy(written)
    try:
        for kind, name in choice.items():
            assign(raw, AXES[kind], name)
        _complete(raw)
        config = assembled(raw)
        planned = plan(config, length=_LENGTH)
    except Refused as refused:
        return Combination(choice, None, None, tuple(str(refused).splitlines()))
    return Combination(choice, config, planned.event, void=planned.void is not None)


def _complete(raw: Raw) -> None:
    """Sets in `raw` the keys that its parts require, and removes keys that only others have."""
    for section in ("aggregation", "secure", "privacy", "cohort", "attack", "server"):
        raw.setdefault(section, {})
    parts = {kind: named(raw, kind) for kind in AXES}
    _complete_rule(raw["aggregation"], parts)
    _complete_attack(raw["attack"], parts)
    _complete_cohort(raw["cohort"], parts)
    if parts["objective"].server_step == "only_plain":
        raw["server"] = dict(_PLAIN_SERVER)
    if not parts["protocol"].hides_rows:
        for key in ("capacity", "minimum", "simulate"):
            raw["secure"].pop(key, None)
    if parts["mechanism"].trust != "sum":
        raw["privacy"].pop("against", None)
    if parts["mechanism"].private and "noise_multiplier" not in raw["privacy"]:
        assign(raw, "privacy.noise_multiplier", _NOISE)


def _complete_rule(aggregation: dict[str, Any], parts: Mapping[str, type[Any]]) -> None:
    """Sets a rule's bounds, and a root set if the rule requires one.

    Bounds that follow from the clipping norm of a mechanism are removed.
    """
    rule, mechanism = parts["rule"], parts["mechanism"]
    bounded_by_clip = mechanism.private and not (mechanism.joint or aggregation.get("before"))
    for key, usual in rule.follows_clip.items():
        if bounded_by_clip:
            aggregation.pop(key, None)
        elif usual is not None:
            aggregation[key] = usual
    needs = rule.model_construct().needs() if issubclass(rule, RowRule) else ()
    aggregation["root"] = (aggregation.get("root") or 20) if "root" in needs else 0


def _complete_attack(attack: dict[str, Any], parts: Mapping[str, type[Any]]) -> None:
    """Sets the fraction of attackers to 0.2 if none is set; without an attack, removes all keys."""
    if parts["attack"].model_construct().acts:
        attack["fraction"] = attack.get("fraction") or 0.2
    else:
        attack.clear()


def _complete_cohort(cohort: dict[str, Any], parts: Mapping[str, type[Any]]) -> None:
    """Sets the cohort size to 0 for samplers that derive it, and removes a 0 for all others."""
    if parts["sampler"].derives_size:
        cohort["size"] = 0
    elif not cohort.get("size", 1):
        del cohort["size"]


def numbered_reasons(matrix: Sequence[Combination]) -> dict[str, int]:
    """Returns a number, from 1, for each distinct `general_reason` of refused combinations."""
    refused = (general_reason(combined) for combined in matrix if combined.event is None)
    return {reason: number for number, reason in enumerate(dict.fromkeys(refused), start=1)}


def general_reason(refused: Combination) -> str:
    """Returns the first reason of a refusal, with the names of its parts replaced by "…"."""
    reason = refused.reasons[0]
    for name in refused.choice.values():
        reason = reason.replace(repr(name), "…")
    return reason
