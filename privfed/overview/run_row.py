"""One run in a line: how far it is, what it spent and measures, and whom it is about."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privfed.config.population_identity import normal
from privfed.errors import PrivfedError, public_text
from privfed.overview.run_facts import RunFacts, number_in, read_facts
from privfed.overview.spending import epsilon_of, uncovered_of
from privfed.overview.state import BROKEN, planned_rounds, state_of
from privfed.overview.times import times_of

_NO_MEASURES = frozenset({"format", "round", "epsilon"})
"""Numbers of a line of the metrics that measure no model."""


@dataclass(frozen=True)
class RunRow:
    """A run directory in a line; what its files do not state is None.

    `id` is the ledger's, which copies share. `reason` says why a run is broken. `charges` are
    rounds paid for, `rounds` those planned. `epsilon` covers earlier runs that the ledger counts;
    it is infinite where nothing is promised, of which `guarantee` may say why. `nominal`: `note`
    says why it describes a simulation. `excluded` counts parties proved to lie in secure sums, and
    `lost_claims` says what no longer holds for it. `constant` is the `value` that the best constant
    answer has of the `measure`. Runs whose `people` are equal are about the same ones. `began` and
    `seconds` are from files' times.
    """

    run: str
    id: str | None
    state: str
    reason: str = ""
    charges: int = 0
    rounds: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    relation: str | None = None
    sampler: str | None = None
    against: str | None = None
    trust: str | None = None
    accountant: str | None = None
    guarantee: str | None = None
    uncovered: str | None = None
    nominal: bool = False
    note: str | None = None
    measure: str | None = None
    value: float | None = None
    constant: float | None = None
    population: str | None = None
    people: str | None = None
    mechanism: str | None = None
    began: str | None = None
    seconds: float | None = None
    ledger_head: str | None = None
    excluded: int = 0
    lost_claims: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)


def row_at(path: Path) -> RunRow:
    """The run at `path`; of one that is broken, why."""
    try:
        return row_of(read_facts(path))
    except PrivfedError as error:
        return _broken(path, str(error))
    except OSError as error:
        return _broken(path, public_text(error))


def row_of(facts: RunFacts) -> RunRow:
    """A run whose files were read. Raises `Broken` where its ledger cannot be accounted."""
    terms = facts.terms
    began, seconds = times_of(facts.path)
    measure, value, constant = _measured(facts)
    note = terms.get("note") or (facts.summary.get("note") if facts.summarised else None)
    return RunRow(
        run=str(facts.path),
        id=_word(terms.get("id")),
        state=state_of(facts),
        charges=facts.charges,
        rounds=planned_rounds(facts),
        epsilon=epsilon_of(facts),
        delta=number_in(terms, "delta"),
        unit=_word(terms.get("unit")),
        relation=_word(terms.get("relation")),
        sampler=_word(terms.get("sampler")),
        against=_word(terms.get("against")),
        trust=_word(terms.get("trust")),
        accountant=_word(terms.get("accountant")),
        guarantee=_word(terms.get("guarantee")),
        uncovered=uncovered_of(facts) or None,
        nominal=bool(terms.get("note")),
        note=_word(note),
        measure=measure,
        value=value,
        constant=constant,
        population=_population_name(facts),
        people=_people_digest(facts),
        mechanism=_word(terms.get("mechanism") or facts.setting("privacy", "mechanism")),
        began=began,
        seconds=seconds,
        ledger_head=facts.head,
        excluded=facts.excluded,
        lost_claims=_lost_claims(facts),
    )


def _people_digest(facts: RunFacts) -> str | None:
    """A digest of whom a run is about, as ledgers are compared: name and unit."""
    stated = facts.terms.get("population")
    if not isinstance(stated, dict) or not stated:
        return None
    text = json.dumps(normal(stated), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lost_claims(facts: RunFacts) -> str | None:
    """What the summary says no longer holds."""
    stated = facts.summary.get("lost_claims") if facts.summarised else None
    return " ".join(map(str, stated)) or None if isinstance(stated, list) else None


def _population_name(facts: RunFacts) -> str | None:
    """What a run's population is called: its name, or else the digest that identifies it."""
    stated = facts.terms.get("population")
    named = stated.get("name") if isinstance(stated, dict) else None
    return _word(named) or _word(facts.setting("data", "population"))


def measure_name(line: Mapping[str, Any]) -> str | None:
    """The measure to look at, which the summary and each line of the metrics state first."""
    names = (name for name in line if name not in _NO_MEASURES)
    return next((name for name in names if number_in(line, name) is not None), None)


def _measured(facts: RunFacts) -> tuple[str | None, float | None, float | None]:
    """The run's measure, its value at last, and that of the best constant answer."""
    line = facts.summary if facts.summarised else {}
    if not line and facts.evaluated:
        line = facts.evaluated[max(facts.evaluated)]
    name = measure_name(line)
    if name is None:
        return None, None, None
    constant = line.get("constant")
    known = constant if isinstance(constant, Mapping) else {}
    return name, number_in(line, name), number_in(known, name)


def _broken(path: Path, reason: str) -> RunRow:
    began, seconds = times_of(path)
    return RunRow(str(path), None, BROKEN, reason, epsilon=math.inf, began=began, seconds=seconds)


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
