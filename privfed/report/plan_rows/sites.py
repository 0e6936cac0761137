"""What people see of a plan's sites: who holds the clients, and whose noise protects them."""

from __future__ import annotations

from privfed.config.config import Config
from privfed.plan.plan import Plan
from privfed.plan.site_guarantee import SiteGuarantee
from privfed.privacy.shared_noise import SharedNoise
from privfed.report.tables import counted
from privfed.words import ceiling

_MADE_UP = {
    "even": "as many clients at each",
    "size": "shares 1, 1/2, 1/3, … of the clients",
    "label": "by clients' labels",
}
"""How clients are dealt to sites that no column names, and that are made up."""


def sites_row(config: Config) -> dict[str, str]:
    """How many sites there are, where they come from, and what they do; nothing without sites."""
    data = config.data
    if not data.sites:
        return {}
    column = config.site_column
    if config.apart:
        origin = "machines of their own"
    else:
        origin = f"column {column!r}" if column else f"made up: {_MADE_UP[data.site_partition]}"
    several = ""
    if data.sites_per_client > 1:
        several = f", a client at up to {data.sites_per_client}, of whose rows ε covers those there"
        several += " alone that lie at sites which do not collude" if config.by_sites else ""
    role = "they hold clients, and are no parties of sums"
    if config.by_sites:
        role = "each draws its own clients in secret, and sends one sum of rows that it bounds"
    return {"sites": f"{data.sites} declared ({origin}){several}; {role}"}


def site_noise_rows(plan: Plan, mechanism: SharedNoise) -> dict[str, str]:
    """What each site adds, what that assumes, and how often a coordinate wraps."""
    grid, limits = mechanism.grid(), plan.cost.limits
    honest = limits.minimum - limits.colluders
    sized = f"{limits.minimum} of {limits.sites} have to stay"
    if mechanism.layered:
        sized += ", and what too many add is taken off again"
    rows = {
        "noise": (
            f"each site adds a deviation of {grid.share * grid.step:.3g} ({grid.share:.4g} steps) "
            f"every round; {sized}; that of {limits.colluders}, which may be hostile or work with "
            "the server, is not counted"
        ),
        "wraps": f"a number of the sum with a probability of {grid.wraps:.2g}",
    }
    if honest == 1:
        rows["alone"] = (
            "WARNING: as few as one site may be left to protect its clients, so that each adds all "
            "of the noise by itself and the protocol saves none; raise secure.minimum or "
            "data.sites, or lower secure.colluders"
        )
    return rows


def site_guarantee_row(site: SiteGuarantee) -> dict[str, str]:
    """What a site promises its own clients, by its own count of answers."""
    alone = ""
    if site.alone:
        alone = f", and ε = {ceiling(site.alone.epsilon)} if all others work together"
    return {
        "a site": (
            f"that answers at most {counted(site.answers, 'round')} promises its own clients ε = "
            f"{ceiling(site.bound.epsilon)} at δ = {site.bound.delta:g}{alone}, by its own count"
        )
    }
