"""The console tables that `privfed calibrate` and `privfed check --advise` print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from accounting.statement import each_epsilon
from privfed.core.text import ceiling
from privfed.plan.calibration.advice import PROMISES, Advice, Alternative, relative
from privfed.plan.calibration.answer import CalibrationAnswer
from privfed.plan.calibration.example_sampling import (
    SampledGroups,
    SamplingComparison,
    gradient_ratio,
)
from privfed.privacy.noise_on_model import SolvedForRun, stored_noise_rows
from privfed.report.tables import counted, overflow_text, party_rows, rows, two_sided


def advice_report(advice: Advice) -> RenderableType:
    """Returns a table of samplers and noise mechanisms, with explanations of the table's terms.

    The sampler and mechanism of the run file, if there is one, are first; the others follow by
    increasing noise.
    """
    return Group(_table(advice), "", *(Text(line) for line in _notes(advice)))


def _table(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (
        "sampler, noise",
        "on the model",
        "multiplier",
        "adjacency",
        "rows kept",
        "assumptions",
    ):
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
        why = (
            f"not promised: {', '.join(none.lacks)}" if none.lacks else ("not available, see below")
        )
        table.add_row(f"{none.sampler}, {none.mechanism}", "", "", "", "", why)
    return table


_NUMBERS = ("on the model", "multiplier", "rows kept")


def _name(each: Alternative) -> str:
    bands = each.keys.get("privacy.bands")
    over = f" ({bands} bands)" if bands else ""
    return f"{each.sampler}, {each.mechanism}{over}"


def _notes(advice: Advice) -> Iterator[str]:
    """Yields explanations of columns, assumptions and refusals, and the keys with least noise."""
    reference = advice.reference
    if reference is not None:
        whose = "yours" if advice.yours else f"{reference.sampler} and {reference.mechanism} noise"
        yield (
            "on the model: standard deviation of the noise in the sum of releases, relative to "
            f"that of {whose}; rows kept: number of stored rows of earlier noise"
        )
    for promise in _promises(advice):
        yield f"{promise}: {PROMISES[promise]}"
    if any(each.relation == "zero-out" for each in advice.ranked):
        yield "zero-out: the list of clients is public; a neighbouring dataset has zeros for one"
    yield from (
        f"{none.sampler}, {none.mechanism}: {none.reason}"
        for none in advice.unavailable
        if not none.lacks
    )
    yield from _where_buffers_reduce_noise(advice)
    if advice.ranked:
        keys = ", ".join(
            f"{key} = {_written(value)}" for key, value in advice.ranked[0].keys.items()
        )
        yield f"smallest noise: {keys}"


def _promises(advice: Advice) -> list[str]:
    """Returns the assumptions on which at least one alternative depends, in `PROMISES`' order."""
    named = {name for each in (*advice.ranked, *advice.apart) for name in each.assumes}
    named |= {name for none in advice.unavailable for name in none.lacks}
    return [promise for promise in PROMISES if promise in named]


def _where_buffers_reduce_noise(advice: Advice) -> Iterator[str]:
    """Yields notes that compare mechanisms without "privacy.bands" to banded ones, by sampler.

    A note is yielded if the former stores fewer rows of earlier noise, though at least one. It
    states both numbers of rows, and the additional noise of the former in percent.
    """
    for buffers in advice.ranked:
        for bands in advice.ranked:
            same = buffers.sampler == bands.sampler and "privacy.bands" in bands.keys
            fewer = 0 < buffers.remembers < bands.remembers
            if same and fewer and "privacy.bands" not in buffers.keys:
                more = buffers.noise_on_model / bands.noise_on_model - 1
                yield (
                    f"{buffers.mechanism} stores {buffers.remembers} rows instead of the "
                    f"{bands.remembers} of {bands.mechanism}, for {more:.0%} more noise"
                )


def _written(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


_HONEST = "added by honest clients"


def calibration_table(answer: CalibrationAnswer) -> Table:
    """Returns a table of noise, ε, rounds and cohort; the one that was solved for is marked."""
    question, bound = answer.question, answer.bound
    numbers = {
        "noise multiplier": ("noise_multiplier", ceiling(question.noise_multiplier)),
        "ε": ("epsilon", f"{bound.rows()['ε']} ({question.accountant})"),
        "accountants": ("", each_epsilon(bound.by_accountant)),
        "rounds": ("rounds", str(question.rounds)),
        "cohort": ("cohort", _draw(answer)),
    }
    return rows(
        {
            **{
                title: f"{text}  (solved for)" if name == answer.solved else text
                for title, (name, text) in numbers.items()
            },
            **_correlated_row(answer),
            **_sum_rows(answer),
            **_colluders_row(answer),
            "meaning": f"{question.mechanism}: unit {bound.unit}, {bound.relation}, "
            f"{question.sampler} sampling",
            **({"warning": answer.warning} if answer.warning else {}),
        }
    )


def _correlated_row(answer: CalibrationAnswer) -> dict[str, str]:
    """Returns a table row on the correlation of noise over rounds; empty if there is none."""
    question, mechanism = answer.question, answer.cost.mechanism
    if not isinstance(mechanism, SolvedForRun):
        return {}
    groups = question.groups or 1
    divided = f"; clients are in {groups} public groups" if groups > 1 else ""
    remembered = counted(stored_noise_rows(mechanism), "row")
    return {"correlated": f"{mechanism.span()}, storing {remembered} of noise{divided}"}


def _colluders_row(answer: CalibrationAnswer) -> dict[str, str]:
    """Returns a row on the largest number of colluders; empty unless pairs share noise."""
    count = answer.colluders
    return {} if count is None else party_rows("clients", None, count)


def _draw(answer: CalibrationAnswer) -> str:
    """Describes the sampling: cohort, if stated, and sampling rate; or a period above 1 alone."""
    question, witness = answer.question, answer.cost.witness
    if witness.period > 1:
        return f"once in {witness.period} rounds"
    if question.cohort is not None:
        return f"{question.cohort} of {question.population} clients (q = {witness.rate:g})"
    return f"q = {witness.rate:g}"


def _sum_rows(answer: CalibrationAnswer) -> dict[str, str]:
    """Returns table rows on a secure sum: guarantees, noise and bytes of each party, aborts.

    Unless parties add shares of the noise, only rows on sites and aborts are returned.
    """
    sums, question = answer.sum_json(), answer.question
    aborts = sums.get("aborts", 0.0)
    abort = {"aborts": f"a round with a probability of at most {aborts:.2g}"} if aborts else {}
    if not question.shares_noise:
        return {**_site_rows(answer), **abort}
    whose = two_sided(sums["against"], answer.other_party) if answer.other_party else {}
    party = "site" if question.by_sites else "client"
    counted = {} if question.sites else {"counted": f"{sums['honest']:.0%} of the noise, {_HONEST}"}
    return {
        **whose,
        **counted,
        **_site_rows(answer),
        "grid": (
            f"steps of {sums['step']:.3g} for a clip of {sums['clip']:g}; rounding may increase "
            f"the norm of a row by a factor of up to {sums['encoded']:.4g}"
        ),
        f"per {party}": (
            f"adds noise of standard deviation {sums['share_std']:.3g} and sends "
            f"{sums[f'bytes_per_{party}']:,.0f} bytes"
        ),
        "modular overflow": overflow_text(sums["wraps"]),
        **abort,
    }


def _site_rows(answer: CalibrationAnswer) -> dict[str, str]:
    """Returns table rows on the numbers of surviving and colluding sites, and on their noise."""
    sums, question = answer.sum_json(), answer.question
    if not question.sites:
        return {}
    if not question.by_sites:
        return {
            "sites": f"{question.sites}; the server sees their clients' rows and adds the noise"
        }
    if not question.secured:
        loud = _all_noise(sums["noise_of_all_sites"])
        return {"sites": f"{question.sites}, each protected by its own noise alone; {loud}"}
    stay = f"{question.sites}; at least {sums['minimum']} have to survive"
    if not question.shares_noise:
        return {"sites": f"{stay}; the party that opens their sum is trusted to add the noise"}
    known = sums["minimum"] - sums["counted"]
    counted = f"the noise of {known} that may collude is not counted"
    pairs = {"sites": f"{stay}; {_all_noise(sums['noise_of_all_sites'])}; {counted}"}
    if sums["counted"] == 1:
        pairs["alone"] = (
            "WARNING: the noise of a single site may have to suffice, so each site adds all of it"
        )
    return pairs


def _all_noise(clips: float) -> str:
    """Describes the noise of all sites together: a standard deviation of `clips` clipping norms."""
    return f"together they add noise of standard deviation {ceiling(clips)} clipping norms"


def alternatives_table(
    answer: CalibrationAnswer, others: Iterable[tuple[str, CalibrationAnswer]]
) -> Table:
    """Returns a table with a line for `answer`, and below it one for each of `others`.

    Each of `others` is a pair: description of one changed number, and answer with this change.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("with", "noise multiplier", "ε", "δ", "rounds", "cohort"):
        table.add_column(name, justify="left" if name == "with" else "right")
    for change, other in [("as asked", answer), *others]:
        question = other.question
        drawn = question.cohort if question.cohort is not None else other.cost.witness.rate
        table.add_row(
            change,
            ceiling(question.noise_multiplier),
            ceiling(other.bound.epsilon),
            f"{question.delta:g}",
            str(question.rounds),
            f"{drawn:.4g}" if isinstance(drawn, float) else str(drawn),
        )
    return table


_SAMPLING_COLUMNS = (
    *("examples", "rate", "ELS multiplier", "ELS noise", "ULS multiplier", "ULS noise"),
)


def sampling_report(comparison: SamplingComparison) -> RenderableType:
    """Returns a table that compares example-level (ELS) with user-level sampling (ULS).

    Each line states the noise for one number of examples per client. Notes state the sampling with
    less noise, and the assumptions.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in _SAMPLING_COLUMNS:
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
    return Group(table, "", *(Text(line) for line in _sampling_notes(comparison)))


def _sampling_notes(comparison: SamplingComparison) -> Iterator[str]:
    """Yields the sampling with less noise, and explanations of the table's rows and columns."""
    question = comparison.question
    yield f"less noise: {_better_sampling(comparison)}"
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


def _better_sampling(comparison: SamplingComparison) -> str:
    """Names the sampling with less noise, and describes the difference."""
    els, uls = comparison.best_els.examples, comparison.best_uls.examples
    if comparison.better == "equal":
        return f"equal (ELS with {_examples(els)}, ULS with {_examples(uls)})"
    by = abs(1 - comparison.relative)
    if comparison.better == "uls":
        return f"ULS with {_examples(uls)}, {by:.0%} less than ELS with {_examples(els)}"
    by = 1 - 1 / comparison.relative
    return f"ELS with {_examples(els)}, {by:.0%} less than ULS with {_examples(uls)}"


def _examples(examples: int) -> str:
    return "1 example" if examples == 1 else f"{examples} examples"
