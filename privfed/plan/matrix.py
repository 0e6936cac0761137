"""What goes with what: every cell proved or refused, derived from what the parts declare.

Nothing here is written by hand but the keys that a part cannot do without: a cell is a
configuration, and whether it has a proof is asked of the same plan that a run has to pass.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounting.events import CHANGE, Event
from defenses.types import RowRule, SumRule
from privfed.config.assembly import assembled, named
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign
from privfed.errors import Refused
from privfed.parts import BUILT_IN
from privfed.plan.plan import Plan, plan
from privfed.plan.rule import rule_of
from privfed.round.algorithm import exchanges

AXES = {
    "rule": "aggregation.rule",
    "protocol": "secure.protocol",
    "mechanism": "privacy.mechanism",
    "sampler": "cohort.sampler",
    "objective": "client.objective",
    "attack": "attack.name",
}
"""What is combined: kind of part -> the key that names it."""
_LENGTH = 1000
"""Of a message, where distributed noise asks for it."""


@dataclass(frozen=True)
class Cell:
    """One combination: the event of a round that has a proof, or the reasons why there is none.

    `void`: it runs, and guarantees nothing, since attackers read what is to be protected.
    """

    choice: Mapping[str, str]
    config: Config | None
    event: Event | None
    reasons: tuple[str, ...] = ()
    void: bool = False

    @property
    def said(self) -> str:
        """In a word or two."""
        if self.event is None:
            return "refused"
        if not self.private:
            return "no privacy"
        return "void" if self.void else "proved"

    @property
    def private(self) -> bool:
        """Whether its epsilon is finite."""
        return self.config is not None and bool(self.config.mechanism.private)

    def to_json(self) -> dict[str, Any]:
        event = self.event.to_json() if self.event else None
        return {**self.choice, "is": self.said, "event": event, "reasons": list(self.reasons)}


def cells(written: Raw, axes: Mapping[str, Sequence[str]]) -> Iterator[Cell]:
    """Each combination of `axes` (kind -> names), else as `written`; see `cell`."""
    for names in itertools.product(*axes.values()):
        yield cell(written, dict(zip(axes, names, strict=True)))


def every(*kinds: str) -> dict[str, list[str]]:
    """All built-in parts of these kinds."""
    return {kind: list(BUILT_IN[kind]) for kind in kinds}


def cell(written: Raw, choice: Mapping[str, str]) -> Cell:
    """These parts (kind -> name), and for the rest the keys as `written`."""
    raw: Raw = copy.deepcopy(written)
    try:
        for kind, name in choice.items():
            assign(raw, AXES[kind], name)
        _complete(raw)
        config = assembled(raw)
        found = plan(config, length=_LENGTH)
    except Refused as refused:
        return Cell(choice, None, None, tuple(str(refused).splitlines()))
    return Cell(choice, config, found.event, void=found.void is not None)


def _complete(raw: Raw) -> None:
    """Set the keys that its parts cannot do without; drop those that other parts left behind."""
    aggregation, secure = raw.setdefault("aggregation", {}), raw.setdefault("secure", {})
    privacy, cohort = raw.setdefault("privacy", {}), raw.setdefault("cohort", {})
    attack, parts = raw.setdefault("attack", {}), {kind: named(raw, kind) for kind in AXES}
    rule, mechanism, rows = parts["rule"], parts["mechanism"], bool(aggregation.get("before"))
    for key, usual in rule.follows_clip.items():
        if mechanism.private and not rows:
            aggregation.pop(key, None)
        elif usual is not None:
            aggregation[key] = usual
    needs = rule.model_construct().needs() if issubclass(rule, RowRule) else ()
    aggregation["root"] = (aggregation.get("root") or 20) if "root" in needs else 0
    if not parts["protocol"].hides_rows:
        for key in ("capacity", "minimum", "simulate"):
            secure.pop(key, None)
    if mechanism.trust != "sum":
        privacy.pop("against", None)
    if not parts["attack"].model_construct().acts:
        attack.clear()
    else:
        attack["fraction"] = attack.get("fraction") or 0.2
    if parts["sampler"].derives_size:
        cohort["size"] = 0
    elif not cohort.get("size", 1):
        del cohort["size"]
    if "noise_multiplier" not in privacy and mechanism.private:
        # Whether there is a proof hangs on epsilon only where it pays for aborts.
        assign(raw, "privacy.noise_multiplier", 4.0)


def numbered(found: Sequence[Cell]) -> dict[str, int]:
    """The first reason of each refused cell, but for the names of its parts, and its number."""
    numbers: dict[str, int] = {}
    for one in found:
        if one.event is None:
            numbers.setdefault(general(one), len(numbers) + 1)
    return numbers


def general(refused: Cell) -> str:
    """Why it is refused, in words that fit other cells too."""
    reason = refused.reasons[0]
    for name in refused.choice.values():
        reason = reason.replace(repr(name), "…")
    return reason


def why(found: Plan) -> str:
    """How the proof of a run follows from what its parts declare."""
    config, mechanism = found.config, found.mechanism
    rule, name = rule_of(config), config.names["rule"]
    relation, clip = found.event.relation, config.mechanism.clip
    if mechanism.trust == "client":
        return (
            f"each client's own noise covers its clipped row, so that {name} and all else that is "
            "done with rows or sums is post-processing"
        )
    assert isinstance(rule, SumRule)
    bounded = "rows are clipped"
    if rule.sensitivity(CHANGE[relation]) < math.inf:
        bounded = "its terms are bounded"
    first = " at first" if mechanism.adaptive else ""
    said = f"{name} needs sums alone, which noise may be added to: {bounded} to {clip:g}{first}"
    releases = exchanges(config.objective, rule)
    if releases > 1:
        said += f"; {releases} sums over one cohort are one event, of noise z / sqrt({releases})"
    if config.secured:
        said += f"; {config.names['protocol']} carry sums, and the norm is that of what they carry"
    return said
