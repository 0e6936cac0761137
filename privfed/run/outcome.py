"""What a run tells while it goes on, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from accounting.documents import encoded
from accounting.guarantee import Guarantee, stated
from privfed.metrics.measure import Estimate
from privfed.plan.liars import lost_claims
from privfed.plan.plan import ON_TRAINED, Plan
from privfed.run.evaluation.divergence import Divergence
from privfed.run.forecast import Forecast
from privfed.run.misbehaving import Misbehaviour
from privfed.secure.summation import Culprit


@dataclass(frozen=True)
class RoundRecord:
    """A round that was evaluated. `public` may leave; `simulation` only where the run opted in.

    `warning` says once that the run gets worse than a constant answer, and what to do.
    """

    round: int
    public: Mapping[str, Any]
    simulation: Mapping[str, Any] = field(default_factory=dict)
    warning: str = ""

    def nominally(self) -> RoundRecord:
        """The same of a run whose ε is nominal: no file shows that number as a guarantee's."""
        names = {"epsilon": "nominal_epsilon"}
        public = {names.get(name, name): value for name, value in self.public.items()}
        return replace(self, public=public)

    def tagged(self) -> dict[str, float]:
        """All numbers under "public/…" and "simulation/…", for whoever draws or sends them."""
        kinds = {"public": self.public, "simulation": self.simulation}
        return {
            f"{kind}/{name}": float(value)
            for kind, values in kinds.items()
            for name, value in values.items()
            if isinstance(value, int | float)
        }


class Observer(Protocol):
    """Whoever is told of rounds and never part of them: progress, metrics, figures.

    One of your own extends this class and has the methods that it needs; the others do nothing.
    """

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """The run at `path` goes on after `done` rounds."""
        return

    def after_round(self, round: int) -> None:
        """A round is over."""
        return

    def aborted(self, round: int, reason: str) -> None:
        """A round was charged, and its sum aborted."""
        return

    def after(self, record: RoundRecord) -> None:
        """A round was evaluated."""
        return


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `measures` are the loss's own (the first is the one to look at), and "loss", and `constant`
    those of the best answer that looks at nothing. `updates` counts rounds that moved the model,
    `charges` all that were paid for, `aborts` those whose secure sum was aborted, and why;
    `culprits` were proved to lie in one, and are left out since: where more than the noise's claims
    allow, `stopped_by_liars` says why the run ended before its next round;
    `guarantee` covers all charges and what earlier runs over the same population had spent.
    `public` counts clients declared public; `test_shared`: clients of the test set trained too.
    `evaluations` counts rounds in which clients evaluated, and `charged_measures` is what the last
    of them told; `stopped_early` that the run ended since none of the last was better.
    """

    plan: Plan
    path: Path
    measures: Mapping[str, float]
    test_examples: int
    updates: int
    charges: int
    guarantee: Guarantee
    stopped_at_budget: bool
    ledger_head: str
    public: int = 0
    test_shared: bool = False
    aborts: Mapping[int, str] = field(default_factory=dict)
    culprits: tuple[Culprit, ...] = ()
    stopped_by_liars: str = ""
    constant: Mapping[str, float] = field(default_factory=dict)
    divergence: Divergence = field(default_factory=Divergence)
    evaluations: int = 0
    charged_measures: Mapping[str, Estimate] = field(default_factory=dict)
    stopped_early: bool = False
    planned: Guarantee | None = None
    """The guarantee of all planned rounds, where the run, or an earlier one, ended before."""
    misbehaviour: Misbehaviour | None = None
    """What speaks against which client, in simulations that watched rows."""

    @property
    def excluded(self) -> int:
        """How many parties were proved to lie in secure sums, and are left out since."""
        return len(self.culprits)

    @property
    def lost_claims(self) -> tuple[str, ...]:
        """What was claimed, and no longer holds with these culprits; in sentences."""
        return lost_claims(self.plan, self.culprits)

    @property
    def note(self) -> str | None:
        """What readers of the measures have to know."""
        return self.plan.simulation or (ON_TRAINED if self.test_shared else None)

    @property
    def accuracy(self) -> float:
        """Raises `KeyError` where the loss has no such measure."""
        return self.measures["accuracy"]

    def to_json(self) -> dict[str, Any]:
        """The object `--json` ends with."""
        bound = self.guarantee
        return {
            **self.measures,
            "constant": dict(self.constant),
            "diverged": self.divergence.to_json(),
            "test_examples": self.test_examples,
            "public_clients": self.public,
            "start": self.plan.config.starts_from or None,
            "epsilon": bound.epsilon,
            "delta": bound.delta,
            "unit": self.plan.event.unit,
            "relation": self.plan.event.relation,
            "sampler": self.plan.event.sampler,
            "accountant": bound.accountant,
            "accountants": bound.by_accountant,
            "noise_multiplier": self.plan.noise_multiplier,
            "guarantees": stated(
                self.guarantee, *self.plan.also(self.charges), void=self.plan.void
            ),
            "rounds": self.updates,
            "planned": encoded(self.planned),
            "charges": self.charges,
            "aborted": len(self.aborts),
            "excluded": self.excluded,
            "lost_claims": list(self.lost_claims),
            "stopped_by_liars": self.stopped_by_liars or None,
            "prior": self.plan.config.privacy.prior,
            "disjoint": self.plan.config.privacy.disjoint,
            "uncovered": self.guarantee.uncovered or None,
            **({"warning": self.guarantee.weakness} if self.guarantee.weakness else {}),
            "against": self.guarantee.against or None,
            "budget": self.plan.budget,
            "budgets": encoded(self.plan.budgets),
            "stopped_at_budget": self.stopped_at_budget,
            "stopped_early": self.stopped_early,
            **self._evaluated(),
            **({"misbehaviour": self.misbehaviour.to_json()} if self.misbehaviour else {}),
            "simulation": self.plan.simulation is not None,
            "note": self.note,
            "test_shared": self.test_shared,
            "guarantee": self.plan.void,
            "chosen": encoded(self.plan.config.chosen),
            "ledger_head": self.ledger_head,
            "run": str(self.path),
        }

    def _evaluated(self) -> dict[str, Any]:
        """What clients measured last, where they did."""
        if not self.evaluations:
            return {}
        measures = encoded(self.charged_measures)
        return {"evaluations": self.evaluations, "clients": measures}
