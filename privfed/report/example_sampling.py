"""The table that compares sampling of examples (ELS) with sampling of clients (ULS)."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from privfed.core.text import ceiling
from privfed.plan.calibration.example_sampling import (
    SampledGroups,
    SamplingComparison,
    gradient_ratio,
)

_COLUMNS = ("examples", "rate", "ELS multiplier", "ELS noise", "ULS multiplier", "ULS noise")


def sampling_report(comparison: SamplingComparison) -> RenderableType:
    """Returns the noise by number of examples per client, the answer, and the assumptions."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    uls = {each.examples: each for each in comparison.uls}
    least = comparison.best_els.noise

    def cells(each: SampledGroups | None) -> tuple[str, str]:
        if each is None:
            return "", ""
        return ceiling(each.noise_multiplier), f"{each.noise / least:.3f}"

    for each in comparison.els:
        table.add_row(
            str(each.examples), f"{each.rate:.3g}", *cells(each), *cells(uls.get(each.examples))
        )
    return Group(table, "", *(Text(line) for line in _notes(comparison)))


def _notes(comparison: SamplingComparison) -> Iterator[str]:
    """Yields the answer, the meaning of the columns, and the limits of the comparison."""
    question = comparison.question
    yield f"less noise: {_answer(comparison)}"
    if comparison.break_even is not None:
        yield (
            "ULS with two or more examples has less noise than the best ELS if the gradient ratio "
            f"is below {comparison.break_even:.2f}"
        )
    yield (
        f"each row: ε = {question.epsilon:g} at δ = {question.delta:g} over {question.rounds} "
        f"rounds, unit client, add/remove; secret batches of {question.batch} expected examples"
    )
    yield (
        "examples: of a client; ELS trains on no others in any round, ULS draws as many anew in "
        "each round"
    )
    yield "noise: standard deviation in the average gradient, relative to the best ELS"
    yield (
        "gradient ratio: norm of a client's average gradient over many examples / of an example's; "
        f"assumed is {gradient_ratio(question):g}"
    )
    yield (
        "privfed samples clients (ULS); it does not run ELS, which is DP-SGD on examples that a "
        "trusted server pools"
    )


def _answer(comparison: SamplingComparison) -> str:
    """Returns which sampling has less noise, and the difference."""
    els, uls = comparison.best_els.examples, comparison.best_uls.examples
    if comparison.better == "equal":
        return f"equal (ELS with {_counted(els)}, ULS with {_counted(uls)})"
    by = abs(1 - comparison.relative)
    if comparison.better == "uls":
        return f"ULS with {_counted(uls)}, {by:.0%} less than ELS with {_counted(els)}"
    by = 1 - 1 / comparison.relative
    return f"ELS with {_counted(els)}, {by:.0%} less than ULS with {_counted(uls)}"


def _counted(examples: int) -> str:
    return "1 example" if examples == 1 else f"{examples} examples"
