"""How far a run is, by its files."""

from __future__ import annotations

from privfed.overview.run_facts import RunFacts

RUNNING, INTERRUPTED, ENDED = "running", "interrupted", "ended"
STOPPED, BROKEN, NOT_BEGUN = "stopped at budget", "broken", "not begun"
STOPPED_BY_LIARS = "stopped by liars"


def state_of(facts: RunFacts) -> str:
    """Whether the run goes on, and if not, how it ended."""
    if facts.held:
        return RUNNING
    if not facts.charges and not facts.summary:
        return NOT_BEGUN
    if not facts.summarised:
        return INTERRUPTED
    if facts.summary.get("stopped_at_budget") is True:
        return STOPPED
    if facts.summary.get("stopped_by_liars"):
        return STOPPED_BY_LIARS
    if facts.summary.get("stopped_early") is True:
        return ENDED
    rounds = planned_rounds(facts)
    return INTERRUPTED if rounds is not None and facts.charges < rounds else ENDED


def planned_rounds(facts: RunFacts) -> int | None:
    """The rounds that config.toml asks for; None where it states no whole number."""
    rounds = facts.setting("run", "rounds")
    return rounds if type(rounds) is int else None
