"""A summary of the proof of a run, from the declarations of its parts."""

from __future__ import annotations

import math

from accounting.events import CHANGE
from defenses.types import SumRule
from privfed.plan.plan import Plan
from privfed.plan.rule import numbers_per_history, rule_of
from privfed.privacy.shared_noise import noised_jointly
from privfed.round.algorithm import releases_per_round


def proof_text(plan: Plan) -> str:
    """Returns a sentence that states why noise protects the releases of a round.

    `plan` must be the plan of a private run.
    """
    config, mechanism = plan.config, plan.mechanism
    rule, name = rule_of(config), config.names["rule"]
    if mechanism.trust == "client" and config.by_sites:
        return (
            "each site's own noise protects the sum of its sampled clients' rows, which are "
            f"clipped to {mechanism.clip:g}, and its sampling is secret, so {name} and every other "
            "use of these sums are post-processing"
        )
    memory = ", its memory of clients" if numbers_per_history(config, 1) else ""
    use = f"{name}{memory} and every other use of rows"
    if noised_jointly(mechanism):
        return (
            f"each client's own noise, and the noise that it shares with {mechanism.honest - 1} "
            "other honest clients, protect its clipped row against the server and "
            f"{mechanism.noise().clients - mechanism.honest} colluding clients, so {use} are "
            "post-processing"
        )
    if mechanism.trust == "client":
        return (
            f"each client's own noise protects its clipped row, so {use} or sums are "
            "post-processing"
        )
    assert isinstance(rule, SumRule)
    bounded = rule.sensitivity(CHANGE[plan.event.relation]) < math.inf
    what = "terms have norms up to" if bounded else "rows are clipped to"
    first = " at first" if mechanism.adaptive else ""
    clip = f"{what} {mechanism.clip:g}{first}"
    proof = f"rule {name} needs only sums, and each client's term is bounded: {clip}"
    releases = releases_per_round(config.messages(), rule)
    if releases > 1:
        proof += (
            f"; {releases} sums over one cohort are one event, with noise multiplier z / "
            f"sqrt({releases})"
        )
    if config.by_sites:
        return proof + _of_sites(plan)
    if config.secured:
        proof += (
            f"; the secure sum {config.names['protocol']} adds up encoded rows, whose norm is "
            "charged"
        )
    return proof


def _of_sites(plan: Plan) -> str:
    """Returns a text on the sites' part of the proof: sampling, and the noise of honest sites."""
    limits, name, protocol = plan.cost.limits, plan.config.names["protocol"], plan.config.row_hiding
    sampling = (
        f"; each of {limits.sites} sites samples its own clients in secret, and adds up their "
        f"encoded rows, whose norm is charged; the secure sum {name} adds up the sites' sums"
    )
    if plan.mechanism.trust != "sum" or protocol is None:
        return sampling
    opener = plan.config.protocol.opener
    apart = f"{opener} does not collude with the server, and if " if opener != "the server" else ""
    return (
        f"{sampling}, and each total has the noise of at least "
        f"{protocol.site_noise(limits).counted} honest sites, so subsampling amplifies privacy "
        f"against the server, readers and any {limits.colluders} of the sites together, if "
        f"{apart}a site's other messages and their timing do not depend on any client's data"
    )
