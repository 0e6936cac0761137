"""A private tuning as people see it: what it will cost, and what it released."""

from __future__ import annotations

import math
import shlex

from rich.table import Table

from privfed.grid.pictures.figures import text
from privfed.grid.tuned.proposal import Proposal, score_of
from privfed.grid.tuned.tune import Tuned
from privfed.report.plan_rows.privacy import nominal_rows
from privfed.report.tables import accountant_epsilons, counted, rows, start_row
from privfed.text import ceiling, duration, number
from privfed.text import measure as measured


def proposal_table(proposal: Proposal, processes: int) -> Table:
    """What choosing costs beside a single run, who is tried, and about how long it takes."""
    bound, single = proposal.guarantee, proposal.single
    ratio = bound.epsilon / single.epsilon if single.epsilon else math.inf
    seconds = proposal.seconds * proposal.repetitions.mean / processes
    nominal = " (nominal)" if proposal.plan.simulation else ""
    better = "less" if proposal.lower else "more"
    return rows(
        {
            "chosen among": counted(len(proposal.cells), "combination"),
            "candidates": (
                f"{proposal.repetitions.mean:.3g} on average, a secret number; each combination is "
                f"tried with a probability of {proposal.tried:.0%}"
            ),
            "score": f"{proposal.measure} ({better} is better)",
            "ε": f"{ceiling(bound.epsilon)} at δ = {bound.delta:g}, all of it{nominal}",
            "one run": (
                f"ε = {ceiling(single.epsilon)} by itself at this noise: choosing makes it "
                f"{ratio:.2f} times as much"
            ),
            "accountants": accountant_epsilons(bound.by_accountant),
            "unit": f"one {bound.unit}, {bound.relation}",
            "noise": f"multiplier {ceiling(proposal.plan.noise_multiplier)}",
            **nominal_rows(proposal.plan),
            "time": f"about {duration(seconds)} on {counted(processes, 'process', 'es')}",
        }
    )


def tuned_table(tuned: Tuned) -> Table:
    """The run that was released, and what choosing it guarantees."""
    bound, name = tuned.guarantee, tuned.proposal.measure
    nominal = " (nominal)" if tuned.proposal.plan.simulation else ""
    combination = tuned.outcome["combination"].items()
    return rows(
        {
            "best": str(tuned.path),
            "chosen": ", ".join(f"{key} = {text(value)}" for key, value in combination),
            name: measured(name, score_of(tuned.outcome, name) or 0.0),
            "ε": f"{ceiling(bound.epsilon)} at δ = {bound.delta:g}, choosing included{nominal}",
            "noise": f"multiplier {number(tuned.outcome['noise_multiplier'])}",
            "ledger": f"{tuned.ledger} (one charge)",
            "report": f"privfed report {shlex.quote(str(tuned.path))}",
            **start_row(bound, tuned.proposal.config.starts_from),
            **nominal_rows(tuned.proposal.plan),
        }
    )
