"""What people see of advice: draws and mechanisms beside each other, and what each rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from privfed.core.text import ceiling
from privfed.plan.calibration.advice import PROMISES, Advice, Alternative, relative


def advice_report(advice: Advice) -> RenderableType:
    """A table of all alternatives, least noise first, and what the words in it mean."""
    return Group(_table(advice), "", *(Text(line) for line in _notes(advice)))


def _table(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("draw, noise", "on the model", "multiplier", "relation", "rows kept", "rests on"):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    others = sorted(advice.ranked, key=lambda each: each.noise_on_model)
    yours = [advice.yours] if advice.yours else []
    for each in (*yours, *others, *advice.apart):
        share = relative(each, advice.reference)
        table.add_row(
            f"yours: {_name(each)}" if each is advice.yours else _name(each),
            "—" if share is None else f"{share:.3f}",
            ceiling(each.noise_multiplier),
            each.relation,
            str(each.remembers),
            ", ".join(each.assumes) or "nothing",
        )
    for none in advice.unavailable:
        why = f"not promised: {', '.join(none.lacks)}" if none.lacks else "not here, see below"
        table.add_row(f"{none.sampler}, {none.mechanism}", "", "", "", "", why)
    return table


_NUMBERS = ("on the model", "multiplier", "rows kept")


def _name(each: Alternative) -> str:
    bands = each.keys.get("privacy.bands")
    over = f" ({bands} bands)" if bands else ""
    return f"{each.sampler}, {each.mechanism}{over}"


def _notes(advice: Advice) -> Iterator[str]:
    """What the columns say, what a promise means, and how to take the best."""
    reference = advice.reference
    if reference is not None:
        whose = "yours" if advice.yours else f"{reference.sampler} and {reference.mechanism} noise"
        yield (
            f"on the model: the noise on sums of releases over all rounds, beside that of {whose}; "
            "rows kept: earlier noise, as long as so many messages"
        )
    for promise in _promises(advice):
        yield f"{promise}: {PROMISES[promise]}"
    if any(each.relation == "zero-out" for each in advice.ranked):
        yield "zero-out: the clients are a public list; what is hidden is all that one contributes"
    yield from (
        f"{none.sampler}, {none.mechanism}: {none.reason}"
        for none in advice.unavailable
        if not none.lacks
    )
    yield from _where_buffers_pay(advice)
    if advice.ranked:
        keys = ", ".join(
            f"{key} = {_written(value)}" for key, value in advice.ranked[0].keys.items()
        )
        yield f"the least: {keys}"


def _promises(advice: Advice) -> list[str]:
    """The promises that anything in the table rests on, in their usual order."""
    named = {name for each in (*advice.ranked, *advice.apart) for name in each.assumes}
    named |= {name for none in advice.unavailable for name in none.lacks}
    return [promise for promise in PROMISES if promise in named]


def _where_buffers_pay(advice: Advice) -> Iterator[str]:
    """What buffers save of memory beside bands of the same draw, and what they cost in noise."""
    for buffers in advice.ranked:
        for bands in advice.ranked:
            same = buffers.sampler == bands.sampler and "privacy.bands" in bands.keys
            fewer = 0 < buffers.remembers < bands.remembers
            if same and fewer and "privacy.bands" not in buffers.keys:
                more = buffers.noise_on_model / bands.noise_on_model - 1
                yield (
                    f"{buffers.mechanism} keeps {buffers.remembers} rows where "
                    f"{bands.mechanism} keeps {bands.remembers}, for {more:.0%} more noise"
                )


def _written(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
