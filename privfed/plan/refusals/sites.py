"""Refusals about sites (thresholds, sampling at sites, states), and about silos with DP-SGD."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from defenses.types import SumRule
from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
from privfed.plan.refusals.sampling import release_of_draw
from privfed.plan.rule import rule_of
from privfed.plan.sum_limits import configured_limits
from privfed.sampling.cohort import draws_of


def silo_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why weights of silos, or DP-SGD in silos, are not possible."""
    yield from _silo_weights(config)
    if config.client_mechanism.private:
        yield from _examples_of_phones(config)
        yield from _mixed_precision(config)
        yield from _unnoised_reads_of_examples(config)
        yield from _weights_that_reveal_sizes(config)
        yield from _samplers_that_reveal_sizes(config)
        yield from _steps_counted_twice(config)


def _silo_weights(config: Config) -> Iterator[str]:
    """Yields a refusal of `aggregation.silo_weights` that have no effect or are invalid.

    They have none under privacy, or if the server sums clients' states. They must be one number per
    client, not all 0, and need silos and the default of `aggregation.weights`.
    """
    weights = config.aggregation.silo_weights
    if not weights:
        return
    if config.mechanism.private or config.objective.sums_states:
        yield (
            "aggregation.silo_weights is set, but every client has weight 1 under user-level "
            "privacy, and if the server sums clients' states; remove aggregation.silo_weights"
        )
    elif len(weights) != config.data.clients or not any(weights):
        yield (
            f"aggregation.silo_weights has {len(weights)} numbers; expected {config.data.clients}, "
            "one number for each client (data.clients), not all 0"
        )
    elif config.aggregation.weights != "auto" or config.data.setting != "cross_silo":
        yield (
            'aggregation.silo_weights is set, but needs data.setting = "cross_silo" and the '
            "default of aggregation.weights; set data.setting, and remove aggregation.weights"
        )


def _examples_of_phones(config: Config) -> Iterator[str]:
    """Yields a refusal of DP-SGD per example (`client.privacy`) unless clients are silos."""
    if config.data.setting != "cross_silo":
        yield (
            f"client.privacy.mechanism is {_name(config)!r}, which protects single examples of a "
            f'silo, but data.setting is {config.data.setting!r}; set data.setting = "cross_silo", '
            "or protect whole clients by privacy.mechanism"
        )


def _mixed_precision(config: Config) -> Iterator[str]:
    """Yields a refusal of DP-SGD unless in full precision, which per-example gradients need."""
    if config.run.precision in ("mixed", "fast"):
        yield (
            f'run.precision is "{config.run.precision}", but client.privacy.mechanism = '
            f"{_name(config)!r} needs gradients of single examples in full precision; use "
            'run.precision = "full"'
        )


def _unnoised_reads_of_examples(config: Config) -> Iterator[str]:
    """Yields a refusal of an objective that uses examples outside the local steps, without noise.

    Objectives declare this by `anchored`, `measures`, `exchanges`, `grouping` or `changes_loss`.
    """
    if _reads_examples(config.objective):
        instead = built_in_names("objective", lambda part: not _reads_examples(part))
        yield (
            f"client.objective = {config.names['objective']!r} uses a silo's examples outside of "
            f"the local steps, but client.privacy.mechanism = {_name(config)!r} adds noise only in "
            f"these steps; use {instead}"
        )


def _reads_examples(objective: Objective) -> bool:
    """Whether the objective declares one of the uses that `_unnoised_reads_of_examples` lists."""
    gradients = objective.anchored or objective.changes_loss
    reads = gradients or objective.measures or objective.grouping
    return bool(reads) or objective.exchanges > 1


def _steps_counted_twice(config: Config) -> Iterator[str]:
    """Yields a refusal of `client.steps`, since the keys of DP-SGD determine the charged steps."""
    if config.client.steps:
        yield (
            f"client.steps is {config.client.steps}, but client.privacy.mechanism = "
            f"{_name(config)!r} determines the number of charged steps; remove client.steps, and "
            "set client.privacy.sampling_rate and client.epochs"
        )


def _weights_that_reveal_sizes(config: Config) -> Iterator[str]:
    """Yields a refusal of weights by numbers of examples, which DP-SGD in silos protects."""
    if config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but a silo\'s number of examples is protected '
            f"by client.privacy.mechanism = {_name(config)!r}; declare aggregation.silo_weights "
            'as public constants, or use "uniform"'
        )


def _samplers_that_reveal_sizes(config: Config) -> Iterator[str]:
    """Yields a refusal of samplers that read silos' sizes, which DP-SGD in silos protects."""
    if config.sampler.reads_sizes:
        yield (
            f"cohort.sampler is {config.names['sampler']!r}, but a silo's number of examples is "
            f"protected by client.privacy.mechanism = {_name(config)!r}; use "
            f"{built_in_names('sampler', lambda part: not part.reads_sizes)}"
        )


def _name(config: Config) -> str:
    """Returns the name of the mechanism by which silos protect their examples."""
    return config.names["client_mechanism"]


def site_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why sites cannot be the parties, or hold rows of the same clients."""
    yield from _sites_that_are_none(config)
    yield from _clients_at_several_sites(config)
    if config.by_sites or config.at_remote_sites:
        yield from _unproven_draws(config)
        yield from _states_at_sites(config)
        yield from _attackers_elsewhere(config)
    if not config.by_sites:
        return
    yield from _thresholds(config)
    yield from _clients_in_several_sums(config)
    yield from _numbers_of_clients(config)
    yield from _one_view(config)
    yield from _bounds_that_sites_keep(config)
    yield from _noise_twice(config)
    yield from _rules_on_rows(config)


def _sites_that_are_none(config: Config) -> Iterator[str]:
    """Yields a refusal of sites as parties without sites, or without secure sum or local noise."""
    if config.secure.parties != "sites" or config.by_sites:
        return
    if not config.data.sites:
        yield (
            'secure.parties is "sites", but data.sites is 0; set data.sites to the number of sites '
            "that hold the clients"
        )
        return
    yield (
        'secure.parties is "sites", but the server sees rows and adds the noise, so no secure '
        'sum has parties; set secure.protocol = "masks", or privacy.mechanism = "local_gaussian", '
        "or leave secure.parties out"
    )


def _clients_at_several_sites(config: Config) -> Iterator[str]:
    """Yields a refusal of clients with rows at several sites if another part does not allow them.

    The other part either has no proof for them, or is not simulated for them.
    """
    parts, mechanism = config.data.sites_per_client, config.mechanism
    if parts == 1:
        return
    key = f"data.sites_per_client is {parts}"
    if config.has_attackers or config.keeping:
        what = "attackers" if config.has_attackers else "clients with state"
        yield (
            f"{key}, but {what} are simulated only for clients with rows at one site; remove one "
            "of the two"
        )
    if not mechanism.private:
        return
    if not isinstance(release_of_draw(config), PoissonSampled):
        yield (
            f"{key}, but cohort.sampler = {config.names['sampler']!r} has no proof for clients "
            f"with rows at several sites; use {draws_of(PoissonSampled)}"
        )
    if (mechanism.trust != "server" or config.secured) and not config.by_sites:
        yield (
            f"{key}, but clients are the parties of sums (secure.parties), so one client would be "
            'several parties; use secure.parties = "sites", or no secure sum: secure.protocol = '
            '"none" and privacy.mechanism = "gaussian"'
        )
    if config.rule.robust or config.aggregation.before:
        before = config.aggregation.before
        stated = f" with aggregation.before = {before}" if before else ""
        yield (
            f"{key}, but aggregation.rule = {config.names['rule']!r}{stated} "
            'treats each row as that of one client; use aggregation.rule = "mean" alone'
        )
    if mechanism.adaptive:
        yield (
            f"{key}, but privacy.adaptive_clip counts each client once, and not its row at each "
            "site; set privacy.adaptive_clip to false"
        )


def _thresholds(config: Config) -> Iterator[str]:
    """Yields a refusal of too small a minimum number n_min of surviving sites.

    With k colluding sites and threshold t, n_min - k >= 1 and n_min >= t must hold (rules of proof,
    section 9.1, S5 and S6).
    """
    protocol, sites = config.row_hiding, config.data.sites
    if protocol is None:
        return
    limits, least = configured_limits(config), protocol.least_sites(config.data.sites)
    if least > sites:
        yield (
            f"data.sites is {sites}, but at least {least} surviving sites are needed to keep a "
            f"site's sum secret from the server and {limits.colluders} colluding sites; declare "
            "more sites (data.sites), or lower secure.colluders"
        )
    elif not least <= limits.minimum <= sites:
        yield (
            f"secure.minimum is {limits.minimum} sites; expected a number from {least} (the number "
            "of shares that reconstruct a secret, by secure.threshold, secure.colluders and "
            f"secure.threat) to data.sites = {sites}"
        )
    elif protocol.site_noise(limits).counted < 1:
        yield (
            f"secure.minimum is {limits.minimum} surviving sites, but {limits.colluders} sites may "
            "collude or be Byzantine, so no honest noise may remain; raise secure.minimum, or "
            "lower secure.colluders"
        )


def _clients_in_several_sums(config: Config) -> Iterator[str]:
    """Yields a refusal of clients at several sites if a party opens the sum of some sites."""
    parts, protocol = config.data.sites_per_client, config.row_hiding
    if parts > 1 and protocol and protocol.part_openers and config.mechanism.private:
        yield (
            f"data.sites_per_client is {parts}, but under secure.protocol = "
            f"{config.names['protocol']!r} a coordinator opens the sum of a part of the sites, for "
            "which clients with rows at several sites have no proof; use secure.protocol = "
            '"masks"'
        )


def _numbers_of_clients(config: Config) -> Iterator[str]:
    """Yields a refusal of `secure.capacity`, `admitted` and `neighbours`: sites are the parties."""
    keys = {"secure.capacity": config.secure.capacity}
    values = config.values()["secure"]
    keys |= {f"secure.{name}": values.get(name, 0) for name in ("admitted", "neighbours")}
    for key, value in keys.items():
        if value:
            yield (
                f"{key} is {value}, but the parties are sites, which all take part in every round; "
                f'remove {key}, or set secure.parties = "clients"'
            )


def _unproven_draws(config: Config) -> Iterator[str]:
    """Yields a refusal of samplers other than Poisson and full if sites sample clients."""
    if config.mechanism.private and not isinstance(
        release_of_draw(config), PoissonSampled | Gaussian
    ):
        yield (
            f"cohort.sampler = {config.names['sampler']!r} has no proof if sites sample their "
            f"own clients (secure.parties); use {draws_of(PoissonSampled, Gaussian)}"
        )


def _states_at_sites(config: Config) -> Iterator[str]:
    """Yields a refusal of clients with state between rounds at sites, which keep no such state."""
    if config.keeping:
        yield (
            f"{config.keeping} keeps client state between rounds, but sites keep none: at a site, "
            "a row must depend only on the client's data, the released model and new random "
            'draws; use another objective, or secure.parties = "clients"'
        )


def _attackers_elsewhere(config: Config) -> Iterator[str]:
    """Yields a refusal of attackers at sites on their own machines, which simulate none."""
    if config.at_remote_sites and config.has_attackers:
        yield (
            f"attack.fraction is {config.attackers.fraction:g}, but clients are at sites on "
            'machines of their own (data.site_partition = "elsewhere"), which simulate no '
            "attackers; simulate the sites in one process"
        )


def _one_view(config: Config) -> Iterator[str]:
    """Yields a refusal of `privacy.against`: one guarantee covers server, readers and sites."""
    if config.privacy.against != "server":
        yield (
            f"privacy.against is {config.privacy.against!r}, but if sites sample their own "
            "clients, one guarantee holds against the server, readers and colluding sites "
            "together; remove privacy.against"
        )


def _bounds_that_sites_keep(config: Config) -> Iterator[str]:
    """Yields a refusal of attackers that send unbounded rows, since honest sites bound all rows."""
    if config.has_attackers and config.attackers.stage == "after_bound":
        yield (
            'attack.stage is "after_bound", but a site bounds each of its clients\' rows, and '
            'Byzantine sites are not simulated; use "before_bound", or secure.parties = '
            '"clients"'
        )


def _noise_twice(config: Config) -> Iterator[str]:
    """Yields a refusal of a secure sum if each site's own noise already protects its sum."""
    if config.mechanism.trust == "client" and config.secured:
        yield (
            f"secure.protocol is {config.names['protocol']!r}, but with privacy.mechanism = "
            f"{config.names['mechanism']!r} each site's own noise already protects its sum; use "
            'secure.protocol = "none", or a mechanism that divides the noise among sites: '
            'privacy.mechanism = "discrete_gaussian"'
        )


def _rules_on_rows(config: Config) -> Iterator[str]:
    """Yields a refusal of a rule on clients' rows, since sites send only sums."""
    try:
        rule = rule_of(config)
    except Refused:
        return
    if not isinstance(rule, SumRule):
        yield (
            f"aggregation.rule = {config.names['rule']!r} needs every client's row, but sites send "
            "only sums of their clients' rows; use a rule that needs only sums, or secure.parties "
            '= "clients"'
        )
