"""Refusals about secure sums, noise that pairs of clients share, and compressed messages."""

from __future__ import annotations

from collections.abc import Iterator

from defenses.types import RowRule
from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
from privfed.plan.rule import rule_of
from privfed.plan.sum_limits import configured_limits


def joint_noise_refusals(config: Config) -> Iterator[str]:
    """Yields every reason against noise shared by pairs of clients; none without such noise."""
    if config.joint_noise is None:
        return
    mechanism = f"privacy.mechanism = {config.names['mechanism']!r}"
    yield from _draws(config, mechanism)
    yield from _hidden_rows(config, mechanism)
    yield from _sites(config, mechanism)
    yield from _canaries_in_shares(config, mechanism)
    yield from _evaluations(config, mechanism)


def _draws(config: Config, mechanism: str) -> Iterator[str]:
    """Yields a refusal of samplers by which not all clients take part in every round.

    All others in a client's cohort could be colluders, who know the noise that they share with it.
    `mechanism` names the mechanism in messages.
    """
    witness = config.sampler.witness(0, config.data.clients)
    if witness.random or witness.rate < 1:
        yield (
            f"{mechanism} is proved only if all clients take part in each round, but "
            f"cohort.sampler is {config.names['sampler']!r}: the party that samples could choose a "
            "cohort of colluders for a client, who know all noise that it shares with them; use "
            'cohort.sampler = "full"'
        )


def _hidden_rows(config: Config, mechanism: str) -> Iterator[str]:
    """Yields a refusal of secure sums, since the noise protects rows that the server receives."""
    if config.secured:
        yield (
            f"{mechanism} protects rows that the server receives, but with secure.protocol = "
            f'{config.names["protocol"]!r} it receives none; use secure.protocol = "none", or '
            'noise within a secure sum: privacy.mechanism = "discrete_gaussian"'
        )


def _sites(config: Config, mechanism: str) -> Iterator[str]:
    """Yields a refusal of sites as parties, since the proof is for clients that share secrets."""
    if config.by_sites:
        yield (
            f"{mechanism} is proved for clients that share secrets with each other, but the "
            'parties are sites; use secure.parties = "clients", or privacy.mechanism = '
            '"local_gaussian"'
        )


def _canaries_in_shares(config: Config, mechanism: str) -> Iterator[str]:
    """Yields a refusal if the run has canaries.

    Pairs of clients share noise, so leaving one canary out would change the noise of all other
    rows. `mechanism` names the mechanism in the message.
    """
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but with {mechanism} every client shares "
            "noise with every other participant, so leaving a canary out would change all rows, "
            "which reveals its absence; remove audit.canaries, and test the mechanism alone: "
            "`privfed audit --mechanism RUN.toml`"
        )


def _evaluations(config: Config, mechanism: str) -> Iterator[str]:
    """Yields a refusal of evaluation by clients, which sums metrics: joint noise is for rows."""
    if config.evaluation_rounds.every:
        yield (
            f'evaluation.by is "clients", so metrics are summed, but {mechanism} is for rows that '
            'a rule averages; use evaluation.by = "test"'
        )


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
    """Yields a refusal of compression that is not linear if messages have all entries anyway.

    They do with a secure sum, remote sites, or noise that clients add: it would save no bytes.
    """
    if config.compression.linear:
        return
    linear = built_in_names("compression", lambda part: part.compresses and part.linear)
    instead = f"use a linear compression: {linear}"
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
    if config.compression.linear and (rule.remembers or needs - _OF_ANY_ROWS):
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
    """Yields a refusal of canaries, which are scored by releases of uncompressed updates."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but canaries are scored by releases of "
            f"whole updates, and with {_named(config)} releases are compressed; use "
            'compression.name = "none", or remove audit.canaries'
        )


def secure_sum_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why a secure sum is not possible, or a key requires one."""
    yield from _party_without_shared_noise(config)
    if not config.secured:
        yield from _shared_noise_without_sums(config)
        yield from _keys_without_protocol(config)
        return
    yield from _impossible_limits(config)
    yield from _layers_without_secrets(config)
    yield from _minimum_above_capacity(config)
    yield from _approximate_sums_unnoised(config)
    yield from _unknown_numbers_of_senders(config)


def _party_without_shared_noise(config: Config) -> Iterator[str]:
    """Yields a refusal of `privacy.against` unless noise is distributed."""
    if config.privacy.against != "server" and config.mechanism.trust != "sum":
        yield (
            f"privacy.against is {config.privacy.against!r}, but only distributed noise "
            "(discrete_gaussian, skellam) has two guarantees; remove privacy.against"
        )


def _shared_noise_without_sums(config: Config) -> Iterator[str]:
    """Yields a refusal of a mechanism that adds noise within a secure sum; for use without one."""
    if config.mechanism.trust == "sum":
        yield (
            f"privacy.mechanism = {config.names['mechanism']!r} adds its noise within a secure "
            "sum, but none is configured; set secure.protocol = "
            f"{built_in_names('protocol', lambda part: part.hides_rows and not part.approximate)}"
        )


def _keys_without_protocol(config: Config) -> Iterator[str]:
    """Yields a refusal of keys of secure sums if there is no secure sum."""
    for key, unset in (("capacity", 0), ("minimum", 0), ("simulate", "messages")):
        if getattr(config.secure, key) != unset:
            yield (
                f"secure.{key} is set, but has an effect only with a secure.protocol; set "
                f"secure.protocol, or remove secure.{key}"
            )


def _impossible_limits(config: Config) -> Iterator[str]:
    """Yields a refusal of limits that the protocol itself refuses."""
    try:
        config.protocol.over(configured_limits(config))
    except Refused as refused:
        yield str(refused)


def _layers_without_secrets(config: Config) -> Iterator[str]:
    """Yields a refusal of noise in layers if the protocol cannot remove those in excess."""
    mechanism = config.mechanism
    if mechanism.trust == "sum" and mechanism.layered and not config.protocol.layers:
        yield (
            'privacy.sizing is "layers", but only masked sums can remove layers of noise; use '
            'secure.protocol = "masks", or privacy.sizing = "minimum"'
        )


def _minimum_above_capacity(config: Config) -> Iterator[str]:
    """Yields a refusal of a minimum of survivors above the largest number of clients of a sum."""
    secure = config.secure
    if secure.capacity and secure.minimum > secure.capacity:
        yield (
            f"secure.minimum is {secure.minimum}, but secure.capacity is {secure.capacity}; lower "
            "secure.minimum, or raise secure.capacity"
        )


def _approximate_sums_unnoised(config: Config) -> Iterator[str]:
    """Yields a refusal of `approximate` decrypted sums if others than the key holder see them."""
    if config.protocol.approximate and config.mechanism.trust != "server":
        yield (
            f"secure.protocol = {config.names['protocol']!r} decrypts to approximate sums, but "
            "other parties could recover the key from them; use noise that the key holder adds "
            '(privacy.mechanism = "gaussian"), or secure.protocol = "bfv"'
        )


def _unknown_numbers_of_senders(config: Config) -> Iterator[str]:
    """Yields a refusal of `client.drop_stragglers` and of varying `cohort.availability`.

    They make the probability of dropouts unknown, on which that of aborts depends. Nothing is
    refused if sites are the senders.
    """
    if config.by_sites:  # the senders are sites, whichever of their clients are available
        return
    if config.client.drop_stragglers or config.availability.varies:
        yield (
            "client.drop_stragglers or cohort.availability makes dropouts of a secure sum "
            "unpredictable, but the probability of aborts is computed from that of dropouts; use "
            'cohort.dropout, client.drop_stragglers = false and cohort.availability = "always"'
        )
