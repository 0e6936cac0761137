"""Audits from Python: of a run's guarantee, and of a released function."""

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
    """Play `function` on two neighbouring inputs, and hold what it releases against its claim.

    It is called as `function(member, generator)`: `member` says which of the two inputs it is to
    work on, and `generator` is a `numpy.random.Generator`, fresh in every call. It returns numbers,
    as many each time. Claimed is (`epsilon`, `delta`); or the profile of Gaussian noise of
    `noise_multiplier`, in `rounds` over Poisson cohorts of `sampling_rate`; or what its own method
    `profile(delta)` returns. The answer's `refuted` says whether the releases contradict that.
    """
    from privfed.auditing.function_audit import audit_function as audited_function
    from privfed.auditing.function_audit import claim_of
    from privfed.auditing.released_function import ReleasedFunction
    from privfed.report.audit import function_table

    if releases is not None and releases < 20:
        raise Refused(f"releases is {releases}; expected at least 20")
    released = ReleasedFunction.of(function)
    claim = claim_of(released, epsilon, delta, noise_multiplier, sampling_rate, rounds)
    audited = audited_function(released, claim, releases, confidence)
    return Answer.of(audited, function_table)


def audited(
    run: Path | RunDirectory, accountant: str | None = None, head: str | None = None
) -> Answer:
    """The ε that `run` really spent, from its ledger alone, and what its canaries show."""
    from privfed.auditing.run_audit import audit
    from privfed.report.audit import audit_table

    return Answer.of(audit(run, accountant, head), audit_table)


@dataclass(frozen=True)
class RunGuarantee:
    """(epsilon, delta)-differential privacy for one `unit` under `relation`, by the run's ledger.

    `sentence` says what that means, and `note` what readers have to know beside it (a simulation,
    say). `epsilon` is infinite where nothing is promised, and `partition` says how examples came to
    clients: "natural", or by a simulation. `others` are guarantees that are stated
    apart: of examples in silos, or against another party.
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
        """What the ledger of an audited run proves. Raises `Broken` where it proves nothing."""
        facts, bound = audited.to_json(), audited.guarantee
        if audited.problems or bound is None:
            raise Broken("\n".join(audited.problems))
        return cls(
            epsilon=float("inf") if facts["guarantee"] else bound.epsilon,
            delta=bound.delta,
            unit=bound.unit,
            partition=str(facts["partition"]).partition(",")[0].strip("'"),
            relation=bound.relation,
            sampler=bound.sampler,
            rounds=audited.charges,
            accountant=bound.accountant,
            accountants=audited.accountants,
            sentence=facts["meaning"],
            note=facts["note"] or "",
            others=tuple(facts["guarantees"][1:]),
        )

    @property
    def rows(self) -> dict[str, str]:
        """What it says, by what it is about."""
        unit = f"one {self.unit} (partition {self.partition!r}), {self.relation}, "
        unit += f"{self.sampler} sampling"
        rows = {
            "ε": f"{epsilon_at(self.epsilon, self.delta)} ({self.accountant})",
            "protects": unit,
            "over": f"{self.rounds} charged rounds",
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
