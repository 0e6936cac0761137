"""What is refused of secure sums, and of noise that clients make up in them."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.errors import Refused
from privfed.plan.sum_limits import configured_limits


def secure_sum_refusals(config: Config) -> Iterator[str]:
    """Every reason against this protocol, or against keys that would need one."""
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
    """A party is named, and only noise that clients share (`trust`) tells two parties apart."""
    if config.privacy.against != "server" and config.mechanism.trust != "sum":
        yield (
            "privacy.against is for distributed noise (skellam, discrete_gaussian), which has two "
            "guarantees; remove the key"
        )


def _shared_noise_without_sums(config: Config) -> Iterator[str]:
    """Noise arises in a secure sum (`trust`), and there is none."""
    if config.mechanism.trust == "sum":
        yield (
            f"privacy.mechanism = {config.names['mechanism']!r} makes up its noise in a secure "
            'sum, and none is configured; set secure.protocol = "masks" or "bfv"'
        )


def _keys_without_protocol(config: Config) -> Iterator[str]:
    """Keys of secure sums are set, and there is none."""
    for key, unset in (("capacity", 0), ("minimum", 0), ("simulate", "messages")):
        if getattr(config.secure, key) != unset:
            yield f"secure.{key} needs a secure.protocol; choose one, or remove the key"


def _impossible_limits(config: Config) -> Iterator[str]:
    """The protocol cannot sum within these limits, as it says itself."""
    try:
        config.protocol.over(configured_limits(config))
    except Refused as refused:
        yield str(refused)


def _layers_without_secrets(config: Config) -> Iterator[str]:
    """The mechanism adds noise in layers (`layered`), which the protocol cannot take off again."""
    mechanism = config.mechanism
    if mechanism.trust == "sum" and mechanism.layered and not config.protocol.layers:
        yield (
            'privacy.sizing = "layers" takes noise off with secrets that masked sums share; use '
            'secure.protocol = "masks", or privacy.sizing = "minimum"'
        )


def _minimum_above_capacity(config: Config) -> Iterator[str]:
    """No sum could have as many survivors as it needs."""
    secure = config.secure
    if secure.capacity and secure.minimum > secure.capacity:
        yield f"secure.minimum is {secure.minimum}, above secure.capacity = {secure.capacity}"


def _approximate_sums_unnoised(config: Config) -> Iterator[str]:
    """Sums are `approximate`, and not the key holder (`trust`) is the one who adds the noise."""
    if config.protocol.approximate and config.mechanism.trust != "server":
        yield (
            f"secure.protocol = {config.names['protocol']!r} decrypts to approximate sums, which "
            "may be shown to key holders only, or an eavesdropper recovers the key; use central "
            'noise, which the key holder adds (privacy.mechanism = "gaussian"), or '
            'secure.protocol = "bfv"'
        )


def _unknown_numbers_of_senders(config: Config) -> Iterator[str]:
    """How often a sum aborts is charged for clients that drop out by coins of a known bias."""
    if config.by_sites:  # who send are sites, whoever of their clients is at hand
        return
    if config.client.drop_stragglers or config.availability.varies:
        yield (
            "client.drop_stragglers and cohort.availability leave it open how many send to a "
            "secure sum, and so how often it aborts; use cohort.dropout, client.drop_stragglers = "
            'false and cohort.availability = "always"'
        )
