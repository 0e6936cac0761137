"""Checks a run without executing it: the plan and the forecast, from the real data and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accounting.documents import encoded
from accounting.events import CHANGE
from accounting.guarantee import stated
from privfed.auditing.canaries.power import Power, power_of
from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.config import Config
from privfed.plan.budget_shares import budget_shares, unspent_budget
from privfed.plan.calibration.advice import Advice
from privfed.plan.plan import Plan
from privfed.plan.site_guarantee import SiteGuarantee, site_guarantee
from privfed.run.forecast import Forecast, forecast
from privfed.run.population import load_representatives
from privfed.run.prepare import prepare
from privfed.run.watch.watcher import watchers
from privfed.store.kept_heads import refuse_unusable_heads


@dataclass(frozen=True)
class Check:
    """The plan and forecast of a run that would be accepted."""

    plan: Plan
    forecast: Forecast
    site: SiteGuarantee | None = None
    """The guarantee for a site's clients if it limits its rounds; None if not requested."""
    advice: Advice | None = None
    """The comparison with other samplers and mechanisms; None if not requested."""
    power: Power | None = None
    """Statistical power of the run's canary audit; None without canaries."""

    @property
    def facts(self) -> tuple[Plan, Forecast, None, SiteGuarantee | None, Power | None]:
        """The arguments of `privfed.report.plan.plan_table`; the run directory, third, is None."""
        return self.plan, self.forecast, None, self.site, self.power

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed check --json` prints."""
        plan, bound = self.plan, self.plan.guarantee
        warning = "; ".join(filter(None, (bound.delta_warning, self.forecast.clipped)))
        return {
            "epsilon": bound.epsilon,
            "delta": bound.delta,
            "unit": bound.unit,
            "relation": bound.relation,
            "sampler": bound.sampler,
            "accountant": bound.accountant,
            "accountants": bound.by_accountant,
            "event": plan.event.to_json(),
            "budget": plan.budget,
            "parts": {share.part: share.to_json() for share in budget_shares(plan)},
            "unspent": encoded(unspent_budget(plan)),
            "noise_multiplier": plan.noise_multiplier,
            "sensitivity": _sensitivity(plan, self.forecast),
            "guarantees": stated(
                bound, *plan.further_guarantees(plan.config.run.rounds), void=plan.void
            ),
            "rounds": plan.config.run.rounds,
            "prior": plan.config.privacy.prior,
            "disjoint": plan.config.privacy.disjoint,
            "uncovered": bound.uncovered or None,
            **({"warning": warning} if warning else {}),
            "simulation": plan.simulation is not None,
            "note": plan.simulation,
            "guarantee": plan.void,
            "forecast": self.forecast.to_json(),
            **({"site": self.site.to_json()} if self.site else {}),
            **({"advice": self.advice.to_json()} if self.advice else {}),
            **({"power": self.power.to_json()} if self.power else {}),
        }


def check(config: Config, answers: int | None = None) -> Check:
    """Prepares a run like `train`, with the clients of `load_representatives`; writes nothing.

    Args:
      config: the configuration of the run.
      answers: upper bound on the number of rounds in which a site takes part, for the guarantee of
        its clients; None: that guarantee is not computed.

    Returns:
      The plan and forecast of the run.

    Raises:
      Refused: as `train` would for this population; if keys exclude each other, with all reasons.
    """
    refuse_unusable_heads(config.run.heads)
    watchers(config)  # refuses watchers that cannot work here
    before = priors(config)
    setup = prepare(config, before, load=load_representatives, begins=False)
    refuse_once_public(before, setup.federation)
    site = site_guarantee(setup.plan, answers) if answers is not None else None
    power = power_of(setup.plan, setup.network.shapes.length)
    return Check(setup.plan, forecast(setup), site, power=power)


def _sensitivity(plan: Plan, expected: Forecast) -> float | None:
    """Upper bound on one client's effect, in L2 norm, on the sum of updates; None without noise."""
    if expected.signal is None:
        return None
    return expected.signal * expected.encoded * CHANGE[plan.event.relation]
