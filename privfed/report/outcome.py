"""The console table of a completed run: results, guarantee and warnings."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping

from rich.table import Table

from privfed.core.text import about_groups, measure
from privfed.report.plan_privacy import nominal_rows, protected_unit
from privfed.report.tables import (
    budget_rows,
    chosen_row,
    counted,
    disjoint_row,
    further_guarantee_rows,
    head_line,
    planned_row,
    rows,
    start_row,
)
from privfed.run.misbehaving import LEVEL
from privfed.run.outcome import Outcome


def with_baseline(name: str, measures: Mapping[str, float], constant: Mapping[str, float]) -> str:
    """Formats the value of metric `name`, followed by the baseline's unless that is missing.

    Args:
      name: name of the metric.
      measures: the model's metrics by name.
      constant: the metrics of the baseline (best constant prediction), by name.
    """
    score = measure(name, measures[name])
    if name not in constant:
        return score
    return f"{score} (baseline: {measure(name, constant[name])})"


def outcome_table(outcome: Outcome) -> Table:
    """Returns the table of a run's results, its ε with terms, and its further guarantees."""
    plan, bound = outcome.plan, outcome.guarantee
    event, config = plan.event, plan.config
    return rows(
        {
            **_test_row(outcome),
            **_clients_rows(outcome),
            **_attack_row(outcome),
            **_misbehaviour_rows(outcome),
            **_excluded_rows(outcome),
            "ε": bound.rows(bool(plan.simulation))["ε"]
            + (", earlier runs included" if plan.before.runs else ""),
            **planned_row(outcome.planned),
            "unit": protected_unit(plan),
            "adjacency": f"{event.relation}, {event.sampler} sampling",
            "accountant": bound.rows()["accountant"],
            "rounds": spent_rounds(outcome),
            "ledger head": head_line(outcome.ledger_head, outcome.charges),
            "run": str(outcome.path),
            "report": f"privfed report {shlex.quote(str(outcome.path))}",
            **start_row(bound, config.starts_from),
            **budget_rows(plan.budgets),
            **chosen_row(config.chosen is not None),
            **_warning_row(outcome),
            **disjoint_row(config.privacy.disjoint),
            **further_guarantee_rows(
                config.against, *plan.further_guarantees(outcome.charges), config.colluding
            ),
            **nominal_rows(plan),
        }
    )


def _test_row(outcome: Outcome) -> dict[str, str]:
    """Returns table rows on the first metric on the test set, and on differences between groups.

    There are none without a test set.
    """
    if not outcome.test_examples:
        return {}
    name = next(iter(outcome.measures))
    score = with_baseline(name, outcome.measures, outcome.constant)
    groups = {
        each.replace("_", " "): measure(each, value)
        for each, value in outcome.measures.items()
        if about_groups(each) and not each.endswith("]")
    }
    return {name: f"{score} on {_scored_on(outcome)}", **groups}


def _scored_on(outcome: Outcome) -> str:
    """Describes the number of test examples, and whether they are public or of clients."""
    if outcome.public:
        return (
            f"{outcome.test_examples} examples of {outcome.public} clients declared public, "
            "which no guarantee covers (report/public_clients.json)"
        )
    if outcome.test_shared:
        return f"{outcome.test_examples} examples of clients that train"
    return f"{outcome.test_examples} public test examples"


def _clients_rows(outcome: Outcome) -> dict[str, str]:
    """Returns table rows on the last metrics of evaluation by clients, each with its interval.

    Empty if clients evaluated nothing.
    """
    evaluation = outcome.plan.config.evaluation
    confidence, scored = evaluation.confidence, "on their held-out examples"
    if not evaluation.holdout:
        scored = "on all their examples, on which they also trained"
    return {
        f"clients' {name}": f"{measure(name, estimate.value)} ({measure(name, estimate.low)} to "
        f"{measure(name, estimate.high)} at {confidence:.0%}), {scored}"
        for name, estimate in outcome.charged_measures.items()
    }


def _attack_row(outcome: Outcome) -> dict[str, str]:
    """Returns a table row on the attack success rate; empty if this was not measured."""
    success = outcome.measures.get("attack_success")
    if success is None:
        return {}
    return {"attack": (f"{success:.2%} of the targeted examples get the attacker's label")}


def _misbehaviour_rows(outcome: Outcome) -> dict[str, str]:
    """Returns a table row on the numbers of clients with outlying updates.

    If these were not measured, the row of a simulation with attackers and
    `run.simulation_metrics` states why; otherwise it is empty.
    """
    config, misbehaviour = outcome.plan.config, outcome.misbehaviour
    if misbehaviour is None:
        if not (config.has_attackers and config.run.simulation_metrics):
            return {}
        return {"misbehaviour": "not measured: the rule receives only sums, not clients' rows"}
    total, byzantine = len(misbehaviour.clients), misbehaviour.byzantine
    facts = {name: each.to_json(byzantine) for name, each in misbehaviour.measures.items()}
    if byzantine is None:
        counts = ", ".join(f"{fact['differ']} {name}" for name, fact in facts.items())
        words = f"of {total} clients, these differ from their cohorts: {counts}"
    else:
        bad = int(byzantine.sum())
        counts = "; ".join(
            f"{name}: {fact['named_byzantine']} of {bad} Byzantine and {fact['named_honest']} of "
            f"{total - bad} honest clients, AUC {fact['auc']:.2f}"
            for name, fact in facts.items()
        )
        words = f"named as Byzantine at a false discovery rate of {LEVEL:.0%}, {counts}"
    return {"misbehaviour": f"{words} (simulation only: report/simulation_only_clients.csv)"}


def _excluded_rows(outcome: Outcome) -> dict[str, str]:
    """Returns table rows on parties proved to be Byzantine, and on guarantees that are void."""
    if not outcome.culprits:
        return {}
    party = "site" if outcome.plan.cost.limits.sites else "client"
    who = (
        f"{counted(outcome.excluded, party)} proved to be Byzantine in secure sums (excluded.jsonl)"
    )
    lost = " ".join(outcome.lost_claims)
    return {"excluded": who, **({"no longer holds": lost} if lost else {})}


def _warning_row(outcome: Outcome) -> dict[str, str]:
    """Returns a table row with the run's warnings, such as one about a poor model; or none."""
    text = "; ".join(filter(None, (outcome.warning, outcome.not_learned)))
    return {"warning": text} if text else {}


def spent_rounds(outcome: Outcome) -> str:
    """Describes the number of rounds that changed the model, and of the other charged rounds.

    The latter are evaluations, rounds that were interrupted before a release, and aborted rounds.
    An unchanged model, and a stop before the last round, are stated, too.
    """
    rounds = f"{outcome.updates} of {outcome.plan.config.run.rounds}"
    aborted = len(outcome.aborts)
    lost = outcome.charges - outcome.updates - outcome.evaluations - aborted
    if outcome.evaluations:
        rounds += f" ({outcome.evaluations} evaluated by clients)"
    if lost > 0:
        rounds += f" ({lost} charged but interrupted before a release)"
    if aborted:
        why = Counter(outcome.aborts.values()).most_common(1)[0][0]
        rounds += f" ({aborted} charged but aborted, mostly: {why})"
    if not outcome.updates and outcome.charges:
        rounds += " — the model is still the initial one"
    if outcome.stopped_early:
        rounds += " — stopped early: none of the last evaluations improved (stop.patience)"
    if outcome.stopped_at_budget:
        rounds += (
            " — stopped at the budget; to continue, resume with a larger privacy.epsilon (the "
            "noise multiplier stays the same)"
        )
    return rounds
