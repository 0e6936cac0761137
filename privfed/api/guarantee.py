"""Audits a run's guarantee, or the claim of a function that makes releases."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.statement import epsilon_at
from privfed.api.answer import Answer
from privfed.core.errors import Broken, Refused

if TYPE_CHECKING:
    from privfed.auditing.audited_run import RunAudit
    from privfed.store.run_directory import RunDirectory


def audit_function(
    function: Callable[..., Any],
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    rounds: int | None = None,
    releases: int | None = None,
    confidence: float = 0.95,
) -> Answer:
    """Tests the privacy claim of `function` by running it on two neighbouring inputs.

    Args:
      function: called as `function(member, generator)`. `member`, True or False, selects one of the
        two inputs; `generator` is a `numpy.random.Generator`, new in every call. The function
        returns a fixed number of numbers. The method `function.profile(delta)`, if there is one,
        states the claim, unless `epsilon` or `noise_multiplier` does.
      delta: the delta of the claim.
      epsilon: the epsilon of the claim (`epsilon`, `delta`).
      noise_multiplier: instead of `epsilon`: the claim is the privacy profile of the Gaussian
        mechanism.
      sampling_rate: with `noise_multiplier`: the rate of Poisson sampling, by default 1.
      rounds: with `noise_multiplier`: the number of rounds, by default 1.
      releases: the number of releases per input, at least 20; None: limited by computing time.
      confidence: the confidence level of the test.

    Returns:
      The result of the audit; `refuted` is true if the releases contradict the claim.

    Raises:
      Refused: if `releases` is too small, `confidence` is outside (0, 1), the claim is incomplete,
        contradictory or infinite, or the function fails or returns other than a fixed number of
        numbers.
    """
    from privfed.auditing.function_audit import audit_function as audited_function
    from privfed.auditing.function_audit import claim_of
    from privfed.auditing.released_function import ReleasedFunction
    from privfed.report.audit import function_table

    if releases is not None and releases < 20:
        raise Refused(f"releases is {releases}; expected at least 20 releases of each neighbour")
    released = ReleasedFunction.of(function)
    claim = claim_of(released, epsilon, delta, noise_multiplier, sampling_rate, rounds)
    audited = audited_function(released, claim, releases, confidence)
    return Answer.of(audited, function_table)


def audited(
    run: Path | RunDirectory, accountant: str | None = None, head: str | None = None
) -> Answer:
    """Recomputes the ε spent by a run from its ledger alone, and evaluates its canaries.

    Args:
      run: the run, or its path.
      accountant: the accountant to use; by default the run's own.
      head: a recorded head of the ledger, which detects truncation and changes.
    """
    from privfed.auditing.run_audit import audit
    from privfed.report.audit import audit_table

    return Answer.of(audit(run, accountant, head), audit_table)


@dataclass(frozen=True)
class RunGuarantee:
    """The (epsilon, delta) guarantee that a ledger proves, for a `unit` and adjacency `relation`.

    If the run ended before its last planned round, this is the guarantee of all planned rounds.
    If rounds or evaluations were added after the run began, `sentence` states that no (ε, δ) is
    proved for them.

    Attributes:
      epsilon: infinite if there is no guarantee; nominal in simulations (see `note`).
      partition: the partition of examples among clients: "natural", or the name of a simulation.
      rounds: the number of charged rounds of the run. If this is the guarantee of all planned
        rounds, their number, including those of earlier runs.
      sentence: the guarantee in words.
      note: a caveat, for example that the run is a simulation; "" if there is none.
      others: separate guarantees: for examples in silos, or against another party.
    """

    epsilon: float
    delta: float
    unit: str
    partition: str
    relation: str
    sampler: str
    rounds: int
    accountant: str
    accountants: Mapping[str, float | None]
    sentence: str
    note: str
    others: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, audited: RunAudit) -> RunGuarantee:
        """Returns the guarantee that the ledger of an audited run proves.

        Raises:
          Broken: if the ledger proves no guarantee, or the audit detected a contradiction.
        """
        from accounting.guarantee import stated  # imports accountants

        facts, bound = audited.to_json(), audited.planned or audited.guarantee
        if audited.problems or bound is None:
            raise Broken("\n".join(audited.problems))
        early = bound is audited.planned and not facts["guarantee"]
        return cls(
            epsilon=float("inf") if facts["guarantee"] else bound.epsilon,
            delta=bound.delta,
            unit=bound.unit,
            partition=str(facts["partition"]).partition(",")[0].strip("'"),
            relation=bound.relation,
            sampler=bound.sampler,
            rounds=bound.rounds if early else audited.charges,
            accountant=bound.accountant,
            accountants=bound.by_accountant if early else audited.accountants,
            sentence=bound.sentence() if early else facts["meaning"],
            note=facts["note"] or "",
            others=tuple(stated(*audited.planned_others) if early else facts["guarantees"][1:]),
        )

    @property
    def rows(self) -> dict[str, str]:
        """The guarantee as text, by topic."""
        unit = f"one {self.unit} (partition {self.partition!r}), {self.relation}, "
        unit += f"{self.sampler} sampling"
        rows = {
            "ε": f"{epsilon_at(self.epsilon, self.delta, bool(self.note))} ({self.accountant})",
            "protects": unit,
            "over": f"{self.rounds} rounds",
            "means": self.sentence,
        }
        return rows | ({"note": self.note} if self.note else {})

    def __str__(self) -> str:
        note = f" NOTE: {self.note}" if self.note else ""
        return f"ε {self.rows['ε']}, {self.rows['protects']}: {self.sentence}.{note}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self.rows.items()
        )
        return f"<table>{cells}</table>"
