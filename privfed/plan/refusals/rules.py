"""Refusals about aggregation rules: the data that they receive, and the bounds of their terms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from accounting.events import CHANGE, ZERO_OUT
from defenses.types import RowRule, SumRule
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.plan.rule import rule_of, rules_by_sums, tolerates, weighs_by_examples

_OF_UPDATES = frozenset({"root", "center", "model", "histories"})
"""Inputs of a rule that are defined for updates, but not for gradients."""


@dataclass(frozen=True)
class _Choice:
    """The configured rule, and its name in messages."""

    config: Config
    rule: SumRule | RowRule

    @property
    def name(self) -> str:
        """The rule's key and value, with those of pre-aggregators, for messages."""
        before = self.config.aggregation.before
        after = f" after aggregation.before = {before!r}" if before else ""
        return f"aggregation.rule = {self.config.names['rule']!r}{after}"

    @property
    def by_sums(self) -> bool:
        """Whether the rule needs only sums of rows."""
        return isinstance(self.rule, SumRule)

    @property
    def plain(self) -> bool:
        """Whether the rule is a plain sum of the rows."""
        return self.by_sums and not self.rule.robust

    @property
    def needs(self) -> frozenset[str]:
        """The inputs that the rule needs in addition to rows."""
        return self.rule.needs() if isinstance(self.rule, RowRule) else frozenset()


def rule_refusals(config: Config) -> Iterator[str]:
    """Yields every reason against the aggregation rule, given the rest of the configuration."""
    try:
        choice = _Choice(config, rule_of(config))
    except Refused as refused:
        yield str(refused)
        return
    yield from _rows_under_noise(choice)
    yield from _rows_under_secure_sums(choice)
    yield from _histories_of_mixtures(choice)
    yield from _messages_other_than_updates(choice)
    yield from _weights_that_may_be_false(choice)
    yield from _weights_bounded_for_nothing(choice)
    yield from _terms_under_an_adaptive_clip(choice)
    yield from _keys_of_what_is_not_before(choice)
    yield from _root_set_of_clients(choice)
    yield from _terms_beyond_the_range(choice)
    yield from _too_many_byzantine(choice)
    yield from _root_set(choice)


def _rows_under_noise(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of a rule on rows if the server or a secure sum adds the noise (`trust`)."""
    mechanism = choice.config.mechanism
    if mechanism.private and not choice.by_sums and mechanism.trust != "client":
        yield (
            f"{choice.name} needs every client's row, but a function of rows has no proven "
            f"sensitivity for central noise; use a rule that needs only sums ({_sum_rules()}) "
            "and no aggregation.before, or noise on each client: privacy.mechanism = "
            '"local_gaussian"'
        )


def _rows_under_secure_sums(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of a rule on rows if the protocol hides single rows (`hides_rows`)."""
    if not choice.by_sums and choice.config.secured:
        yield (
            f"{choice.name} needs rows, which a secure sum never reveals; use a rule that needs "
            f'only sums ({_sum_rules()}) and no aggregation.before, or secure.protocol = "none"'
        )


def _histories_of_mixtures(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of pre-aggregators, which mix rows, if the rule keeps messages by client."""
    rule = choice.config.rule
    if choice.config.before and isinstance(rule, RowRule) and rule.keeps(1):
        off = ", or aggregation.history = false" if "history" in type(rule).model_fields else ""
        yield (
            f"{choice.name} stores each client's messages, but pre-aggregators give it mixtures of "
            f"rows, which belong to no client; remove aggregation.before{off}"
        )


def _messages_other_than_updates(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of a rule other than a plain sum, if clients send more than updates.

    They do if the objective sends further values or the server sums their states. For rules by
    sums, and rules with inputs in `_OF_UPDATES`, several exchanges in a round are also refused.
    """
    if choice.plain:
        return
    objective, name = choice.config.objective, choice.config.names["objective"]
    if not objective.sends_updates_alone or objective.sums_states:
        summed = "" if choice.config.mechanism.joint else 'aggregation.rule = "mean", or '
        yield (
            f"client.objective = {name!r} sends more than an update, but {choice.name} is only for "
            f'updates; use {summed}an objective that sends only an update, for example "sgd"'
        )
    elif objective.exchanges > 1 and (choice.by_sums or choice.needs & _OF_UPDATES):
        yield (
            f"client.objective = {name!r} sends gradients and then updates, but {choice.name} "
            "supports only updates; change one of the two"
        )


def _weights_that_may_be_false(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of weights by examples or by silo, unless the rule is a plain sum.

    Other rules weight all rows equally, since a Byzantine client may report a false weight.
    """
    aggregation = choice.config.aggregation
    if not choice.plain and (aggregation.weights == "examples" or aggregation.silo_weights):
        yield (
            f"{choice.name} gives all rows equal weight, since a Byzantine client may report a "
            'false weight; use aggregation.weights = "uniform" or "auto", and no '
            "aggregation.silo_weights"
        )


def _weights_bounded_for_nothing(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of `aggregation.most_examples` if no weight depends on examples."""
    most = choice.config.aggregation.most_examples
    if most and not weighs_by_examples(choice.config, choice.rule):
        yield (
            f"aggregation.most_examples is {most}, but no client's weight depends on its number of "
            "examples, because of aggregation.weights, aggregation.silo_weights, privacy, the "
            "objective or the rule; remove aggregation.most_examples"
        )


def _terms_under_an_adaptive_clip(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of an adaptive clipping norm with a rule by sums other than a plain sum."""
    if choice.by_sums and not choice.plain and choice.config.mechanism.adaptive:
        yield (
            "privacy.adaptive_clip is true, so the clip changes between rounds, but the terms of "
            f"{choice.name} are bounded by a fixed clip; set privacy.adaptive_clip to false, or "
            'use aggregation.rule = "mean"'
        )


def _keys_of_what_is_not_before(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of each key that is set, but that no part of `aggregation.before` has."""
    keys, listed = choice.config.aggregation, choice.config.before
    has = {key for part in listed for key in type(part).model_fields}
    for key, names in _keys_before().items():
        value = getattr(keys, key)
        if value != type(keys).model_fields[key].default and key not in has:
            yield (
                f"aggregation.{key} is {value}, but no step of aggregation.before = "
                f"{keys.before!r} has that key; add {' or '.join(names)} to aggregation.before, or "
                f"remove aggregation.{key}"
            )


def _root_set_of_clients(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of a root set that would consist of examples of clients that train."""
    if choice.config.aggregation.root and choice.config.data.holdout == "examples":
        yield (
            'aggregation.root is set, but with data.holdout = "examples" the root set would be '
            'examples of clients that train; use data.holdout = "test" or "clients"'
        )


def _terms_beyond_the_range(choice: _Choice) -> Iterator[str]:
    """Yields a refusal of a robust rule by sums under a secure sum without noise.

    This applies if the vectors that the rule sums may exceed the range of the secure sum.
    """
    protocol, rule = choice.config.row_hiding, choice.rule
    if protocol is None or choice.config.mechanism.private:
        return
    if not isinstance(rule, SumRule) or not rule.robust:
        return
    longest = rule.sensitivity(CHANGE[ZERO_OUT])
    if protocol.range < longest < math.inf:
        yield (
            f"secure.range is {protocol.range:g}, but the terms of {choice.name} may have norms up "
            f"to {longest:g}; raise secure.range (and secure.bits), or lower the rule's bound"
        )


def _too_many_byzantine(choice: _Choice) -> Iterator[str]:
    """Yields a refusal if `aggregation.byzantine` is more than the rule tolerates (`most`)."""
    byzantine, size = choice.config.aggregation.byzantine, choice.config.sampler.size
    tolerated = tolerates(choice.rule, size)
    if byzantine > tolerated:
        yield (
            f"aggregation.byzantine is {byzantine}, but {choice.name} tolerates at most "
            f"{tolerated} Byzantine clients in a cohort of {size}; lower aggregation.byzantine, "
            "choose a rule that tolerates more Byzantine clients, or raise cohort.size"
        )


def _root_set(choice: _Choice) -> Iterator[str]:
    """Yields a refusal if the rule needs a root set and has none, or has one and needs none."""
    root, needed = choice.config.aggregation.root, "root" in choice.needs
    if needed and not root:
        yield (
            f"{choice.name} needs a root set, but aggregation.root is not set; set it to the "
            "number of public test examples on which the server trains, which are then not scored"
        )
    elif root and not needed and not choice.config.compression.public:
        yield (
            f"aggregation.root is {root}, but {choice.name} uses no root set; remove "
            "aggregation.root"
        )


def _sum_rules() -> str:
    """Lists the built-in rules that need only sums, for messages."""
    return ", ".join(f'"{rule}"' for rule in rules_by_sums())


def _keys_before() -> dict[str, list[str]]:
    """Returns, by key, the names of the built-in pre-aggregators that have this key."""
    keys: dict[str, list[str]] = {}
    for name in BUILT_IN["before"]:
        for key in find("before", name, "aggregation.before").model_fields:
            keys.setdefault(key, []).append(f'"{name}"')
    return keys
