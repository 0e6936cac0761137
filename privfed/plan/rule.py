"""The aggregation rule of a run: a function of rows, or one or more passes over sums."""

from __future__ import annotations

from defenses.types import RowRule, Rule, SumRule
from defenses.weighing import Composed, WeightRule
from privfed.client.compression.compressed import ShapesByName
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN


def rule_of(config: Config) -> SumRule | RowRule:
    """Returns the aggregation rule in the form that a run uses.

    The vectors that a rule by sums adds up are bounded by the clipping norm if the mechanism is
    private. A rule is applied to rows if it has pre-aggregators or if pairs of clients share noise.
    A robust rule that has both forms is also applied to rows if the server receives rows: it then
    needs only one upload.

    Raises:
      Refused: if the configured rule is not an aggregation rule, or its keys are invalid.
    """
    rule = config.rule
    mechanism, before = config.mechanism, config.before
    if not isinstance(rule, SumRule | RowRule):
        raise Refused(
            f"aggregation.rule is {config.names['rule']!r}, which is not an aggregation rule; "
            "expected a subclass of defenses.types.RowRule or SumRule"
        )
    _refuse_answers_for_sums(rule, config.names["rule"])
    has_both_forms = isinstance(rule, SumRule) and isinstance(rule, WeightRule) and rule.robust
    try:
        on_rows = has_both_forms and not _sums_only(config)
        if before or on_rows or (mechanism.joint and isinstance(rule, SumRule)):
            return Composed(before=before, rule=_bounded(rule, None))
        return _bounded(rule, mechanism.clip if mechanism.private else None)
    except ValueError as error:
        raise Refused(f"aggregation.rule = {config.names['rule']!r}: {error}") from error


_ANSWERS_FOR_SUMS = ("uploads", "extra", "remembers", "center_after")


def _refuse_answers_for_sums(rule: SumRule | RowRule, name: str) -> None:
    """Raises `Refused` if a rule on rows defines an attribute reserved for rules by sums.

    These are the attributes in `_ANSWERS_FOR_SUMS`; `name` names the rule in the message.
    """
    if isinstance(rule, SumRule):
        return
    kind = type(rule)
    taken = [
        answer
        for answer in _ANSWERS_FOR_SUMS
        if answer in kind.model_fields or getattr(kind, answer) != getattr(Rule, answer)
    ]
    if taken:
        raise Refused(
            f"aggregation.rule is {name!r}, a rule on rows, but defines {', '.join(taken)}, which "
            "is reserved for rules by sums; rename that attribute"
        )


def _sums_only(config: Config) -> bool:
    """Whether the server receives only sums, or noise is added to sums instead of rows."""
    mechanism = config.mechanism
    central = mechanism.private and mechanism.trust != "client"
    return bool(config.secured or central or config.by_sites)


def _bounded(rule: SumRule | RowRule, clip: float | None) -> SumRule | RowRule:
    """Returns `rule`; a rule by sums is completed for the clipping norm `clip` (None: no noise).

    Raises `ValueError` if the rule's keys are missing, or do not fit `clip`.
    """
    return rule.within(clip) if isinstance(rule, SumRule) else rule


def tolerates(rule: Rule, n: int) -> int:
    """Returns the largest number of Byzantine clients among n that `rule` tolerates."""
    return max(0, min(n, rule.most(n)))


def weighs_by_examples(config: Config, rule: SumRule | RowRule) -> bool:
    """Whether rows are weighted by numbers of examples; never under privacy or a robust rule."""
    alike = (
        config.mechanism.private
        or config.client_mechanism.private
        or config.objective.sums_states
        or rule.robust
        or not isinstance(rule, SumRule)
    )
    weights = config.aggregation
    return not alike and weights.weights != "uniform" and not weights.silo_weights


def sends_weights(config: Config, rule: SumRule | RowRule) -> bool:
    """Whether clients send weights: numbers of examples, or weights inside a secure sum.

    Never if the mechanism is private, the objective sums states, or the rule is on rows.
    """
    if config.mechanism.private or config.objective.sums_states or not isinstance(rule, SumRule):
        return False
    return weighs_by_examples(config, rule) or (config.secured and not config.by_sites)


def rules_by_sums() -> tuple[str, ...]:
    """Returns the built-in rules that need only sums."""
    names = BUILT_IN["rule"]
    return tuple(name for name in names if issubclass(find("rule", name, "rule"), SumRule))


def rule_text(config: Config) -> str:
    """Returns a text on the rule's input, and the number of Byzantine clients that it tolerates."""
    rule, name = rule_of(config), config.names["rule"]
    sees = "on every client's row"
    if isinstance(rule, SumRule):
        sees = "by one sum" if rule.passes == 1 else f"by {rule.passes} sums over one cohort"
    first = "".join(f"{part}, then " for part in config.aggregation.before)
    size = config.sampler.size
    colluders_tolerated = config.rule.tolerance or f"{tolerates(rule, size)} of {size}"
    return f"{first}{name}, {sees}; Byzantine clients tolerated: {colluders_tolerated}"


def numbers_per_history(config: Config, parameters: int) -> int:
    """Returns the number of values that the rule stores for each client; 0 if it stores none.

    Args:
      config: the run.
      parameters: the number of parameters of the model.
    """
    rule = rule_of(config)
    length = config.messages().layout(parameters).length
    return rule.keeps(length) if isinstance(rule, RowRule) else 0


def message_length(config: Config, parameters: int, shapes: ShapesByName | None = None) -> int:
    """Returns the number of entries of a client's message.

    Args:
      config: the run.
      parameters: the number of parameters of the model.
      shapes: the shapes of parameters by name, on which some compressions depend.
    """
    return config.messages(shapes).layout(parameters).length + rule_of(config).extra
