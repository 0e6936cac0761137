"""The proof of a run in words, derived from the declarations of its parts."""

from __future__ import annotations

import math

from accounting.events import CHANGE
from defenses.types import SumRule
from privfed.plan.plan import Plan
from privfed.plan.rule import numbers_per_history, rule_of
from privfed.privacy.shared_noise import noised_jointly
from privfed.round.algorithm import releases_per_round


def proof_text(plan: Plan) -> str:
    """Explains why noise covers the releases of a round; for plans of private runs."""
    config, mechanism = plan.config, plan.mechanism
    rule, name = rule_of(config), config.names["rule"]
    if mechanism.trust == "client" and config.by_sites:
        return (
            "each site's own noise covers the sum of its sampled clients' rows, clipped to "
            f"{mechanism.clip:g}, and its sampling is secret, so that {name} and every other "
            "use of these sums is post-processing"
        )
    memory = ", its memory of clients" if numbers_per_history(config, 1) else ""
    if noised_jointly(mechanism):
        return (
            f"each client's own noise, and the noise that it shares with {mechanism.honest - 1} "
            "more honest clients, cover its clipped row against the server and "
            f"{mechanism.noise().clients - mechanism.honest} clients that collude with it, so "
            f"that {name}{memory} and every other use of rows is post-processing"
        )
    if mechanism.trust == "client":
        return (
            f"each client's own noise covers its clipped row, so that {name}{memory} and every "
            "other use of rows or sums is post-processing"
        )
    assert isinstance(rule, SumRule)
    bounded = rule.sensitivity(CHANGE[plan.event.relation]) < math.inf
    what = "its terms are bounded" if bounded else "rows are clipped"
    first = " at first" if mechanism.adaptive else ""
    clip = f"{what} to {mechanism.clip:g}{first}"
    proof = f"{name} needs only sums, to which noise can be added: {clip}"
    releases = releases_per_round(config.messages(), rule)
    if releases > 1:
        proof += f"; {releases} sums over one cohort are one event, of noise z / sqrt({releases})"
    if config.by_sites:
        return proof + _of_sites(plan)
    if config.secured:
        proof += f"; {config.names['protocol']} carry sums, and the norm is that of encoded rows"
    return proof


def _of_sites(plan: Plan) -> str:
    """Explains why noise of sites covers their sums, and who must not know the sampling."""
    limits, protocol = plan.cost.limits, plan.config.names["protocol"]
    sampling = (
        f"; each of {limits.sites} sites samples its own clients in secret, and adds up rows "
        f"that it encodes one by one, whose norm is that of encoded rows; {protocol} carry "
        "these sums"
    )
    if plan.mechanism.trust != "sum":
        return sampling
    opener = plan.config.protocol.opener
    apart = f"{opener} does not collude with the server, and if " if opener != "the server" else ""
    return (
        f"{sampling}, and the noise of at least {limits.minimum - limits.colluders} honest sites "
        "is in each, so that subsampling amplifies privacy against the server, readers and any "
        f"{limits.colluders} of the sites together, if {apart}a site's other messages and their "
        "timing do not depend on any client's data"
    )
