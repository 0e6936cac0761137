"""Refusals of compressions with messages, rules, noise, canaries or models that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from defenses.types import RowRule
from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
from privfed.plan.rule import rule_of

_OF_ANY_ROWS = frozenset({"generator", "root"})
"""Inputs of a rule that depend on neither the model's parameters nor earlier rounds."""
_LENGTH = 1000


def compression_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why updates cannot be compressed with this method."""
    if config.compression.compresses:
        yield from _more_than_an_update(config)
        yield from _states_with_gradients(config)
        yield from _rows_that_are_not_sent(config)
        yield from _rules_for_models(config)
        yield from _noise_of_other_rounds(config)
        yield from _two_exchanges(config)
        yield from _canaries(config)
        yield from _public_examples(config)
        yield from _clip_above_bound(config)
        yield from _own_models(config)


def _named(config: Config) -> str:
    return f"compression.name = {config.names['compression']!r}"


def _more_than_an_update(config: Config) -> Iterator[str]:
    """Yields a refusal of objectives that send more than one update, or client states to sum."""
    if not _sends_an_update(config.objective):
        yield (
            f"{_named(config)} is for messages that are one update, but client.objective = "
            f"{config.names['objective']!r} sends more than one update, or lets the server sum "
            "clients' states; use an objective that sends only an update: "
            f"{built_in_names('objective', _sends_an_update)}"
        )


def _sends_an_update(objective: Objective) -> bool:
    """Whether messages are one update, in one exchange, and nothing else is summed."""
    alone = objective.sends_updates_alone and objective.layout(_LENGTH).length == _LENGTH
    return alone and not objective.sums_states and objective.exchanges == 1


def _states_with_gradients(config: Config) -> Iterator[str]:
    """Yields a refusal of client state that would hold both a compression error and a gradient."""
    if config.compression.keeps and config.objective.anchored == "all":
        yield (
            f"client.objective = {config.names['objective']!r} stores a gradient in a client's "
            f"state, but {_named(config)} stores the compression error there; set "
            "compression.error_feedback = false"
        )


def _rows_that_are_not_sent(config: Config) -> Iterator[str]:
    """Yields a refusal of compression that sends rows, not sums, if rows have all entries anyway.

    They do with a secure sum, remote sites, or noise that clients add: it would save no bytes.
    """
    if config.compression.summable:
        return
    summable = built_in_names("compression", lambda part: part.compresses and part.summable)
    instead = f"use a compression for sums: {summable}"
    if config.secured:
        yield (
            f"{_named(config)} encodes each row by itself, but a secure sum needs all entries of "
            f"rows, so compression would save no bytes and reduce accuracy; {instead}, or "
            'secure.protocol = "none"'
        )
    elif config.at_remote_sites:
        yield (
            f"{_named(config)} encodes each row by itself, but with data.site_partition = "
            '"elsewhere" sites send sums of their clients\' rows, which have all entries, so '
            f"compression would save no bytes; {instead}"
        )
    elif config.mechanism.private and config.mechanism.trust != "server":
        yield (
            f"{_named(config)} encodes each row by itself, but under privacy.mechanism = "
            f"{config.names['mechanism']!r} a client adds noise to all entries before it sends "
            f"the row, so compression would save no bytes; {instead}, or privacy.mechanism = "
            '"gaussian"'
        )


def _rules_for_models(config: Config) -> Iterator[str]:
    """Yields a refusal of a rule that needs earlier updates or model layers.

    Compressed rows have neither.
    """
    try:
        rule = rule_of(config)
    except Refused:
        return  # the rule's own refusal
    needs = rule.needs() if isinstance(rule, RowRule) else frozenset()
    if config.compression.summable and (rule.remembers or needs - _OF_ANY_ROWS):
        yield (
            f"aggregation.rule = {config.names['rule']!r} depends on earlier updates or on the "
            f"layers of a model, but under {_named(config)} clients send compressed rows, which "
            "have neither the layers nor the coordinates of an update; use another rule, or a "
            "compression that encodes each row by itself"
        )


def _noise_of_other_rounds(config: Config) -> Iterator[str]:
    """Yields a refusal of noise correlated over rounds if rounds release different entries."""
    if config.mechanism.remembers and config.compression.fresh:
        yield (
            f"privacy.mechanism is {config.names['mechanism']!r}, whose noise cancels over rounds "
            f"that release the same entries, but with {_named(config)} the entries differ in each "
            'round; use compression.name = "count_sketch", or privacy.mechanism = "gaussian"'
        )


def _two_exchanges(config: Config) -> Iterator[str]:
    """Yields refusals of compression with two messages per update (`exchanges`).

    Refused are a mechanism, rule, client mechanism or attack that permits only one message.
    """
    if config.compression.exchanges == 1:
        return
    try:
        rule = rule_of(config)
    except Refused:
        return
    if config.mechanism.joint:
        yield (
            f"{_named(config)} combines two sums of one cohort, but under privacy.mechanism = "
            f"{config.names['mechanism']!r} the server receives rows; use privacy.mechanism = "
            '"gaussian", or compression.name = "low_rank"'
        )
    elif rule.robust:
        yield (
            f"{_named(config)} combines two sums of one cohort, but aggregation.rule = "
            f"{config.names['rule']!r} needs rows that are updates; use aggregation.rule = "
            '"mean"'
        )
    if config.client_mechanism.private:
        yield (
            f"{_named(config)} has a silo send two messages about one training, but "
            f"client.privacy.mechanism = {config.names['client_mechanism']!r} would sample its "
            'noise again for the second one, uncharged; use compression.name = "low_rank"'
        )
    if config.has_attackers:
        yield (
            f"{_named(config)} has clients send two messages per update, but attackers are "
            "simulated only for one message; use another compression"
        )


def _canaries(config: Config) -> Iterator[str]:
    """Yields a refusal of canaries unless all releases are sums of rows with the same entries."""
    compression = config.compression
    same = compression.summable and not compression.fresh and compression.exchanges == 1
    if config.audit.canaries and (config.audit.by_inputs or not same):
        yield (
            f"audit.canaries is {config.audit.canaries}, but canaries are scored by releases of "
            f"whole updates, and with {_named(config)} releases are compressed; use "
            'compression.name = "none", or remove audit.canaries'
        )


def _public_examples(config: Config) -> Iterator[str]:
    """Yields refusals of public examples that are not public, or counted twice."""
    count, root = config.compression.public, config.aggregation.root
    if not count:
        return
    if config.nothing_public or config.data.holdout == "examples":
        yield (
            f"data.holdout is {config.data.holdout!r}, but {_named(config)} needs public examples, "
            'which it takes from the public test set; use data.holdout = "test" or "clients"'
        )
    if root not in (0, count):
        yield (
            f"compression.examples is {count} and aggregation.root is {root}, but both are the "
            "number of the same public examples; set aggregation.root to compression.examples"
        )
    if config.start.local:
        yield (
            f"{_named(config)} is about predictions of the server's model, but model.local keeps a "
            "part of the model on each client; remove model.local"
        )


def _clip_above_bound(config: Config) -> Iterator[str]:
    """Yields a refusal of a clipping norm above the largest norm that a message can have."""
    bound, mechanism = config.compression.norm_bound, config.mechanism
    fixed = mechanism.private and "privacy.clip" not in config.open
    if fixed and mechanism.clip > bound * (1 + 1e-6):
        yield (
            f"privacy.clip is {mechanism.clip:g}, but a message has a norm of at most {bound:.4g} "
            f"with {_named(config)} and its keys, so a larger clipping norm only adds noise; set "
            f"privacy.clip to {bound:.4g} or less"
        )


def _own_models(config: Config) -> Iterator[str]:
    """Yields refusals of clients' own models with what needs the server's model on clients."""
    if not config.compression.trains_own_models:
        return
    trained = f"{_named(config)} has clients train their own models"
    if not config.objective.plain:
        yield (
            f"{trained}, but client.objective = {config.names['objective']!r} compares them with "
            "the server's model, which clients do not receive; use client.objective = "
            f"{built_in_names('objective', lambda part: part.plain and _sends_an_update(part))}"
        )
    if config.has_attackers and config.attack.steers:
        yield (
            f"{trained}, but attack.name = {config.names['attack']!r} steers the server's model; "
            "use another attack, or remove compression.models and compression.keep_models"
        )
    if config.example_privacy:
        yield (
            f"{trained}, but client.privacy.mechanism = {config.names['client_mechanism']!r} "
            "protects the examples of one model, the server's; remove compression.models and "
            'compression.keep_models, or use client.privacy.mechanism = "none"'
        )
