"""The facts of a run as the cells of a table."""

from __future__ import annotations

from datetime import datetime

from privfed.overview.run_row import BROKEN, RunRow
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.text import ceiling, duration, measure, number

NOTHING = "—"
_DIGEST = 64


def on_a_line(text: str) -> str:
    """`text`, which may be somebody else's words, with its line breaks and tabs spelt out."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def rounds_cell(row: RunRow) -> str:
    """Rounds charged, of those planned."""
    if row.state == BROKEN:
        return NOTHING
    return f"{row.charges} of {row.rounds if row.rounds is not None else '?'}"


def epsilon_cell(row: RunRow) -> str:
    """The ε spent; a dash where there is no ledger to say."""
    return NOTHING if row.epsilon is None or row.state == BROKEN else ceiling(row.epsilon)


def nominal_mark(row: RunRow) -> str:
    """A mark beside the ε of a simulation."""
    return "(nominal)" if row.nominal else ""


def meaning_line(row: RunRow) -> str:
    """What an ε is about: two with different lines are not compared."""
    parts = [
        f"at δ = {number(row.delta)}",
        f"for one {row.unit}",
        str(row.relation),
        f"{row.sampler} sampling",
        f"by {row.accountant}",
    ]
    parts += [f"against {party(row.against, row.trust)}"]
    parts += [f"nominal: {row.note}"] if row.nominal else []
    parts += [f"nothing is promised: {row.guarantee}"] if row.guarantee else []
    parts += [f"not covered: the start ({row.uncovered})"] if row.uncovered else []
    return ", ".join(parts)


def party(against: str | None, trust: str | None) -> str:
    """Against whom an ε holds, as the ledger states it or whom the mechanism trusts."""
    if against:
        return PARTY_WORDS.get(against, against)
    return "everybody, the server too" if trust == "client" else "all but a trusted server"


def measure_cell(row: RunRow) -> str:
    """The measure and its value."""
    if row.measure is None or row.value is None:
        return NOTHING
    return f"{row.measure} {measure(row.measure, row.value)}"


def constant_cell(row: RunRow) -> str:
    """The best constant answer, where it is known."""
    if row.measure is None or row.constant is None:
        return ""
    return f"constant {measure(row.measure, row.constant)}"


def population_cell(row: RunRow) -> str:
    """The population's name; of a digest, its beginning."""
    name = row.population or NOTHING
    return f"{name[:8]}…" if len(name) == _DIGEST and name.isalnum() else name


def time_cells(row: RunRow) -> tuple[str, str]:
    """When the run began, by the clock here, and how long it took."""
    if row.began is None:
        return NOTHING, ""
    began = datetime.fromisoformat(row.began).astimezone()
    this_year = began.year == datetime.now().astimezone().year
    took = "" if row.seconds is None else duration(row.seconds)
    return began.strftime("%m-%d %H:%M" if this_year else "%Y-%m-%d"), took
