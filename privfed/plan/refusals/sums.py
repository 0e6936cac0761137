"""Refusals about secure sums, and noise that pairs of clients share."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
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
    yield from _exact_sums_of_regions(config)


def _exact_sums_of_regions(config: Config) -> Iterator[str]:
    """Yields a refusal of central noise if exact parts of sums are opened by untrusted parties."""
    protocol = config.row_hiding
    if protocol and not protocol.relies_on_part_openers and config.mechanism.trust == "server":
        yield (
            'secure.coordinators is "curious", but the server adds the noise, so each coordinator '
            "sees an exact sum of its region; use noise that clients add (privacy.mechanism = "
            '"discrete_gaussian"), or secure.coordinators = "trusted"'
        )


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
