"""What people see of a plan's user-level guarantee: its noise, one round's event, and its cost."""

from __future__ import annotations

import math
from dataclasses import replace

from accounting.events import CHANGE
from accounting.guarantee import guarantee
from accounting.noises import same_cohort
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)
from privfed.core.text import ceiling, number
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import total
from privfed.plan.proof import proof_in_words
from privfed.privacy.noise_on_model import SolvedForRun, stays_on_model
from privfed.privacy.shared_noise import noised_jointly
from privfed.report.tables import LONGER_THAN_CLIPPED
from privfed.run.forecast import Forecast


def pairs_row(plan: Plan) -> dict[str, str]:
    """What each client adds, and what holds with how many colluders; none where none is shared."""
    if not noised_jointly(plan.mechanism):
        return {}
    noise, honest = plan.mechanism.noise(), plan.mechanism.honest
    colluding = noise.clients - honest
    alone = same_cohort(plan.mechanism.alone / CHANGE[plan.event.relation], plan.cost.exchanges)
    privacy, rounds = plan.config.privacy, plan.config.run.rounds
    left = guarantee({replace(plan.event, release=alone): rounds}, privacy.delta)
    return {
        "pairs": (
            f"each client adds a deviation of {noise.alone:.3g} of its own, and {noise.shared:.3g} "
            f"with each of {noise.clients - 1} others, which cancels and is taken to be as good as "
            "random (a computational assumption, which ε leaves out); ε holds against the server "
            f"with up to {colluding} of them, and were all others to work with it, this run alone "
            f"would have ε = {ceiling(left.epsilon)}"
        )
    }


_FAINT = 0.1
"""The ratio of signal to noise per round below which a run has little to learn from."""
_NOISES = {
    "gaussian": "Gaussian",
    "skellam": "Skellam",
    "discrete_gaussians": "discrete Gaussian",
}
"""The distributions of noise, by how ledgers name them."""


def privacy_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """What is released under how much noise, what that costs, whom it protects, and why."""
    if not plan.mechanism.private:
        return {"privacy": "none: ε = ∞"}
    budget = f"ε = {number(plan.budget)}" if plan.budget else "none, the noise is fixed"
    bound = plan.guarantee
    return {
        "privacy": (
            f"{plan.config.names['mechanism']}, sensitivity {_sensitivity(plan, forecast)}, noise "
            f"multiplier {ceiling(plan.noise_multiplier)}"
        ),
        "event": _event(plan),
        **_correlation_row(plan),
        **pairs_row(plan),
        "budget": f"{budget}; all rounds spend {bound.line()}",
        "accountants": bound.rows()["accountant"],
        **_prior_row(plan),
        "protects": f"{protected_unit(plan)}, {bound.relation}",
        **_signal_rows(plan, forecast),
        "proof": proof_in_words(plan),
    }


def protected_unit(plan: Plan) -> str:
    """The unit of epsilon: under a simulated partition no person, but a client made up by it."""
    simulated = "simulated " if plan.config.partition.deals else ""
    return f"one {simulated}{plan.event.unit} with all its examples"


def nominal_rows(plan: Plan) -> dict[str, str]:
    """Why nothing is guaranteed, or why epsilon is nominal; nothing where neither is so."""
    reasons = {"guarantee": plan.void, "note": plan.simulation}
    return {key: why for key, why in reasons.items() if why}


def _sensitivity(plan: Plan, forecast: Forecast) -> str:
    """The L2 norm by which one client can move a sum, and where that number comes from."""
    mechanism, follows = plan.config.mechanism, ""
    if mechanism.adaptive:
        quantile = plan.config.values()["privacy"].get("clip_quantile")
        of = f"the {quantile:g}-quantile of " if quantile else ""
        follows = f" at first; it follows {of}clients' norms"
    change = CHANGE[plan.event.relation]
    clips = "the clip" if change == 1 else f"{change} clips of {mechanism.clip:g}"
    encoded = ", encoded" if forecast.encoded > LONGER_THAN_CLIPPED else ""
    parts = plan.config.data.sites_per_client
    if parts > 1:
        clips += f", {mechanism.clip / parts:.6g} at each of {parts} sites, which noise is over"
    return f"{change * mechanism.clip * forecast.encoded:.6g} ({clips}{encoded}{follows})"


def _correlation_row(plan: Plan) -> dict[str, str]:
    """Over which rounds noise is correlated, and in how many groups clients are for that."""
    mechanism, release = plan.mechanism, plan.event.release
    if not isinstance(mechanism, SolvedForRun):
        return {}
    groups = release.groups if isinstance(release, RandomAllocation) else 1
    divided = f"; clients are in {groups} public groups" if groups > 1 else ""
    if isinstance(release, RandomAllocation) and release.epoch.choices == 1:
        divided += ", of one slot each: none is secret, and nothing is amplified"
    rounds = plan.config.run.rounds
    share = stays_on_model(mechanism, rounds, plan.config.sampler.size)
    stays = f"; {share:.3g} of it stays on the model over {rounds} rounds" if share < 1 else ""
    return {"correlated": f"{mechanism.span()}{stays}{divided}"}


def _prior_row(plan: Plan) -> dict[str, str]:
    """How much of the budget earlier runs over the same population spent."""
    if not plan.before.runs:
        return {}
    privacy = plan.config.privacy
    earlier = guarantee(plan.before.spending, plan.guarantee.delta, privacy.accountant)
    row = (
        f"of this, ε = {ceiling(earlier.epsilon)} was spent before, over the same population "
        f"({', '.join(privacy.prior)})"
    )
    if stopped := [prior.path for prior in plan.before.runs if prior.planned is not None]:
        together = total([plan.before.planned, plan.spent])
        bound = guarantee(together, plan.guarantee.delta, privacy.accountant)
        row += (
            f"; {', '.join(stopped)} ended early, so that this counts the rounds done (an "
            f"odometer); with all planned rounds ε = {ceiling(bound.epsilon)}"
        )
    return {"prior": row}


def _signal_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """How loud the average update may be, beside the noise on it that stays."""
    if forecast.signal is None or forecast.noise is None:
        return {}
    config = plan.config
    share = stays_on_model(plan.mechanism, config.run.rounds, config.sampler.size)
    noise = share * forecast.noise
    ratio = forecast.signal / noise if noise else math.inf
    what = "of terms of" if plan.config.rule.robust else "of"
    pairs = {
        "signal": (
            f"{number(float(f'{ratio:.2g}'))} : 1 (an average {what} at most {forecast.signal:g}, "
            f"noise of norm {noise:.2g}{' that stays' if share < 1 else ''})"
        )
    }
    if ratio < _FAINT:
        pairs["faint"] = (
            "little may be learned, and at small rates only: take a larger cohort, fewer "
            "parameters (frozen layers, a public start) or rounds, or more ε"
        )
    return pairs


def _event(plan: Plan) -> str:
    """One round's release in words; z is over the change that one client can make."""
    release = plan.event.release
    noise = plan.event.noise
    if noise is None:
        return f"per round one {release.kind} release"
    change = CHANGE[plan.event.relation]
    doubled = " over two clips, as replacing a client moves a sum by both" if change == 2 else ""
    noised = f"{_NOISES[noise.kind]}(z = {ceiling(noise.noise_multiplier)})"
    event = f"per round one {noised}{doubled}"
    match release:
        case PoissonSampled(rate=rate):
            return f"{event}, Poisson-sampled at q = {rate:g}"
        case SeveralSites(rate=rate, sites=sites):
            return f"{event}, for each of {sites} sites that draw a client at q = {rate:g}"
        case Repeated(count=sites, of=PoissonSampled(rate=rate)):
            return f"per round {sites} times {noised}, Poisson-sampled at q = {rate:g}"
        case TruncatedPoisson(rate=rate, cap=cap):
            return f"{event}, Poisson-sampled at q = {rate:g} and cut to {cap}"
        case WithoutReplacement(cohort=m, clients=n):
            return f"{event}, on {m} of {n} drawn without replacement"
        case Separated(separation=b):
            return f"{event}, meeting a client once in {b} rounds at most"
        case BufferedToeplitz(separation=b):
            return (
                f"{event}, meeting a client once in {b} rounds at most; what it adds in different "
                "rounds overlaps in C x, and costs more than so many apart"
            )
        case RandomAllocation(slots=b, epoch=epoch):
            choices = "one" if epoch.choices == 1 else f"a secret one of {epoch.choices}"
            return (
                f"{event}, meeting a client in {choices} of every {b} rounds, which count whole "
                "once they have begun"
            )
    return event
