"""What people see of the answers of `privfed calibrate`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from privfed.plan.calibration.answer import CalibrationAnswer
from privfed.report.tables import accountant_epsilons, rows
from privfed.words import ceiling


def calibration_table(answer: CalibrationAnswer) -> Table:
    """The four numbers, the solved one marked, and what they mean."""
    question, bound = answer.question, answer.bound
    numbers = {
        "noise multiplier": ("noise_multiplier", ceiling(question.noise_multiplier)),
        "ε": (
            "epsilon",
            f"{ceiling(bound.epsilon)} at δ = {bound.delta:g} ({question.accountant})",
        ),
        "accountants": ("", accountant_epsilons(bound.by_accountant)),
        "rounds": ("rounds", str(question.rounds)),
        "cohort": ("cohort", _draw(answer)),
    }
    return rows(
        {
            **{
                title: f"{text}  (solved for)" if name == answer.solved else text
                for title, (name, text) in numbers.items()
            },
            **_sum_rows(answer),
            "meaning": f"{question.mechanism}: unit {bound.unit}, {bound.relation}, "
            f"{question.sampler} sampling",
        }
    )


def _draw(answer: CalibrationAnswer) -> str:
    """How many clients take part in a round, of how many, or how often one does."""
    question, witness = answer.question, answer.cost.witness
    if witness.separation > 1:
        return f"once in {witness.separation} rounds"
    if question.cohort is not None:
        return f"{question.cohort} of {question.population} clients (q = {witness.rate:g})"
    return f"q = {witness.rate:g}"


def _sum_rows(answer: CalibrationAnswer) -> dict[str, str]:
    """How a secure sum aborts; of noise that clients share, what each does, and its cost."""
    sums, question = answer.sum_json(), answer.question
    if not sums:
        return {}
    aborts = {"aborts": f"a round with a probability of at most {sums['aborts']:.2g}"}
    if not question.shares_noise:
        return aborts if sums["aborts"] else {}
    return {
        "against": "who reads the aggregates" if question.against == "readers" else "the server",
        "counted": f"{sums['honest']:.0%} of the noise, which honest clients add",
        "grid": (
            f"steps of {sums['step']:.3g} for a clip of {sums['clip']:g}; rounding makes rows up "
            f"to {sums['encoded']:.4g} times as long"
        ),
        "a client": (
            f"adds noise of deviation {sums['share_deviation']:.3g} and sends "
            f"{sums['bytes_per_client']:,.0f} bytes"
        ),
        "wraps": f"a number of the sum with a probability of {sums['wraps']:.2g}",
        **(aborts if sums["aborts"] else {}),
    }


def alternatives_table(
    answer: CalibrationAnswer, others: Iterable[tuple[str, CalibrationAnswer]]
) -> Table:
    """What else would do, one change at a time."""
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
