"""Refusals about secure sums, noise that clients share, and compressed messages."""

from __future__ import annotations

from collections.abc import Iterator

from defenses.types import RowRule
from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import offered
from privfed.plan.rule import rule_of
from privfed.plan.sum_limits import configured_limits


def joint_noise_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why clients cannot share noise (`mechanism.joint`) here."""
    if config.joint_noise is None:
        return
    mechanism = f"privacy.mechanism = {config.names['mechanism']!r}"
    yield from _draws(config, mechanism)
    yield from _hidden_rows(config, mechanism)
    yield from _sites(config, mechanism)
    yield from _canaries_in_shares(config, mechanism)
    yield from _evaluations(config, mechanism)


def _draws(config: Config, mechanism: str) -> Iterator[str]:
    """Sampling could put a client into a cohort of colluders, which know its noise."""
    witness = config.sampler.witness(0, config.data.clients)
    if witness.random or witness.rate < 1:
        yield (
            f"{mechanism} is proved for rounds in which all clients take part, but cohort.sampler "
            f"is {config.names['sampler']!r}, and a sampling party could place a client in a "
            'cohort of colluders, who know all noise that the client shares with them; use "full"'
        )


def _hidden_rows(config: Config, mechanism: str) -> Iterator[str]:
    """The noise protects rows that the server sees, but a protocol hides them."""
    if config.secured:
        yield (
            f"{mechanism} protects rows that the server sees, but secure.protocol = "
            f'{config.names["protocol"]!r} reveals none; use secure.protocol = "none", or noise '
            'that is added within a sum: privacy.mechanism = "discrete_gaussian"'
        )


def _sites(config: Config, mechanism: str) -> Iterator[str]:
    """Clients are the parties, and each shares secrets with all others."""
    if config.by_sites:
        yield (
            f"{mechanism} is proved for clients that share secrets, not for sites that hold "
            'several; use secure.parties = "clients", or privacy.mechanism = "local_gaussian"'
        )


def _canaries_in_shares(config: Config, mechanism: str) -> Iterator[str]:
    """Leaving out a canary changes the noise of all other rows, which reveals its absence."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but under {mechanism} every client "
            "shares noise with every other participant: leaving out a canary changes all rows; "
            "remove the key, and test the mechanism alone: `privfed audit --mechanism`"
        )


def _evaluations(config: Config, mechanism: str) -> Iterator[str]:
    """Metrics of clients are summed over a constant, and rows that share noise are averaged."""
    if config.evaluation_rounds.every:
        yield (
            f'evaluation.by is "clients", whose metrics are summed, but {mechanism} is for rows '
            'that a rule averages; use evaluation.by = "test"'
        )


_OF_ANY_ROWS = frozenset({"generator", "root"})
"""Inputs of a rule on rows that concern neither the model's parameters nor earlier rounds."""
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
    """Compression requires one update `[d]`, sent in one exchange (`layout`, `exchanges`)."""
    if not _sends_an_update(config.objective):
        yield (
            f"{_named(config)} is for messages that are one update, but client.objective = "
            f"{config.names['objective']!r} sends more than that, or has the server sum "
            "clients' states; use an objective that sends only an update: "
            f"{offered('objective', _sends_an_update)}"
        )


def _sends_an_update(objective: Objective) -> bool:
    """Whether messages are one update, in one exchange, and nothing else is summed."""
    alone = objective.sends_updates_alone and objective.layout(_LENGTH).length == _LENGTH
    return alone and not objective.sums_states and objective.exchanges == 1


def _states_with_gradients(config: Config) -> Iterator[str]:
    """Client state can hold a compression error or a gradient (`anchored`), not both."""
    if config.compression.keeps and config.objective.anchored == "all":
        yield (
            f"client.objective = {config.names['objective']!r} uses a client's memory for a "
            f"gradient, but {_named(config)} uses it for the compression error; set "
            "compression.error_feedback = false"
        )


def _rows_that_are_not_sent(config: Config) -> Iterator[str]:
    """A compression that is not `linear` saves bytes only if the server receives single rows."""
    if config.compression.linear:
        return
    linear = offered("compression", lambda part: part.compresses and part.linear)
    instead = f"use a linear one: {linear}"
    if config.secured:
        yield (
            f"{_named(config)} encodes each row by itself, but a secure sum adds up rows with all "
            f"entries, so that compression would save no byte and cost accuracy; {instead}, or "
            'secure.protocol = "none"'
        )
    elif config.apart:
        yield (
            f"{_named(config)} encodes each row by itself, but with data.site_partition = "
            '"elsewhere" sites send sums of their clients\' rows, which have all entries, so that '
            f"no byte is saved; {instead}"
        )
    elif config.mechanism.private and config.mechanism.trust != "server":
        yield (
            f"{_named(config)} encodes each row by itself, but under privacy.mechanism = "
            f"{config.names['mechanism']!r} a client adds noise to all entries before it sends "
            f'them, so that no byte is saved; {instead}, or privacy.mechanism = "gaussian"'
        )


def _rules_for_models(config: Config) -> Iterator[str]:
    """A rule remembers updates, or works by layers, but compressed messages have other entries."""
    try:
        rule = rule_of(config)
    except Refused:
        return  # the rule's own refusal
    needs = rule.needs() if isinstance(rule, RowRule) else frozenset()
    if config.compression.linear and (rule.remembers or needs - _OF_ANY_ROWS):
        yield (
            f"aggregation.rule = {config.names['rule']!r} depends on earlier updates or on "
            f"layers of a model, but with {_named(config)} clients send other values; use "
            "another rule, or a compression of each row by itself"
        )


def _noise_of_other_rounds(config: Config) -> Iterator[str]:
    """Noise is correlated over rounds (`remembers`), but entries change their meaning (`fresh`)."""
    if config.mechanism.remembers and config.compression.fresh:
        yield (
            f"noise of privacy.mechanism = {config.names['mechanism']!r} cancels over rounds that "
            f"release the same entries, but {_named(config)} sends other entries in each round; "
            'use "count_sketch", or privacy.mechanism = "gaussian"'
        )


def _two_exchanges(config: Config) -> Iterator[str]:
    """Clients send two parts of one update (`exchanges`), which only plain sums combine."""
    if config.compression.exchanges == 1:
        return
    try:
        rule = rule_of(config)
    except Refused:
        return
    if config.mechanism.joint:
        yield (
            f"{_named(config)} combines two sums of one cohort, but under privacy.mechanism = "
            f"{config.names['mechanism']!r} the server is sent rows; use privacy.mechanism = "
            '"gaussian", or compression.name = "low_rank"'
        )
    elif rule.robust:
        yield (
            f"{_named(config)} combines two sums of one cohort, but aggregation.rule = "
            f'{config.names["rule"]!r} is for rows that are updates; use "mean"'
        )
    if config.client_mechanism.private:
        yield (
            f"{_named(config)} uses two messages about one training, but client.privacy.mechanism "
            f"= {config.names['client_mechanism']!r} would sample noise for its steps twice and be "
            'charged once; use "low_rank"'
        )
    if config.attacked:
        yield (
            f"{_named(config)} has clients send two messages about one update, but attackers are "
            "simulated only for one message; use another compression"
        )


def _canaries(config: Config) -> Iterator[str]:
    """Canaries are scored by releases of whole updates."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but canaries are scored by releases of "
            f'whole updates, which {_named(config)} does not give; use compression.name = "none" '
            "to audit"
        )


def secure_sum_refusals(config: Config) -> Iterator[str]:
    """Yields every reason against this protocol, or against keys that need one."""
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
    """A party is named, but only shared noise (`trust`) distinguishes two parties."""
    if config.privacy.against != "server" and config.mechanism.trust != "sum":
        yield (
            "privacy.against is set, but applies only to distributed noise "
            "(discrete_gaussian, skellam), which has two guarantees; remove the key"
        )


def _shared_noise_without_sums(config: Config) -> Iterator[str]:
    """Noise is generated in a secure sum (`trust`), but there is none."""
    if config.mechanism.trust == "sum":
        yield (
            f"privacy.mechanism = {config.names['mechanism']!r} adds its noise within a secure "
            "sum, but none is configured; set secure.protocol = "
            f"{offered('protocol', lambda part: part.hides_rows and not part.approximate)}"
        )


def _keys_without_protocol(config: Config) -> Iterator[str]:
    """Keys of secure sums are set, but there is none."""
    for key, unset in (("capacity", 0), ("minimum", 0), ("simulate", "messages")):
        if getattr(config.secure, key) != unset:
            yield (
                f"secure.{key} is set, but has an effect only with a secure.protocol; set "
                "secure.protocol, or remove the key"
            )


def _impossible_limits(config: Config) -> Iterator[str]:
    """The protocol itself refuses these limits."""
    try:
        config.protocol.over(configured_limits(config))
    except Refused as refused:
        yield str(refused)


def _layers_without_secrets(config: Config) -> Iterator[str]:
    """The mechanism adds noise in layers (`layered`), which the protocol cannot remove again."""
    mechanism = config.mechanism
    if mechanism.trust == "sum" and mechanism.layered and not config.protocol.layers:
        yield (
            'privacy.sizing = "layers" removes noise with secrets that masked sums share; use '
            'secure.protocol = "masks", or privacy.sizing = "minimum"'
        )


def _minimum_above_capacity(config: Config) -> Iterator[str]:
    """No sum could have the required number of survivors."""
    secure = config.secure
    if secure.capacity and secure.minimum > secure.capacity:
        yield (
            f"secure.minimum is {secure.minimum}, but secure.capacity is {secure.capacity}; lower "
            "secure.minimum, or raise secure.capacity"
        )


def _approximate_sums_unnoised(config: Config) -> Iterator[str]:
    """Sums are `approximate`, but the key holder (`trust`) does not add the noise."""
    if config.protocol.approximate and config.mechanism.trust != "server":
        yield (
            f"secure.protocol = {config.names['protocol']!r} decrypts to approximate sums, but "
            "others than key holders could recover the key from such sums; use central noise, "
            'which the key holder adds (privacy.mechanism = "gaussian"), or secure.protocol = "bfv"'
        )


def _unknown_numbers_of_senders(config: Config) -> Iterator[str]:
    """Abort probabilities are charged for independent dropouts with a known probability."""
    if config.by_sites:  # the senders are sites, whichever of their clients are available
        return
    if config.client.drop_stragglers or config.availability.varies:
        yield (
            "client.drop_stragglers or cohort.availability makes the number of senders to a secure "
            "sum unpredictable, but the probability of aborts is computed from it; use "
            'cohort.dropout, client.drop_stragglers = false and cohort.availability = "always"'
        )
