"""One run in a line: how far it is, what it spent and measures, and whom it is about.

When a run began and how long it took, as the times of its files say.

A copy has times of its own, and the pauses of a run that was resumed count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accounting.documents import Encoded
from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.config.population_identity import normal
from privfed.core.errors import Broken, PrivfedError, public_text
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord

RUNNING, INTERRUPTED, ENDED = "running", "interrupted", "ended"
STOPPED, BROKEN, NOT_BEGUN = "stopped at budget", "broken", "not begun"
STOPPED_BY_LIARS = "stopped by liars"


def state_of(record: RunRecord) -> str:
    """Whether the run goes on, and if not, how it ended."""
    if record.held:
        return RUNNING
    if not record.charges and not record.summary:
        return NOT_BEGUN
    if not record.summarised:
        return INTERRUPTED
    if record.summary.get("stopped_at_budget") is True:
        return STOPPED
    if record.summary.get("stopped_by_liars"):
        return STOPPED_BY_LIARS
    if record.summary.get("stopped_early") is True:
        return ENDED
    rounds = planned_rounds(record)
    return INTERRUPTED if rounds is not None and record.charges < rounds else ENDED


def number_in(facts: Mapping[str, Any], key: str) -> float | None:
    """The finite number that stands under `key`; None for anything else."""
    value = _number(facts.get(key))
    return value if value is not None and math.isfinite(value) else None


def epsilon_in(facts: Mapping[str, Any]) -> float | None:
    """The ε that a line of a run's files states, which may be infinite; None for no number."""
    value = _number(facts.get("epsilon"))
    return None if value is None or math.isnan(value) or value < 0 else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


def planned_rounds(record: RunRecord) -> int | None:
    """The rounds that config.toml asks for; None where it states no whole number."""
    rounds = record.setting("run", "rounds")
    return rounds if type(rounds) is int else None


def times_of(path: Path) -> tuple[str | None, float | None]:
    """When the first of a run's files was written, and seconds until the last."""
    directory = RunDirectory(path)
    last = (directory.ledger, directory.metrics.path, directory.checkpoint.path, directory.summary)
    times = []
    for file in (path / ".lock", directory.config.path, *last):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_mtime)
    if not times:
        return None, None
    seconds = round(max(times) - min(times), 3)
    try:
        began = datetime.fromtimestamp(min(times), UTC)
    except (OSError, OverflowError, ValueError):  # no year that a calendar has
        return None, seconds
    return began.isoformat(timespec="milliseconds"), seconds


def epsilon_of(record: RunRecord) -> float | None:
    """The ε spent, earlier runs that the ledger counts included; None before a ledger is open.

    It is infinite where nothing is promised. The summary's and the metrics' figure is taken where
    they are about all charges of the ledger. Raises `Broken` where the ledger cannot be accounted.
    """
    ledger = record.begun
    if ledger is None:
        return None
    if record.terms.get("guarantee"):
        return math.inf
    for line in (record.summary if record.summarised else {}, _last_line(record)):
        if (epsilon := epsilon_in(line)) is not None:
            return epsilon
    if not ledger.spending:
        return 0.0
    return float(guarantees_of(ledger)[0]["epsilon"])


def uncovered_of(record: RunRecord) -> str:
    """Why no ε covers what the starting model tells of the same people; "" where it does."""
    lineage = record.terms.get("lineage")
    fresh = isinstance(lineage, dict) and not (lineage.get("runs") or lineage.get("unknown"))
    if record.begun is None or fresh:
        return ""
    from privfed.plan.prior_spending import Priors  # which imports accountants

    try:
        return Priors.stated(record.terms).uncovered
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger's terms cannot be read: {public_text(error)}") from None


def guarantees_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Each guarantee of a run, re-computed from its ledger: the headline is the first.

    What single examples of silos were charged is bounded as if one silo had always taken part:
    their own ledgers are private. Raises `Broken` where the ledger cannot be accounted.
    """
    try:
        return _accounted(ledger)
    except (AccountingError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger cannot be accounted: {public_text(error)}") from None


def _accounted(ledger: Ledger) -> list[dict[str, Any]]:
    from accounting.guarantee import stated
    from privfed.plan import composed_guarantees, prior_spending

    terms = ledger.terms
    before, _ = composed_guarantees.counted_priors(terms)
    bounds = [composed_guarantees.ledger_guarantee(ledger, terms["accountant"])]
    if silos := terms.get("examples"):
        charged = prior_spending.charged_under(ledger, "examples")
        bounds.append(
            composed_guarantees.examples_guarantee(
                charged, before.runs, silos["delta"], before.uncovered
            )
        )
    if other := terms.get("other"):
        charged, party = prior_spending.charged_under(ledger, "other"), str(other["against"])
        bounds.append(
            composed_guarantees.other_guarantee(
                charged,
                party,
                before.runs,
                terms["delta"],
                before.uncovered,
                composed_guarantees.clients_of(terms),
            )
        )
    void = terms.get("guarantee")
    if void:
        bounds = [replace(each, epsilon=math.inf) for each in bounds]
    return stated(*bounds, void=void)


def _last_line(record: RunRecord) -> dict[str, Any]:
    """The metrics at the last charge; nothing where that round was not evaluated."""
    charges = record.begun.charges if record.begun else ()
    return dict(record.evaluated.get(charges[-1].round, {})) if charges else {}


_NO_MEASURES = frozenset({"format", "round", "epsilon"})
"""Numbers of a line of the metrics that measure no model."""


@dataclass(frozen=True)
class RunRow(Encoded):
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


def row_at(path: Path) -> RunRow:
    """The run at `path`; of one that is broken, why."""
    try:
        return row_of(RunRecord.read(path))
    except PrivfedError as error:
        return _broken(path, str(error))
    except OSError as error:
        return _broken(path, public_text(error))


def row_of(record: RunRecord) -> RunRow:
    """A run whose files were read. Raises `Broken` where its ledger cannot be accounted."""
    terms = record.terms
    began, seconds = times_of(record.path)
    measure, value, constant = _measured(record)
    note = terms.get("note") or (record.summary.get("note") if record.summarised else None)
    return RunRow(
        run=str(record.path),
        id=_word(terms.get("id")),
        state=state_of(record),
        charges=record.charges,
        rounds=planned_rounds(record),
        epsilon=epsilon_of(record),
        delta=number_in(terms, "delta"),
        unit=_word(terms.get("unit")),
        relation=_word(terms.get("relation")),
        sampler=_word(terms.get("sampler")),
        against=_word(terms.get("against")),
        trust=_word(terms.get("trust")),
        accountant=_word(terms.get("accountant")),
        guarantee=_word(terms.get("guarantee")),
        uncovered=uncovered_of(record) or None,
        nominal=bool(terms.get("note")),
        note=_word(note),
        measure=measure,
        value=value,
        constant=constant,
        population=_population_name(record),
        people=_people_digest(record),
        mechanism=_word(terms.get("mechanism") or record.setting("privacy", "mechanism")),
        began=began,
        seconds=seconds,
        ledger_head=record.head,
        excluded=len(record.culprits),
        lost_claims=_lost_claims(record),
    )


def _people_digest(record: RunRecord) -> str | None:
    """A digest of whom a run is about, as ledgers are compared: name and unit."""
    stated = record.terms.get("population")
    if not isinstance(stated, dict) or not stated:
        return None
    text = json.dumps(normal(stated), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lost_claims(record: RunRecord) -> str | None:
    """What the summary says no longer holds."""
    stated = record.summary.get("lost_claims") if record.summarised else None
    return " ".join(map(str, stated)) or None if isinstance(stated, list) else None


def _population_name(record: RunRecord) -> str | None:
    """What a run's population is called: its name, or else the digest that identifies it."""
    stated = record.terms.get("population")
    named = stated.get("name") if isinstance(stated, dict) else None
    return _word(named) or _word(record.setting("data", "population"))


def measure_name(line: Mapping[str, Any]) -> str | None:
    """The measure to look at, which the summary and each line of the metrics state first."""
    names = (name for name in line if name not in _NO_MEASURES)
    return next((name for name in names if number_in(line, name) is not None), None)


def _measured(record: RunRecord) -> tuple[str | None, float | None, float | None]:
    """The run's measure, its value at last, and that of the best constant answer."""
    line = record.summary if record.summarised else {}
    if not line and record.evaluated:
        line = record.evaluated[max(record.evaluated)]
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
