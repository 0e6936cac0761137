"""What is refused of compressed updates, by what `[compression]` and the other parts declare."""

from __future__ import annotations

from collections.abc import Iterator

from defenses.types import RowRule
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.plan.rule import rule_of

_OF_ANY_ROWS = frozenset({"generator", "root"})
"""What a rule on rows may need that is neither about a model's numbers nor of former rounds."""
_LENGTH = 1000


def compression_refusals(config: Config) -> Iterator[str]:
    """Every reason why updates cannot be compressed so."""
    if config.compression.compresses:
        yield from _more_than_an_update(config)
        yield from _states_beside_gradients(config)
        yield from _rows_that_are_not_sent(config)
        yield from _rules_for_models(config)
        yield from _noise_of_other_rounds(config)
        yield from _two_exchanges(config)
        yield from _canaries(config)


def _named(config: Config) -> str:
    return f"compression.name = {config.names['compression']!r}"


def _more_than_an_update(config: Config) -> Iterator[str]:
    """What is compressed is one update `[d]`, sent in one exchange (`layout`, `exchanges`)."""
    objective = config.objective
    alone = objective.sends_updates_alone and objective.layout(_LENGTH).length == _LENGTH
    if not alone or objective.sums_states or objective.exchanges > 1:
        yield (
            f"{_named(config)} is for messages that are one update, and client.objective = "
            f"{config.names['objective']!r} sends more than that, or has the server sum what "
            'clients keep; use an objective that sends an update alone, as "sgd" or "fedprox"'
        )


def _states_beside_gradients(config: Config) -> Iterator[str]:
    """A state is either what was left off, or the gradient of all examples (`anchored`)."""
    if config.compression.keeps and config.objective.anchored == "all":
        yield (
            f"client.objective = {config.names['objective']!r} takes the place of a client's "
            f"memory for a gradient, and {_named(config)} remembers what it left off; set "
            "compression.error_feedback = false"
        )


def _rows_that_are_not_sent(config: Config) -> Iterator[str]:
    """A compression that is not `linear` saves bytes where the server is sent rows as they are."""
    if config.compression.linear:
        return
    instead = 'use a linear one, as "random_mask", "low_rank" or "count_sketch"'
    if config.secured:
        yield (
            f"{_named(config)} writes each row down by itself, and a secure sum adds up rows of "
            f"all numbers, whatever they are: it would save no byte, and cost accuracy; {instead}, "
            'or secure.protocol = "none"'
        )
    elif config.apart:
        yield (
            f"{_named(config)} writes each row down by itself, and sites elsewhere "
            "(data.site_partition) send the sums of their clients' rows, which have all numbers: "
            f"it would save no byte; {instead}"
        )
    elif config.mechanism.private and config.mechanism.trust != "server":
        yield (
            f"{_named(config)} writes each row down by itself, and under privacy.mechanism = "
            f"{config.names['mechanism']!r} a client adds noise to all of its numbers before it "
            f'sends them: it would save no byte; {instead}, or privacy.mechanism = "gaussian"'
        )


def _rules_for_models(config: Config) -> Iterator[str]:
    """A rule remembers updates, or goes by layers, and what is sent are other numbers."""
    try:
        rule = rule_of(config)
    except Refused:
        return  # which is said of the rule
    needs = rule.needs() if isinstance(rule, RowRule) else frozenset()
    if config.compression.linear and (rule.remembers or needs - _OF_ANY_ROWS):
        yield (
            f"aggregation.rule = {config.names['rule']!r} goes by former updates or by layers of "
            f"a model, and with {_named(config)} clients send other numbers; use another rule, or "
            "a compression of each row by itself"
        )


def _noise_of_other_rounds(config: Config) -> Iterator[str]:
    """Noise is correlated over rounds (`remembers`), and places mean something else (`fresh`)."""
    if config.mechanism.remembers and config.compression.fresh:
        yield (
            f"noise of privacy.mechanism = {config.names['mechanism']!r} cancels over rounds where "
            f"these release the same numbers, and {_named(config)} sends others in each; use "
            '"count_sketch", or privacy.mechanism = "gaussian"'
        )


def _two_exchanges(config: Config) -> Iterator[str]:
    """Clients send two parts of one update (`exchanges`), which only plain sums put together."""
    if config.compression.exchanges == 1:
        return
    try:
        rule = rule_of(config)
    except Refused:
        return
    if config.mechanism.joint:
        yield (
            f"{_named(config)} puts two sums of one cohort together, and under privacy.mechanism = "
            f"{config.names['mechanism']!r} the server is sent rows; use "
            'privacy.mechanism = "gaussian", or compression.name = "low_rank"'
        )
    elif rule.robust:
        yield (
            f"{_named(config)} puts two sums of one cohort together, and aggregation.rule = "
            f'{config.names["rule"]!r} is for rows of which each is an update; use "mean"'
        )
    if config.client_mechanism.private:
        yield (
            f"{_named(config)} asks twice about one training, and client.privacy.mechanism = "
            f"{config.names['client_mechanism']!r} would draw the noise of its steps twice, and be "
            'charged once; use "low_rank"'
        )
    if config.attacked:
        yield (
            f"{_named(config)} has clients send two messages about one update, and attackers are "
            "simulated for one; use another compression"
        )


def _canaries(config: Config) -> Iterator[str]:
    """Canaries are scored by what is released, number by number of a model."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, and they are scored by releases of whole "
            f'updates; with {_named(config)} use compression.name = "none" to audit'
        )
