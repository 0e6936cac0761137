"""Refusals of plans that do not fit the loaded population, or the model that was built."""

from __future__ import annotations

from defenses.types import RowRule
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.data.federation import Federation
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.plan.refusals.clients import averages_statistics
from privfed.round.algorithm import Algorithm
from privfed.secure.aborts import refuse_population


def refuse_other_population(plan: Plan, federation: Federation) -> None:
    """Raises `Refused` if the plan's guarantee is not proved for this number of clients."""
    clients, present = plan.config.data.clients, federation.population_size
    if plan.mechanism.private:
        plan.cost.witness.refuse_population(present, clients)
    if plan.cost.limits.sites:
        _refuse_full_sums(plan, federation)
    elif plan.event.slack:
        refuse_population(present, clients)


def _refuse_full_sums(plan: Plan, federation: Federation) -> None:
    """Raises `Refused` for more clients than a sum over sites can hold.

    The sum, which must never abort, holds `data.clients` times `data.sites_per_client` rows.
    """
    data = plan.config.data
    declared = data.clients * data.sites_per_client
    if plan.cost.limits.rows and federation.clients > declared:
        raise Refused(
            f"data.clients and data.sites_per_client declare at most {declared} rows of clients at "
            "sites, but the data have more, so sums over sites could overflow; raise data.clients"
        )


def refuse_unfit_model(config: Config, algorithm: Algorithm, network: Network) -> None:
    """Raises `Refused` if the rule does not suit the model, or its statistics are not averaged."""
    _refuse_averages(config, network)
    _refuse_unfit_rule(config, algorithm, network)
    protocol = config.row_hiding
    if protocol and max(config.data.site_delays, default=0) and algorithm.mechanism.rotates:
        raise Refused(
            f"secure.bits is {protocol.bits}, so rows are rotated by signs of each round, but with "
            f"data.site_delays = {config.data.site_delays} sites encode rows before their round; "
            "raise secure.bits, or remove data.site_delays"
        )


def _refuse_unfit_rule(config: Config, algorithm: Algorithm, network: Network) -> None:
    """Raises `Refused` if the aggregation rule does not suit the model's layers."""
    rule = algorithm.rule
    if isinstance(rule, RowRule) and (why := rule.unfit_reason(network.shapes.sizes)):
        raise Refused(
            f"aggregation.rule is {config.names['rule']!r}, but does not suit this model, because "
            f"{why}; "
            'use another rule, or model.name = "mlp"'
        )


def _refuse_averages(config: Config, network: Network) -> None:
    """Raises `Refused` if running statistics are averaged, but a key does not support that."""
    names, data = config.names, config.data
    refused = (
        (
            "client.objective",
            names["objective"],
            '"sgd"',
            not averages_statistics(config.objective),
        ),
        ("compression.name", names["compression"], '"none"', config.compression.compresses),
        ("secure.protocol", names["protocol"], '"none"', config.secured),
        ("attack.name", names["attack"], "another", config.has_attackers and config.attack.steers),
        ("data.site_partition", data.site_partition, "another value", config.at_remote_sites),
    )
    for key, value, instead, wrong in refused:
        if wrong and network.averaged.names:
            raise Refused(
                f"{key} is {value!r}, but clients average the running statistics of "
                f"{network.averaged.names[0].rpartition('.')[0]!r}, a batch normalisation, which "
                f"this value does not support; use {instead}, or group normalisation in the model",
                key=key,
            )
