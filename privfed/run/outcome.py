"""The records and observers of a run in progress, and the outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from accounting.documents import encoded
from accounting.guarantee import Guarantee, stated
from privfed.metrics.measure import Estimate
from privfed.plan.byzantine import lost_claims
from privfed.plan.plan import ON_TRAINED, Plan
from privfed.run.evaluation.divergence import Divergence, remedies
from privfed.run.forecast import Forecast
from privfed.run.misbehaving import Misbehaviour
from privfed.secure.summation import Culprit


@dataclass(frozen=True)
class RoundRecord:
    """The measures of a round after which the model was evaluated.

    `public` measures may be published. No epsilon covers those in `simulation`, which is empty
    unless they are enabled.

    `warning` states, once per start or resume, that the model is worse than the baseline, and what
    to change; otherwise it is "".
    """

    round: int
    public: Mapping[str, Any]
    simulation: Mapping[str, Any] = field(default_factory=dict)
    warning: str = ""

    def nominally(self) -> RoundRecord:
        """Returns the record with "epsilon" renamed "nominal_epsilon", for use if ε is nominal."""
        names = {"epsilon": "nominal_epsilon"}
        public = {names.get(name, name): value for name, value in self.public.items()}
        return replace(self, public=public)

    def tagged(self) -> dict[str, float]:
        """All numbers under "public/…" and "simulation/…", for plots and trackers."""
        kinds = {"public": self.public, "simulation": self.simulation}
        return {
            f"{kind}/{name}": float(value)
            for kind, values in kinds.items()
            for name, value in values.items()
            if isinstance(value, int | float)
        }


class Observer(Protocol):
    """Observes rounds without effect on them: progress, metrics, figures.

    A user's observer extends this class and overrides the methods it needs; the others do nothing.
    """

    def choosing(self, key: str, number: int, count: int) -> None:
        """Called before each simulated run that chooses the value of a key that is "auto".

        `before` follows, with the chosen values in `plan.config`. Parts of `run.watch` are not
        called.

        Args:
          key: "client.lr" or "privacy.clip".
          number: number of the tried value, from 1.
          count: number of tried values.
        """
        return

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        """Called when the run at `path` starts or resumes, with `done` rounds completed.

        Args:
          plan: the plan of the run.
          forecast: expected message sizes, time and noise.
          path: the run directory.
          done: number of completed rounds.
        """
        return

    def after_round(self, round: int) -> None:
        """Called after each round.

        Args:
          round: number of the round.
        """
        return

    def aborted(self, round: int, reason: str) -> None:
        """Called when the sum of a charged round aborted.

        Args:
          round: number of the round.
          reason: why its sum aborted.
        """
        return

    def after(self, record: RoundRecord) -> None:
        """Called after a round was evaluated.

        Args:
          record: the round's public measures, and those of a simulation.
        """
        return


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
      plan: The plan of the run.
      path: Its run directory.
      measures: The loss's measures (the first is the main one), and "loss"; without a test set, the
        measures of the last evaluation by clients.
      test_examples: Number of test examples.
      updates: Number of rounds that changed the model.
      charges: Number of charged rounds.
      guarantee: Guarantee for all charges, together with the charges of earlier runs over the same
        population.
      stopped_at_budget: Whether the budget ended the run.
      ledger_head: Hash of the ledger's last line.
      public: Number of clients declared public.
      test_shared: Whether clients of the test set also trained.
      aborts: The reason for the abort of each round whose secure sum aborted.
      culprits: Parties that secure sums identified as Byzantine, and then excluded.
      stopped_by_byzantine: Reason for the early end, if there are more culprits than the noise's
        guarantee allows; empty otherwise.
      constant: Measures of the best constant prediction; empty without a public test set.
      divergence: The last evaluations, if the model was worse on them than the best constant
        prediction, and did not improve.
      evaluations: Number of rounds in which clients evaluated.
      charged_measures: Results of the last evaluation by clients.
      stopped_early: Whether the run ended because the last evaluations did not improve.
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
    stopped_by_byzantine: str = ""
    constant: Mapping[str, float] = field(default_factory=dict)
    divergence: Divergence = field(default_factory=Divergence)
    evaluations: int = 0
    charged_measures: Mapping[str, Estimate] = field(default_factory=dict)
    stopped_early: bool = False
    clipped: str = ""
    """A warning that public test examples exceed their declared bounds, or ""."""
    planned: Guarantee | None = None
    """The guarantee of all planned rounds of this and earlier runs; None if each of these runs
    completed exactly its planned rounds, or in the other cases of `planned_guarantee`."""
    misbehaviour: Misbehaviour | None = None
    """Evidence against clients, in simulations that observed rows."""

    @property
    def excluded(self) -> int:
        """Number of parties that secure sums identified as Byzantine, and then excluded."""
        return len(self.culprits)

    @property
    def lost_claims(self) -> tuple[str, ...]:
        """Claims, as sentences, that no longer hold because of identified Byzantine parties."""
        return lost_claims(self.plan, self.culprits)

    @property
    def note(self) -> str | None:
        """A caveat on the measures: a simulation, or test clients that also trained; else None."""
        return self.plan.simulation or (ON_TRAINED if self.test_shared else None)

    @property
    def warning(self) -> str:
        """Warnings about a large delta, and about test examples beyond declared bounds; else ""."""
        return "; ".join(filter(None, (self.guarantee.delta_warning, self.clipped)))

    @property
    def not_learned(self) -> str:
        """A warning that the model is no better than the baseline; "" if better or not scored.

        A model is better if its main measure on public examples is and its loss has not diverged.
        The text is also "" if no round updated the model, or if clients keep part of it.
        """
        loss, private = self.plan.config.loss, self.plan.mechanism.private
        name = loss.measure
        if name not in self.constant or self.plan.config.start.local or not self.updates:
            return ""
        if self.divergence.established:
            return self.divergence.sentence(private)
        value, constant = self.measures[name], self.constant[name]
        if (value < constant) if loss.lower_is_better else (value > constant):
            return ""
        return (
            f"the model's {name} is {value:.4g}, no better than the baseline (the best constant "
            f"prediction, {constant:.4g}): {remedies(private)}"
        )

    @property
    def accuracy(self) -> float:
        """The accuracy in `measures`. Raises `KeyError` if accuracy is not among them."""
        return self.measures["accuracy"]

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `--json` prints last."""
        bound = self.guarantee
        return {
            **self.measures,
            "constant": dict(self.constant),
            "diverged": self.divergence.to_json(),
            "not_learned": self.not_learned or None,
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
                self.guarantee, *self.plan.further_guarantees(self.charges), void=self.plan.void
            ),
            "rounds": self.updates,
            "planned": encoded(self.planned),
            "charges": self.charges,
            "aborted": len(self.aborts),
            "excluded": self.excluded,
            "lost_claims": list(self.lost_claims),
            "stopped_by_byzantine": self.stopped_by_byzantine or None,
            "prior": self.plan.config.privacy.prior,
            "disjoint": self.plan.config.privacy.disjoint,
            "uncovered": self.guarantee.uncovered or None,
            **({"warning": self.warning} if self.warning else {}),
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
        """The clients' last measures; empty if clients did not evaluate."""
        if not self.evaluations:
            return {}
        measures = encoded(self.charged_measures)
        return {"evaluations": self.evaluations, "clients": measures}
