"""What is refused of simulated attackers."""

from __future__ import annotations

from collections.abc import Iterator

from attacks.types import Knowledge
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.plan.rule import rule_of, sends_weights


def attack_refusals(config: Config) -> Iterator[str]:
    """Every reason why these attackers cannot be simulated."""
    yield from _attackers_without_attack(config)
    yield from _details_without_attack(config)
    yield from _everybody_pools(config)
    yield from _labels_changed_twice(config)
    yield from _weights_that_nobody_asks(config)
    yield from _counts_that_nobody_asks(config)


def _attackers_without_attack(config: Config) -> Iterator[str]:
    """An attack and the part of clients that carry it out go together (`attack.acts`, `lies`)."""
    attack, name, attackers = config.attack, config.names["attack"], config.attackers
    fraction, given = attackers.fraction, "fraction" in attackers.model_fields_set
    acts = attack.acts or attackers.lies
    if acts != (fraction > 0.0) and not (acts and given):
        what = "".join(f", {lie}" for lie in _lies(config))
        what += "" if acts else ", which changes neither examples nor rows,"
        yield (
            f"attack.name is {name!r}{what} and attack.fraction {fraction:g}; expected an attack "
            "and the part of clients that carry it out (0.0 for nobody), or neither: set "
            f"{_missing(acts)}"
        )
    elif 0.0 < fraction * config.data.clients < 0.5:
        yield (
            f"attack.fraction is {fraction:g} of {config.data.clients} clients, and so nobody; "
            "raise it"
        )


def _lies(config: Config) -> Iterator[str]:
    """The keys of what attackers claim that is not so, with their values."""
    if config.attackers.weight != 1.0:
        yield f"attack.weight {config.attackers.weight:g}"
    if config.attackers.clip_count != "true":
        yield f"attack.clip_count {config.attackers.clip_count!r}"


def _missing(acts: bool) -> str:
    """Which key to set, or to remove."""
    if acts:
        return "attack.fraction, or remove the other keys of the attack"
    return (
        "attack.name (one of your own overrides poison and declares poisons = True, or corrupt and "
        "corrupts = True), or remove attack.fraction"
    )


def _details_without_attack(config: Config) -> Iterator[str]:
    """Nobody attacks (`attack.acts`, `lies`), and it is said how."""
    given = config.attackers
    details = (given.selection, given.stage, given.replaces, given.first_round, given.last_round)
    usual = ("once", "auto", "messages", 1, 0)
    if not (config.attack.acts or given.lies) and details != usual:
        yield (
            "attack.selection, attack.stage, attack.replaces and the attack's rounds say how an "
            "attack goes, and none is configured"
        )


def _everybody_pools(config: Config) -> Iterator[str]:
    """Attackers put their examples together (`Knowledge.ATTACKERS_DATA`), and all are some day."""
    pools = Knowledge.ATTACKERS_DATA in config.attack.knows
    if pools and config.attackers.selection == "round":
        yield (
            f"attack.name = {config.names['attack']!r} has the attackers pool their examples "
            'before the first round, and with attack.selection = "round" everybody is one of them '
            'in some round: they would know all clients\' data; use attack.selection = "once", or '
            "another attack"
        )


def _labels_changed_twice(config: Config) -> Iterator[str]:
    """The attack changes labels (`attack.poisons`), and so does the shift (`changes_labels`)."""
    if config.attack.poisons and config.shift.changes_labels:
        yield (
            f"attack.name = {config.names['attack']!r} and data.shift = "
            f"{config.names['shift']!r} both change labels; use one of them"
        )


def _weights_that_nobody_asks(config: Config) -> Iterator[str]:
    """Attackers claim a weight, and clients say none (`sends_weights`)."""
    if config.attackers.weight == 1.0:
        return
    try:
        asked = sends_weights(config, rule_of(config))
    except Refused:  # the rule is refused by itself
        return
    if not asked:
        yield (
            f"attack.weight is {config.attackers.weight:g}, but no client says what it weighs: all "
            "weigh alike, or as declared; use clients that weigh by their examples, or remove the "
            "key"
        )


def _counts_that_nobody_asks(config: Config) -> Iterator[str]:
    """Attackers lie to adaptive clipping, and the clip is fixed (`adaptive`)."""
    count = config.attackers.clip_count
    if count != "true" and not config.mechanism.adaptive:
        yield (
            f"attack.clip_count is {count!r}, but nobody counts who is within the clip; set "
            "privacy.adaptive_clip = true, or remove the key"
        )
