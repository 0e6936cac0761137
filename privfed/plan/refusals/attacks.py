"""What is refused of simulated attackers."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def attack_refusals(config: Config) -> Iterator[str]:
    """Every reason why these attackers cannot be simulated."""
    yield from _attackers_without_attack(config)
    yield from _details_without_attack(config)
    yield from _labels_changed_twice(config)
    yield from _updates_replaced_in_part(config)


def _attackers_without_attack(config: Config) -> Iterator[str]:
    """An attack and the part of clients that carry it out go together (`attack.acts`)."""
    attack, name, attackers = config.attack, config.names["attack"], config.attackers
    fraction, given = attackers.fraction, "fraction" in attackers.model_fields_set
    if attack.acts != (fraction > 0.0) and not (attack.acts and given):
        yield (
            f"attack.name is {name!r} and attack.fraction {fraction:g}; expected an attack and the "
            "part of clients that carry it out (0.0 for nobody), or neither"
        )
    elif 0.0 < fraction * config.data.clients < 0.5:
        yield (
            f"attack.fraction is {fraction:g} of {config.data.clients} clients, and so nobody; "
            "raise it"
        )


def _details_without_attack(config: Config) -> Iterator[str]:
    """Nobody attacks (`attack.acts`), and it is said how."""
    given = config.attackers
    details = (given.selection, given.stage, given.first_round, given.last_round)
    if not config.attack.acts and details != ("once", "auto", 1, 0):
        yield (
            "attack.selection, attack.stage and the attack's rounds say how an attack goes, and "
            "none is configured"
        )


def _labels_changed_twice(config: Config) -> Iterator[str]:
    """The attack changes labels (`attack.poisons`), and so does the shift (`changes_labels`)."""
    if config.attack.poisons and config.shift.changes_labels:
        yield (
            f"attack.name = {config.names['attack']!r} and data.shift = "
            f"{config.names['shift']!r} both change labels; use one of them"
        )


def _updates_replaced_in_part(config: Config) -> Iterator[str]:
    """The attack replaces updates (`attack.corrupts`), and clients send more than these."""
    if config.attack.corrupts and not config.objective.sends_updates_alone:
        yield (
            f"attack.name = {config.names['attack']!r} replaces updates, and client.objective = "
            f"{config.names['objective']!r} sends more than these; use an attack on data, or an "
            'objective as "sgd"'
        )
