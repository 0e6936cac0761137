"""Rows on privacy in the table of a plan: noise, a round's event and its ε, and canaries."""

from __future__ import annotations

import math
from dataclasses import replace

from accounting.empirical.verdicts import REFUTED_BELOW
from accounting.events import ADD_REMOVE, CHANGE, REPLACE_ONE
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
from privfed.auditing.canaries.inclusion import canaries_drawn, canaries_sending, displaces_clients
from privfed.auditing.canaries.power import Power
from privfed.core.text import ceiling, number
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import total
from privfed.plan.proof import proof_text
from privfed.privacy.noise_on_model import SolvedForRun, model_noise_fraction
from privfed.privacy.shared_noise import noised_jointly, shares_noise
from privfed.run.forecast import Forecast

_SHOWN = (0.5, 0.25, 0.1)
"""Fractions of the charged noise for which the power of canaries is reported."""
_NOISE_TOO_LARGE = 0.05
"""Relative increase of the noise by canaries above which a warning is shown."""


def canaries_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns a table row on the number and noise of the canaries; empty without canaries."""
    count, relation = plan.config.audit.canaries, plan.event.relation
    if not count:
        return {}
    sending = canaries_sending(plan)
    tails = _tails(relation, opposite=forecast.canaries is None)
    words = f"{count}, half of them {tails}, {sending:.3g} in a cohort"
    words += " in the places of clients" if displaces_clients(plan.cost.witness) else ""
    if not forecast.noise or not forecast.signal:
        return {"canaries": words}
    louder = _more_noise(plan, forecast) - 1
    advice = (
        ("; WARNING: use fewer, or the model will be less accurate")
        if louder > _NOISE_TOO_LARGE
        else ""
    )
    measured = _measured(forecast)
    return {
        "canaries": (f"{words}: the noise on an update is {louder:.1%} larger{measured}{advice}")
    }


def _measured(forecast: Forecast) -> str:
    """Describes the update norm of canaries that train, as measured with synthetic clients."""
    if forecast.canaries is None or not forecast.signal:
        return ""
    part = forecast.canaries.norm / forecast.signal
    return f" (at the initial model, such updates have {part:.0%} of the clip as norm)"


def power_row(power: Power) -> dict[str, str]:
    """Returns the table row on the canaries' power, and on the number needed to refute ε."""
    return {"power": f"{power_text(power)}. {fewest_text(power)}"}


def power_text(power: Power) -> str:
    """Describes the probabilities with which canaries detect less noise than is charged."""
    noticed = [fault for fault in power.noticed if fault.share in _SHOWN]
    if not noticed:
        return "unknown, since the mechanism cannot sample weaker noise"
    first, *others = noticed
    further = "".join(
        f"; with {fault.share:g} of it (ε = {fault.epsilon:.3g}): {fault.doubted:.0%} and "
        f"{fault.refuted:.0%}"
        for fault in others
    )
    return (
        f"at best, if only {first.share:g} of the charged noise were added (a true ε of "
        f"{first.epsilon:.3g}), the claim would be doubted at {power.confidence:.0%} with "
        f"probability {first.doubted:.0%}, and refuted at p < 1e-6 with probability "
        f"{first.refuted:.0%}" + further
    )


def fewest_text(power: Power) -> str:
    """Describes the smallest number of canaries that could refute the claimed ε, if any could."""
    if power.slack >= REFUTED_BELOW:
        return (
            f"No number of canaries can refute ε = {ceiling(power.epsilon)} at p < 1e-6: the claim "
            f"permits any outcome with probability {power.slack:.1g}, which is charged for visible "
            "aborts of a sum and inexact sampling of noise"
        )
    if power.fewest is None:
        return f"No possible number of canaries can refute ε = {ceiling(power.epsilon)}"
    warning = "WARNING: these are too few. " if power.canaries < power.fewest else ""
    return (
        f"{warning}To refute ε = {ceiling(power.epsilon)}, at least {power.fewest:,} canaries are "
        "needed, and a correct guess of every inclusion bit"
    )


def _tails(relation: str, opposite: bool) -> str:
    """Returns a verb phrase on the half of the canaries that their secret inclusion bits select.

    Under add/remove these are the ones that enter; otherwise they send zero or, if `opposite` under
    replace-one, the opposite of their vector.
    """
    if relation == ADD_REMOVE:
        return "enter"
    return "send the opposite" if relation == REPLACE_ONE and opposite else "send zero"


def _more_noise(plan: Plan, forecast: Forecast) -> float:
    """Returns the noise on an update with canaries, divided by the noise without canaries.

    The updates of canaries act as additional noise. If clients add the noise themselves, canaries
    in a cohort also add noise. If canaries replace clients, the sum has fewer rows of clients, so
    the same noise is larger in relation to these rows.
    """
    assert forecast.noise is not None
    assert forecast.signal is not None
    share = canaries_drawn(plan) / forecast.cohort
    sending = canaries_sending(plan)
    total = forecast.signal * math.sqrt(sending)  # random directions with the clipping norm
    if forecast.canaries:
        total = forecast.canaries.total(sending)
    norm = total / forecast.cohort
    if displaces_clients(plan.cost.witness):
        return math.hypot(1.0, norm / forecast.noise) / (1.0 - share)
    mechanism, by_clients = plan.mechanism, not plan.cost.limits.sites
    each_adds = by_clients and mechanism.trust in ("sum", "client") and not mechanism.layered
    return math.hypot(math.sqrt(1.0 + share) if each_adds else 1.0, norm / forecast.noise)


def pairs_row(plan: Plan) -> dict[str, str]:
    """Returns a table row on each client's noise and colluders; empty if pairs share no noise."""
    if not noised_jointly(plan.mechanism):
        return {}
    noise, honest = plan.mechanism.noise(), plan.mechanism.honest
    colluding = noise.clients - honest
    alone = same_cohort(plan.mechanism.alone / CHANGE[plan.event.relation], plan.cost.exchanges)
    privacy, rounds = plan.config.privacy, plan.config.run.rounds
    left = guarantee({replace(plan.event, release=alone): rounds}, privacy.delta)
    return {
        "pairs": (
            f"each client adds its own noise of standard deviation {noise.alone:.3g}, and noise "
            f"of {noise.shared:.3g} that it shares with each of {noise.clients - 1} others, which "
            "cancels in the sum and is assumed to be pseudorandom (a computational assumption "
            f"that ε does not include); ε holds against the server with up to {colluding} "
            "colluding clients; if all other clients colluded, this run alone would have ε = "
            f"{ceiling(left.epsilon)}"
        )
    }


_FAINT = 0.1
"""Signal-to-noise ratio of a round below which a warning is shown."""
_NOISES = {
    "gaussian": "Gaussian",
    "skellam": "Skellam",
    "discrete_gaussians": "discrete Gaussian",
}
"""The distributions of noise in words, by their names in ledgers."""


def privacy_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on privacy: mechanism, event, budget, unit, signal-to-noise, and proof.

    A run without privacy has one row, which states this.
    """
    if not plan.mechanism.private:
        return {"privacy": "none: ε = ∞"}
    budget = f"ε = {number(plan.budget)}" if plan.budget else "none (the noise is fixed)"
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
        "protects": f"{protected_unit(plan)}, {bound.relation}{_unamplified(plan)}",
        **_signal_rows(plan, forecast),
        "proof": proof_text(plan),
    }


def _unamplified(plan: Plan) -> str:
    """Returns a note on the lack of amplification if the server knows the cohort; else ""."""
    known = plan.config.against == "server" and bool(plan.config.row_hiding)
    return " (the server knows the cohort: no amplification)" if known else ""


def protected_unit(plan: Plan) -> str:
    """Describes the unit of privacy, for example "one client with all its examples".

    The unit is called simulated if a partition assigned the examples to clients.
    """
    simulated = "simulated " if plan.config.partition.assigns else ""
    return f"one {simulated}{plan.event.unit} with all its examples"


def nominal_rows(plan: Plan) -> dict[str, str]:
    """Returns table rows on why no guarantee holds, or why ε is nominal; otherwise empty."""
    reasons = {"guarantee": plan.void, "note": plan.simulation}
    return {key: why for key, why in reasons.items() if why}


def _sensitivity(plan: Plan, forecast: Forecast) -> str:
    """Describes the L2 sensitivity of a sum of rows to one client, and the clips that bound it."""
    mechanism, follows = plan.config.mechanism, ""
    if mechanism.adaptive:
        quantile = plan.config.values()["privacy"].get("clip_quantile")
        of = f"the {quantile:g}-quantile of " if quantile else ""
        follows = f" at first; it follows {of}clients' norms"
    change = CHANGE[plan.event.relation]
    clips = "the clip" if change == 1 else f"{change} clips of {mechanism.clip:g}"
    if forecast.encoded > 1:
        twice = f"{change} times the " if change > 1 else ""
        clips = f"{twice}norm bound of an encoded row; clip {mechanism.clip:g}"
    parts = plan.config.data.sites_per_client
    if parts > 1:
        clips += f": at most {mechanism.clip / parts:.6g} at each of {parts} sites"
    return f"{change * mechanism.clip * forecast.encoded:.6g} ({clips}{follows})"


def _correlation_row(plan: Plan) -> dict[str, str]:
    """Returns a table row on the correlation of noise over rounds; empty if there is none."""
    mechanism, release = plan.mechanism, plan.event.release
    if not isinstance(mechanism, SolvedForRun):
        return {}
    groups = release.groups if isinstance(release, RandomAllocation) else 1
    divided = f"; clients are in {groups} public groups" if groups > 1 else ""
    if isinstance(release, RandomAllocation) and release.epoch.choices == 1:
        divided += ", of one slot each: no slot is secret, so sampling does not amplify privacy"
    rounds = plan.config.run.rounds
    share = model_noise_fraction(mechanism, rounds, plan.config.sampler.size)
    stays = f"; {share:.3g} of it remains on the model after {rounds} rounds" if share < 1 else ""
    return {"correlated": f"{mechanism.span()}{stays}{divided}"}


def _prior_row(plan: Plan) -> dict[str, str]:
    """Returns a table row on the ε spent by earlier runs that are counted; empty without any."""
    if not plan.before.runs:
        return {}
    privacy = plan.config.privacy
    earlier = guarantee(plan.before.spending, plan.guarantee.delta, privacy.accountant)
    row = (
        f"included; earlier runs over the same population spent ε = {ceiling(earlier.epsilon)} "
        f"({', '.join(privacy.prior)})"
    )
    if stopped := [prior.path for prior in plan.before.runs if prior.planned is not None]:
        together = total([plan.before.planned, plan.spent])
        bound = guarantee(together, plan.guarantee.delta, privacy.accountant)
        row += (
            f"; {', '.join(stopped)} ended early, so this ε counts only the completed rounds (an "
            f"odometer); with all planned rounds ε = {ceiling(bound.epsilon)}"
        )
    if added := [prior.path for prior in plan.before.runs if prior.odometer]:
        row += f"; charges of {', '.join(added)} were not all planned (this ε is an odometer)"
    return {"prior": row}


def _signal_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on an average update's signal-to-noise ratio; they warn if it is low.

    For noise that is correlated over rounds, only the part that later rounds do not cancel counts.
    Empty without noise.
    """
    if forecast.signal is None or forecast.noise is None:
        return {}
    config = plan.config
    share = model_noise_fraction(plan.mechanism, config.run.rounds, config.sampler.size)
    noise = share * forecast.noise
    ratio = forecast.signal / noise if noise else math.inf
    what = "of terms of" if plan.config.rule.robust else "of"
    pairs = {
        "signal-to-noise": (
            f"{number(float(f'{ratio:.2g}'))} : 1 (an average {what} at most {forecast.signal:g}, "
            f"noise of norm {noise:.2g}{' that remains' if share < 1 else ''})"
        )
    }
    if ratio < _FAINT:
        pairs["faint"] = (
            "the model may learn little, and only at small learning rates; use a larger cohort, "
            "fewer trained parameters (frozen layers, a public initial model), fewer rounds, or a "
            "larger ε"
        )
    return pairs


def _event(plan: Plan) -> str:
    """Describes the release of one round; z is the noise multiplier, relative to sensitivity."""
    release = plan.event.release
    noise = plan.event.noise
    if noise is None:
        return f"per round one {release.kind} release"
    change = CHANGE[plan.event.relation]
    doubled = " over two clips, as replacing a client moves a sum by both" if change == 2 else ""
    counted = f"z = {ceiling(noise.noise_multiplier)}"
    if shares_noise(plan.mechanism):
        party = "sites" if plan.cost.limits.sites else "clients"
        counted = f"counted noise multiplier {counted[4:]}, of honest {party} only"
    noised = f"{_NOISES[noise.kind]}({counted})"
    event = f"per round one {noised}{doubled}"
    match release:
        case PoissonSampled(rate=rate):
            return f"{event}, Poisson-sampled at q = {rate:g}"
        case SeveralSites(rate=rate, sites=sites):
            return f"{event}, for each of {sites} sites, Poisson-sampled at q = {rate:g}"
        case Repeated(count=sites, of=PoissonSampled(rate=rate)):
            return f"per round {sites} times {noised}, Poisson-sampled at q = {rate:g}"
        case TruncatedPoisson(rate=rate, cap=cap):
            return f"{event}, Poisson-sampled at q = {rate:g} and truncated to {cap}"
        case WithoutReplacement(cohort=m, clients=n):
            return f"{event}, on {m} of {n} clients sampled without replacement"
        case Separated(separation=b):
            return f"{event}; a client takes part at most once in {b} rounds"
        case BufferedToeplitz(separation=b):
            return (
                f"{event}; a client takes part at most once in {b} rounds, and its contributions "
                "overlap in C x, so they cost more than separate ones"
            )
        case RandomAllocation(slots=b, epoch=epoch):
            choices = "one" if epoch.choices == 1 else f"a secret one of {epoch.choices}"
            return (
                f"{event}; a client takes part in {choices} of every {b} rounds, an epoch that is "
                "charged in full once it has begun"
            )
    return event
