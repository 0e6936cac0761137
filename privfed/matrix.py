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

from accounting.events import Event
from defenses.types import SumRule
from privfed.aggregation import rule_of
from privfed.config import Config, Raw, assembled, assign
from privfed.errors import Refused
from privfed.parts import BUILT_IN
from privfed.plan import Plan, plan
from privfed.round import exchanges

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
"""Of a message, where distributed noise asks for it; whether there is a proof hangs on none."""


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
        if self.void:
            return "void"
        return "proved" if self.private else "no privacy"

    @property
    def private(self) -> bool:
        """Whether its epsilon is finite."""
        return self.config is not None and bool(self.config.parts["mechanism"].private)

    def to_json(self) -> dict[str, Any]:
        event = self.event.to_json() if self.event else None
        return {**self.choice, "is": self.said, "event": event, "reasons": list(self.reasons)}


def cells(base: Config, axes: Mapping[str, Sequence[str]]) -> Iterator[Cell]:
    """`base` with each combination of `axes` (kind -> names); other parts as `base` has them."""
    for names in itertools.product(*axes.values()):
        yield cell(base, dict(zip(axes, names, strict=True)))


def every(*kinds: str) -> dict[str, list[str]]:
    """All built-in parts of these kinds."""
    return {kind: list(BUILT_IN[kind]) for kind in kinds}


def cell(base: Config, choice: Mapping[str, str]) -> Cell:
    """`base` with these parts (kind -> name)."""
    raw: Raw = copy.deepcopy(base.values())
    try:
        for kind, name in choice.items():
            assign(raw, AXES[kind], name)
        _complete(raw, base)
        config = assembled(raw)
        found = plan(config, length=_LENGTH)
    except Refused as refused:
        return Cell(choice, None, None, tuple(str(refused).splitlines()))
    return Cell(choice, config, found.event, void=found.void is not None)


def _complete(raw: Raw, base: Config) -> None:
    """Keys without which a part could not run, or that another part left behind."""
    aggregation, private = raw["aggregation"], raw["privacy"]["mechanism"] != "none"
    if aggregation["rule"] in ("norm_bound", "centered_clipping"):
        aggregation.pop("radius", None)
        aggregation |= {} if private else {"radius": 1.0}
    if aggregation["rule"] == "geometric_median" and private:
        aggregation.pop("smoothing", None)
    aggregation["root"] = (base.aggregation.root or 20) if aggregation["rule"] == "fltrust" else 0
    attack = raw["attack"]
    attack["fraction"] = (base.attack.fraction or 0.2) if attack["name"] != "none" else 0.0
    if attack["name"] == "none":
        attack |= {"selection": "once", "stage": "auto"}
    if raw["cohort"]["sampler"] in ("full", "cyclic"):
        raw["cohort"]["size"] = 0
    else:
        raw["cohort"]["size"] = base.parts["sampler"].size
    if base.privacy.noise_multiplier is None:  # whether there is a proof hangs on no epsilon
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
    relation, clip = found.event.relation, config.parts["mechanism"].clip
    if mechanism.trust == "client":
        return (
            f"each client's own noise covers its clipped row, so that {name} and all else that is "
            "done with rows or sums is post-processing"
        )
    assert isinstance(rule, SumRule)
    bounded = "rows are clipped"
    if rule.sensitivity(relation) < math.inf:
        bounded = "its terms are bounded"
    said = f"{name} needs sums alone, which noise may be added to: {bounded} to {clip:g}"
    releases = exchanges(config.parts["objective"], rule)
    if releases > 1:
        said += f"; {releases} sums over one cohort are one event, of noise z / sqrt({releases})"
    if config.names["protocol"] != "none":
        said += f"; {config.names['protocol']} carry sums, and the norm is that of what they carry"
    return said
