"""Summarises a run for the list of runs: its progress, spending, metric and population.

Start and duration are derived from the times of the run's files. A copy has other times, and the
duration includes the pauses of a resumed run.
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
STOPPED_BY_BYZANTINE = "stopped by Byzantine clients"


def state_of(record: RunRecord) -> str:
    """Returns the run's state: "not begun", "running", "interrupted", "stopped …" or "ended"."""
    if record.locked:
        return RUNNING
    if not record.charges and not record.summary:
        return NOT_BEGUN
    if not record.summarised:
        return INTERRUPTED
    if record.summary.get("stopped_at_budget") is True:
        return STOPPED
    if record.summary.get("stopped_by_byzantine"):
        return STOPPED_BY_BYZANTINE
    if record.summary.get("stopped_early") is True:
        return ENDED
    rounds = planned_rounds(record)
    return INTERRUPTED if rounds is not None and record.charges < rounds else ENDED


def number_in(facts: Mapping[str, Any], key: str) -> float | None:
    """Returns the value of `key` in `facts` if it is a finite number; otherwise None."""
    value = _number(facts.get(key))
    return value if value is not None and math.isfinite(value) else None


def epsilon_in(facts: Mapping[str, Any]) -> float | None:
    """Returns the value of "epsilon" in `facts` if it is a number of at least 0, or infinite.

    None for any other value.
    """
    value = _number(facts.get("epsilon"))
    return None if value is None or math.isnan(value) or value < 0 else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


def planned_rounds(record: RunRecord) -> int | None:
    """Returns `run.rounds` in config.toml; None if it is not an integer."""
    rounds = record.setting("run", "rounds")
    return rounds if type(rounds) is int else None


def file_times(path: Path) -> tuple[str | None, float | None]:
    """Returns a run's start and duration in seconds, from its files' modification times.

    The files are the lock, configuration, ledger, metrics, checkpoint and summary. The start is the
    earliest of their times (ISO 8601, UTC), and the duration extends to the latest. Both are None
    if there are no files; the start is None if its date is invalid.
    """
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
    except (OSError, OverflowError, ValueError):  # no valid year
        return None, seconds
    return began.isoformat(timespec="milliseconds"), seconds


def epsilon_of(record: RunRecord) -> float | None:
    """Returns the ε spent, including counted earlier runs; None if the run had not begun.

    The ε is infinite if there is no guarantee. If the summary or the last line of the metrics
    covers all charges, the ε that it states is returned; otherwise ε is computed from the ledger.
    Raises `Broken` if the ledger cannot be accounted for.
    """
    ledger = record.opened_ledger
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


def uncovered_reason(record: RunRecord) -> str:
    """Returns the reason why ε does not cover the initial model; "" if ε does.

    Also "" if the run had not begun. Raises `Broken` if the ledger's terms cannot be read.
    """
    lineage = record.terms.get("lineage")
    fresh = isinstance(lineage, dict) and not (lineage.get("runs") or lineage.get("unknown"))
    if record.opened_ledger is None or fresh:
        return ""
    from privfed.plan.prior_spending import Priors  # imports accountants

    try:
        return Priors.from_terms(record.terms).uncovered
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger's terms cannot be read: {public_text(error)}") from None


def guarantees_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Returns each guarantee of a run as a JSON object, recomputed from the run's ledger.

    The first is the one to which the run's budget applies.

    The guarantee for examples of silos is that of a silo which took part in every round, since the
    silos' own ledgers are private. Raises `Broken` if the ledger cannot be accounted for.
    """
    try:
        return _accounted(ledger)
    except (AccountingError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Broken(f"the ledger cannot be accounted for: {public_text(error)}") from None


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
    """Returns the metrics of the last charged round; empty if not evaluated, or there is none."""
    charges = record.opened_ledger.charges if record.opened_ledger else ()
    return dict(record.evaluated.get(charges[-1].round, {})) if charges else {}


_NO_MEASURES = frozenset({"format", "round", "epsilon"})
"""Keys of a line of metrics.jsonl that are not metrics."""


@dataclass(frozen=True)
class RunRow(Encoded):
    """The summary of a run directory in the list of runs; values that no file states are None.

    Attributes:
      run: path of the run.
      id: id in the ledger, which copies of a run have in common.
      state: the state of the run, as `state_of` returns it.
      reason: the reason why a run is broken; else "".
      charges: number of charged rounds.
      rounds: number of planned rounds.
      epsilon: the ε spent, counted earlier runs included; infinite if there is no guarantee.
      guarantee: the reason why there is no guarantee; empty or None if there is one.
      uncovered: the reason why ε does not cover the initial model; empty or None if it does.
      nominal: whether the run is a simulation, so ε is nominal.
      note: a note, such as the reason why the run is a simulation.
      measure: name of the first metric.
      value: last value of that metric.
      constant: the metric of the baseline (best constant prediction).
      population: name of the population, or a digest that identifies it.
      population_digest: a digest that is equal for runs over the same population.
      began: start of the run, from the times of files (ISO 8601, UTC).
      seconds: duration, from the times of files.
      excluded: number of parties proved to be Byzantine in secure sums.
      lost_claims: the guarantees that do not hold because of these parties.
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
    population_digest: str | None = None
    mechanism: str | None = None
    began: str | None = None
    seconds: float | None = None
    ledger_head: str | None = None
    excluded: int = 0
    lost_claims: str | None = None


def row_at(path: Path) -> RunRow:
    """Returns the summary of the run at `path`; for a run with invalid files, states the reason."""
    try:
        return row_of(RunRecord.read(path))
    except PrivfedError as error:
        return _broken(path, str(error))
    except OSError as error:
        return _broken(path, public_text(error))


def row_of(record: RunRecord) -> RunRow:
    """Returns the summary of the run of `record`. Raises `Broken` for an invalid ledger."""
    terms = record.terms
    began, seconds = file_times(record.path)
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
        uncovered=uncovered_reason(record) or None,
        nominal=bool(terms.get("note")),
        note=_word(note),
        measure=measure,
        value=value,
        constant=constant,
        population=_population_name(record),
        population_digest=_population_digest(record),
        mechanism=_word(terms.get("mechanism") or record.setting("privacy", "mechanism")),
        began=began,
        seconds=seconds,
        ledger_head=record.head,
        excluded=len(record.culprits),
        lost_claims=_lost_claims(record),
    )


def _population_digest(record: RunRecord) -> str | None:
    """Returns a digest of the population in the ledger's terms; None if they state none."""
    stated = record.terms.get("population")
    if not isinstance(stated, dict) or not stated:
        return None
    text = json.dumps(normal(stated), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lost_claims(record: RunRecord) -> str | None:
    """Returns the guarantees that do not hold, from the summary; None if all hold."""
    stated = record.summary.get("lost_claims") if record.summarised else None
    return " ".join(map(str, stated)) or None if isinstance(stated, list) else None


def _population_name(record: RunRecord) -> str | None:
    """Returns the population's name or digest, from ledger or configuration; None if unstated."""
    stated = record.terms.get("population")
    named = stated.get("name") if isinstance(stated, dict) else None
    return _word(named) or _word(record.setting("data", "population"))


def measure_name(line: Mapping[str, Any]) -> str | None:
    """Returns the name of the first metric (a finite number) in a line or summary; or None."""
    names = (name for name in line if name not in _NO_MEASURES)
    return next((name for name in names if number_in(line, name) is not None), None)


def _measured(record: RunRecord) -> tuple[str | None, float | None, float | None]:
    """Returns name and value of the run's first metric, and the baseline's; None if unknown."""
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
    began, seconds = file_times(path)
    return RunRow(str(path), None, BROKEN, reason, epsilon=math.inf, began=began, seconds=seconds)


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
