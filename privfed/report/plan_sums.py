"""Rows on secure sums in the table of a plan: parties' views, encoding, noise and aborts."""

from __future__ import annotations

from dataclasses import replace

from privfed.config.config import Config
from privfed.core.text import ceiling
from privfed.plan.byzantine import exclusion_text
from privfed.plan.plan import Plan
from privfed.plan.site_guarantee import SiteGuarantee
from privfed.privacy.shared_noise import SharedNoise, shares_noise
from privfed.report.tables import LONGER_THAN_CLIPPED, counted, overflow_text
from privfed.run.forecast import Forecast
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.limits import Limits

_SYNTHETIC_NAME = {
    "even": "as many clients at each",
    "size": "proportions 1 : 1/2 : 1/3 : … of the clients",
    "label": "by clients' labels",
}
"""Descriptions of the simulated assignments of clients to sites."""


def sites_row(config: Config) -> dict[str, str]:
    """Returns a table row on sites: number, assignment of clients, role in sums; empty if none."""
    data = config.data
    if not data.sites:
        return {}
    column = config.site_column
    if config.at_remote_sites:
        origin = "each on its own machine"
    else:
        origin = (
            f"column {column!r}" if column else f"simulated: {_SYNTHETIC_NAME[data.site_partition]}"
        )
    several = ""
    if data.sites_per_client > 1:
        several = f", a client at up to {data.sites_per_client}; ε covers its rows at all sites"
        several += " that do not collude" if config.by_sites else ""
    role = "sites hold clients, but are not parties of sums"
    if config.by_sites:
        role = "each site samples its own clients in secret, bounds their rows and sends their sum"
    return {"sites": f"{data.sites} declared ({origin}){several}; {role}"}


def _steps(share: float) -> str:
    """Formats `share`, a standard deviation in steps (grid spacings) of a secure sum's integers."""
    return f"{share:.4g}" if share < 1e4 else f"{share:,.0f}"


def site_noise_rows(plan: Plan, protocol: SecureProtocol, mechanism: SharedNoise) -> dict[str, str]:
    """Returns table rows on the noise that each site adds, on survivors needed, and on overflow.

    They warn if the noise of a single honest site may have to suffice.
    """
    grid, limits = mechanism.grid(), plan.cost.limits
    noise = protocol.site_noise(limits)
    sized = f"{limits.minimum} of {limits.sites} have to survive"
    if mechanism.layered:
        sized += ", and the noise of further survivors is removed"
    of_regions = ", or be in a region whose coordinator does" if protocol.part_openers else ""
    rows = {
        "noise": (
            f"each site adds noise of standard deviation {grid.share * grid.step:.3g} "
            f"({_steps(grid.share)} steps) every round; {sized}; the noise of "
            f"{limits.minimum - noise.counted}, which may be Byzantine or collude with the server"
            f"{of_regions}, is not counted"
        ),
        "modular overflow": overflow_text(grid.wraps),
    }
    for opener in protocol.part_openers:
        rows["partial sum"] = (
            f"{opener} sees a sum in which the noise of at least "
            f"{replace(noise, regions=1).counted} of its sites counts"
        )
    if noise.counted == 1:
        rows["alone"] = (
            "WARNING: the noise of a single site may have to suffice, so each site adds all of it "
            "and the secure sum saves no noise; raise secure.minimum or data.sites, or lower "
            "secure.colluders"
        )
    return rows


def site_guarantee_row(site: SiteGuarantee) -> dict[str, str]:
    """Returns a table row on the guarantee of a site for its own clients.

    The site enforces this guarantee by answering in at most `site.answers` rounds.
    """
    alone = ""
    if site.alone:
        alone = f", and ε = {ceiling(site.alone.epsilon)} if all other sites collude"
    return {
        "per site": (
            f"a site that answers at most {counted(site.answers, 'round')} guarantees its own "
            f"clients {site.bound.line()}{alone}"
        )
    }


def secure_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on secure sums: each party's view, encoding, noise, and aborts."""
    protocol, limits = plan.config.row_hiding, plan.cost.limits
    if protocol is None:
        return {}
    sight = _observer_rows(plan, protocol)
    pairs = {"secure": f"{plan.config.names['protocol']}: {sight}"}
    if promise := protocol.promise(round(forecast.cohort), limits):
        pairs["assumptions"] = promise
    pairs["quantisation"] = _quantisation(protocol, limits, forecast)
    if shares_noise(plan.mechanism):
        if limits.sites:
            pairs |= site_noise_rows(plan, protocol, plan.mechanism)
        else:
            pairs |= _shared_noise_rows(plan, plan.mechanism)
    if forecast.aborts:
        cost = " (charged)" if plan.event.slack >= forecast.aborts else ""
        if limits.sites:
            cost = (
                ": dropouts of sites do not depend on the clients sampled, so aborts reveal nothing"
            )
        pairs["aborts"] = f"a round with a probability of at most {forecast.aborts:.2g}{cost}"
    if partial := plan.cost.partial:
        cost = " (charged)" if plan.event.slack >= partial else ""
        pairs["partial sums"] = f"a round with a probability of at most {partial:.2g}{cost}"
    if limits.admitted:
        pairs["smallest cohort"] = (
            f"{protocol.least_cohort(limits)} clients, which makes the cost of aborts negligible"
        )
    if exclusion := exclusion_text(plan):
        pairs["if proved Byzantine"] = exclusion
    return pairs


def _observer_rows(plan: Plan, protocol: SecureProtocol) -> str:
    """Describes what the parties that see a sum learn from it.

    If parties add shares of the noise, the protocol's own description is left out.
    """
    if plan.mechanism.trust == "sum":
        site = " except a client's own site" if plan.cost.limits.sites else ""
        return f"the party that opens the sum sees it with its noise; no party{site} sees a row"
    if plan.mechanism.trust != "server":
        return protocol.seen
    trusted = "".join(f", and {each} with an exact sum" for each in protocol.part_openers)
    return f"{protocol.seen}; {protocol.opener} is trusted to add the noise{trusted}"


def _quantisation(protocol: SecureProtocol, limits: Limits, forecast: Forecast) -> str:
    """Describes the integer encoding of clients' rows, the largest sum, and the growth of norms."""
    steps = f", step {forecast.step:.2g}" if forecast.step else ""
    modular = protocol.opener == "the server"  # ciphertexts have a modulus of their own
    integers = f"modulus 2^{protocol.bits}" if modular else f"{protocol.bits} bits"
    longer = ""
    if forecast.encoded > LONGER_THAN_CLIPPED:
        longer = (
            f"; rounding may increase norms by a factor of up to {forecast.encoded:.4g}, and the "
            "noise grows with them"
        )
    capacity = f"{limits.rows} rows at {limits.sites} sites" if limits.sites else ""
    capacity = capacity or f"{limits.capacity} clients"
    return f"{integers}{steps}, for sums of up to {capacity}{longer}"


def _shared_noise_rows(plan: Plan, mechanism: SharedNoise) -> dict[str, str]:
    """Returns table rows on each client's noise, honest and Byzantine clients, and overflow."""
    grid, limits = mechanism.grid(), plan.cost.limits
    honest = f"{mechanism.honest:.0%} of the noise is from honest clients"
    sized = f"{limits.minimum} clients add enough noise, and a sum of fewer clients aborts"
    if mechanism.layered:
        sized = f"exact for up to {limits.tolerance:.0%} dropouts; with more the sum aborts"
    byzantine = (
        f"at most {limits.byzantine} of a cohort are assumed; they add no noise, and learn who was "
        "sampled"
    )
    return {
        "noise": (
            f"each client adds noise of standard deviation {grid.share * grid.step:.3g} "
            f"({_steps(grid.share)} steps); {sized}; {honest}"
        ),
        **({"Byzantine": byzantine} if limits.byzantine else {}),
        "modular overflow": overflow_text(grid.wraps),
    }
