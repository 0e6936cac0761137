"""What people see: plans, progress, summaries, audits. Standard error in `--json` mode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from privfed.audit import RunAudit
from privfed.plan import Plan
from privfed.run import Outcome, RoundRecord


def number(value: float | None) -> str:
    if value is None:
        return "—"
    return "∞" if value == math.inf else f"{value:.10g}"


def ceiling(value: float | None) -> str:
    """Rounded up, to four decimals or three digits: never less ε, nor less noise, than there is."""
    if value is None or value in (0.0, math.inf):
        return number(value)
    if value < 1e-3:
        scale = 10.0 ** (2 - math.floor(math.log10(value)))
        return f"{math.ceil(value * scale) / scale:.3g}"
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def rows(pairs: Mapping[str, str]) -> Table:
    """Two columns without borders."""
    table = Table(box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(key, Text(value))
    return table


def plan_table(plan: Plan, path: Path) -> Table:
    """The header of `train`: what this run will guarantee, before it starts."""
    config, bound = plan.config, plan.guarantee
    names = config.names
    size, clients = config.parts["sampler"].size, config.data.clients
    pairs = {
        "data": f"{names['source']}, {clients} clients ({names['partition']})",
        "training": (
            f"{names['model']} model, {names['objective']} x {config.client.epochs} epochs, "
            f"{names['optimizer']}, {config.run.rounds} rounds"
        ),
        "cohort": f"{names['sampler']}, {size} expected (q = {size / clients:g})",
    }
    if plan.mechanism.private:
        clip = config.parts["mechanism"].clip
        pairs["privacy"] = (
            f"{names['mechanism']}, clip {clip:g}, noise multiplier "
            f"{ceiling(plan.noise_multiplier)}"
        )
        budget = f"ε = {number(plan.budget)}" if plan.budget else "none, the noise is fixed"
        pairs["budget"] = (
            f"{budget}; all rounds spend ε = {ceiling(bound.epsilon)} at δ = {bound.delta:g}"
        )
        pairs["protects"] = f"one {bound.unit} with all its examples, {bound.relation}"
    else:
        pairs["privacy"] = "none: ε = ∞"
    if config.own["model"].init:
        pairs["start"] = (
            f"{config.own['model'].init}; what that was trained on is not covered by this ε"
        )
    if plan.simulation:
        pairs["note"] = plan.simulation
    if bound.delta * clients > 1 and plan.mechanism.private:
        pairs["warning"] = (
            f"δ = {bound.delta:g} is above 1 / clients; choose a smaller privacy.delta"
        )
    pairs["run"] = str(path)
    return rows(pairs)


def outcome_table(outcome: Outcome) -> Table:
    """How a run ended; no epsilon without what it means."""
    bound, event = outcome.guarantee, outcome.plan.event
    pairs = {
        "accuracy": f"{outcome.accuracy:.2%} on {outcome.test_examples} public test examples",
        "ε": f"{ceiling(bound.epsilon)} at δ = {bound.delta:g}"
        + (" (nominal)" if outcome.plan.simulation else ""),
        "unit": f"one {event.unit} with all its examples",
        "relation": f"{event.relation}, {event.sampler} sampling",
        "accountant": f"{bound.accountant} ({_opinions(bound.by_accountant)})",
        "rounds": spent_rounds(outcome),
        "run": str(outcome.path),
    }
    if outcome.plan.simulation:
        pairs["note"] = outcome.plan.simulation
    return rows(pairs)


def _opinions(by_accountant: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {ceiling(value)}" for name, value in by_accountant.items())


def audit_table(found: RunAudit) -> Table:
    facts = found.to_json()
    if found.problems:
        return rows({"ledger": "BROKEN", **{f"{n}": p for n, p in enumerate(found.problems, 1)}})
    pairs = {
        "ε": f"{ceiling(facts['epsilon'])} at δ = {facts['delta']:g} ({facts['accountant']})",
        "accountants": _opinions(found.accountants),
        "unit": f"one {facts['unit']} with all its examples",
        "relation": facts["relation"],
        "sampler": f"{facts['sampler']}, q = {number(found.sampling_rate)}",
        "noise": f"multiplier {ceiling(found.noise_multiplier)}, {facts['arithmetic']}",
        "randomness": str(facts["randomness"]),
        "rounds": f"{facts['rounds']} charged",
        "ledger": "ok: chain, checkpoint and configuration agree",
    }
    if facts["note"]:
        pairs["note"] = str(facts["note"])
    return rows(pairs)


def calibration_table(facts: Mapping[str, Any]) -> Table:
    pairs = {
        "noise multiplier": ceiling(facts["noise_multiplier"]),
        "ε": f"{ceiling(facts['epsilon'])} at δ = {facts['delta']:g} ({facts['accountant']})",
        "accountants": _opinions(facts["accountants"]),
        "over": f"{facts['rounds']} rounds at q = {facts['sampling_rate']:g}",
        "meaning": f"unit {facts['unit']}, {facts['relation']}, {facts['sampler']} sampling",
    }
    return rows(pairs)


class LiveProgress:
    """A bar with round, test accuracy, ε spent of the budget, and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("round {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[measures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._budget: float | None = None

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def before(self, plan: Plan, path: Path, done: int) -> None:
        self._console.print(plan_table(plan, path), "")
        self._budget = plan.budget
        self._progress.start()
        self._task = self._progress.add_task(
            "", total=plan.config.run.rounds, completed=done, measures=""
        )

    def after_round(self, round: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=round)

    def after(self, record: RoundRecord) -> None:
        if self._task is not None:
            said = f"at {record.round}: {measures(record, self._budget)}"
            self._progress.update(self._task, measures=said)


class PlainProgress:
    """One line per evaluation, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._budget: float | None = None
        self._rounds = 0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None: ...

    def before(self, plan: Plan, path: Path, done: int) -> None:
        self._console.print(plan_table(plan, path), "")
        self._budget, self._rounds = plan.budget, plan.config.run.rounds

    def after_round(self, round: int) -> None: ...

    def after(self, record: RoundRecord) -> None:
        line = f"round {record.round}/{self._rounds}  {measures(record, self._budget)}"
        self._console.print(line, highlight=False)


def progress(console: Console) -> LiveProgress | PlainProgress:
    lively = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console) if lively else PlainProgress(console)


def measures(record: RoundRecord, budget: float | None) -> str:
    public = record.public
    of_budget = f" of {number(budget)}" if budget is not None and budget != math.inf else ""
    return f"accuracy {public['accuracy']:.2%}  ε {ceiling(public['epsilon'])}{of_budget}"


def spent_rounds(outcome: Outcome) -> str:
    """How many rounds moved the model, and what became of the others."""
    said = f"{outcome.updates} of {outcome.plan.config.run.rounds}"
    lost = outcome.guarantee.rounds - outcome.updates
    if lost:
        said += f" ({lost} charged but interrupted before its release)"
    if outcome.stopped_at_budget:
        said += (
            " — stopped at the budget; to go on, resume with a larger privacy.epsilon "
            "(the noise multiplier stays)"
        )
    return said
