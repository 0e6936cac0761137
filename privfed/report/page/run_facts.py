"""The facts for the page about a run: the run's files, each read once, and its audited ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from privfed.auditing.audited_run import RunAudit
from privfed.auditing.canaries.power import Power, power_of
from privfed.auditing.run_audit import audit
from privfed.config.config import Config
from privfed.core.errors import Broken, PrivfedError, Refused
from privfed.core.text import about_groups
from privfed.plan.byzantine import lost_claims
from privfed.plan.evaluation_cost import measure_row_of
from privfed.plan.plan import Plan, solve_plan
from privfed.plan.proof import proof_text
from privfed.plan.rule import message_length
from privfed.privacy.shared_noise import PARTY_WORDS
from privfed.run.evaluation.charged_measures import PREFIX
from privfed.run.forecast import RoundForecast, round_exchange
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord
from privfed.store.tensorfile import unpack


@dataclass(frozen=True)
class PageFacts:
    """The facts about a run with a valid ledger, from which its page is built.

    Attributes:
      record: the files of the run.
      audit: the audit of the run's ledger.
      rounds: the metrics of each evaluated round.
      summary: the content of report/summary.json; empty if it does not describe the run as it is
        now, because the run has not ended or was charged since.
      plan: the plan of the run; None if it cannot be computed (see `_planned`).
      exchange: the forecast of a round's messages and noise; None without a plan.
      power: the statistical power of the run's canaries; None without canaries or plan.
    """

    record: RunRecord
    audit: RunAudit
    rounds: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    plan: Plan | None
    exchange: RoundForecast | None
    power: Power | None

    @property
    def config(self) -> Config | None:
        """The configuration with its parts; None if a part is not available."""
        return self.plan.config if self.plan else None

    @property
    def synthetic(self) -> bool:
        """Whether a partition assigned the examples to clients; False if there is no plan."""
        return bool(self.config and self.config.partition.assigns)

    @property
    def purpose(self) -> str:
        """The purpose of the run's rounds: "training" of a model, or "statistics"."""
        return (
            str(getattr(self.config.source, "purpose", "training")) if self.config else "training"
        )

    @property
    def proof(self) -> str:
        """A text that summarises the proof; "" without privacy or if `plan` is None."""
        return proof_text(self.plan) if self.plan and self.plan.mechanism.private else ""

    @property
    def budget(self) -> float | None:
        """The run's current budget, as an ε at the ledger's δ; None without a budget."""
        return self.record.ledger.budget

    @property
    def nominal(self) -> bool:
        """Whether the ledger states that ε is nominal: for a simulation or a void guarantee."""
        return bool(self.audit.terms.get("note") or self.audit.terms.get("guarantee"))

    @property
    def meaning(self) -> str:
        """The terms of ε: unit, adjacency, sampling, any adversary, and "nominal" if it is."""
        bound = self.audit.guarantee
        assert bound is not None
        against = f", against {PARTY_WORDS[bound.against]}" if bound.against else ""
        nominal = ", nominal" if self.nominal else ""
        return f"one {bound.unit}, {bound.relation}, {bound.sampler} sampling{against}{nominal}"

    @property
    def lost_claims(self) -> Sequence[str]:
        """A sentence for each guarantee that too many parties proved Byzantine have made void."""
        if self.plan is None:
            return tuple(map(str, self.summary.get("lost_claims") or ()))
        return lost_claims(self.plan, self.record.culprits)

    @property
    def measures(self) -> list[str]:
        """The names of the run's metrics on the whole test set, in the order of metrics.jsonl."""
        known = {"format", "round", "epsilon", "clip", "simulation_only", "attack_success"}
        keys = dict.fromkeys(key for line in self.rounds for key in line if key not in known)
        return [key for key in keys if not key.startswith(PREFIX) and not about_groups(key)]

    @property
    def group_measures(self) -> list[str]:
        """The names of the metrics of groups of the test set, and of their differences."""
        keys = dict.fromkeys(key for line in self.rounds for key in line if about_groups(key))
        return [key for key in keys if not key.startswith(PREFIX)]

    def simulation(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values under "simulation_only" in `line` of metrics.jsonl; empty if none.

        No ε covers these values.
        """
        stated = line.get("simulation_only")
        return stated if isinstance(stated, dict) else {}


def run_facts(run: Path | RunDirectory) -> PageFacts:
    """Reads and audits a run, and returns the facts for its page.

    Args:
      run: the run, or its path.

    Raises:
      Broken: if the run's files contradict each other, or the run has no guarantee yet.
      Refused: if there is no run.
    """
    record = RunRecord.open(run)
    audited = audit(record)
    if audited.problems or audited.guarantee is None:
        raise Broken(
            f"{audited.path}: no page is written for a run whose files contradict each other:\n"
            + "\n".join(audited.problems)
        )
    plan, exchange, power = _planned(record.directory)
    return PageFacts(
        record=record,
        audit=audited,
        rounds=tuple(map(_evaluated, record.evaluated.values())),
        summary=_summary_of_now(record),
        plan=plan,
        exchange=exchange,
        power=power,
    )


def _planned(
    directory: RunDirectory,
) -> tuple[Plan | None, RoundForecast | None, Power | None]:
    """Returns the run's plan, the forecast of a round, and the power of its canaries.

    No client data are read. All are None if the run's parts are not available, if there is no
    checkpoint, or if the plan cannot be solved.
    """
    try:
        config = directory.config.read()
    except Refused:
        return None, None, None
    tensors, _ = unpack(directory.checkpoint.path) if directory.checkpoint.exists() else ({}, {})
    shapes = {name: tuple(t.shape) for name, t in tensors.items() if name.startswith("model/")}
    parameters = sum(map(math.prod, shapes.values()))
    if not parameters:
        return None, None, None
    try:
        form, measures = directory.checkpoint.form(), 0
        if config.evaluation_rounds.every and form is not None:
            measures = measure_row_of(config, form).length
        plan = solve_plan(
            config, length=message_length(config, parameters, shapes), measures=measures
        )
        return plan, round_exchange(plan, parameters, shapes), power_of(plan, parameters)
    except (PrivfedError, AccountingError):
        return None, None, None


def _summary_of_now(record: RunRecord) -> Mapping[str, Any]:
    """Returns the run's summary, without metrics whose values are no numbers.

    Empty if the summary states another ledger head than the ledger now has.
    """
    summary = record.summary
    if summary.get("ledger_head") != record.head:
        return {}
    constant = summary.get("constant")
    scores = _measured(constant if isinstance(constant, dict) else {})
    measures = {*scores, "loss", *filter(about_groups, summary)}
    wrong = {name for name in measures if name in summary} - _measured(summary).keys()
    others = {key: value for key, value in summary.items() if key not in wrong}
    return {**others, "constant": scores}


def _evaluated(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the numbers in a line of metrics.jsonl, and its values under "simulation_only"."""
    apart = {key: line[key] for key in ("simulation_only",) if key in line}
    return {**_measured(line), **apart}


def _measured(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `values` that are numbers: infinite, or below `_LARGEST` in magnitude."""
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _drawable(value)
    }


def _drawable(value: float) -> bool:
    return value in (math.inf, -math.inf) or abs(value) < _LARGEST


_LARGEST = 1e100
"""A finite metric of this size or more cannot come from a run."""
