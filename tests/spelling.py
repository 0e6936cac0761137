"""The same run with other spellings of its parts: `module:Name`, and as a user's own subclass."""

from __future__ import annotations

import functools
from dataclasses import replace

from privfed.core.errors import Refused

ASKED = set()
"""Combinations that were already checked in this process."""


def asked_in_every_spelling(monkeypatch):
    """Makes every plan refuse the same configurations, and cost the same, in all spellings."""
    import privfed.plan.plan as planned  # imports torch: only if a plan is made

    refusals, round_cost = planned.refusals, planned.round_cost

    def refused(config):
        reasons = list(refusals(config))
        if _once(config, tuple(_general(reasons, config))):
            for other in spellings(config):
                assert _general(refusals(other), other, config) == _general(reasons, config)
        return iter(reasons)

    def cost(config, length=0):
        refused = None
        try:
            found = round_cost(config, length)
        except Refused as reason:
            refused = reason
        if _once(config, refused and str(refused)):
            if refused is None and (setting := getattr(found.mechanism, "_setting", None)):
                length = setting.length  # avoids building a model again
            here = str(refused) if refused else found.event(1.0)
            for other in spellings(config):
                there = _cost(round_cost, other, length)
                assert _general([there], other, config) == _general([here], config)
        if refused:
            raise refused
        return found

    monkeypatch.setattr(planned, "refusals", refused)
    monkeypatch.setattr(planned, "round_cost", cost)


def spellings(config):
    """Yields `config` with every part as `module:Name`, and every part as a trivial subclass."""
    names = {kind: _name(type(part)) for kind, part in config.parts.items()}
    yield replace(config, names=names)
    parts = {kind: _mine(part) for kind, part in config.parts.items()}
    yield replace(config, **parts, names={kind: _name(type(p)) for kind, p in parts.items()})


def _cost(round_cost, config, length):
    try:
        return round_cost(config, length).event(1.0)
    except Refused as refused:
        return str(refused)


def _once(config, outcome):
    """Whether this combination is new: a refusal by its words, a cost by its parts."""
    if any(":" in name for name in config.names.values()):
        return False
    key = outcome or (tuple(sorted(config.names.items())), tuple(config.aggregation.before))
    first = key not in ASKED
    ASKED.add(key)
    return first


def _general(reasons, *configs):
    """Returns reasons without the names of parts."""
    names = {name for config in configs for name in config.names.values()}
    for name in sorted(names, key=len, reverse=True):
        reasons = [str(reason).replace(repr(name), "…") for reason in reasons]
    return list(reasons)


def _name(part):
    return f"{part.__module__}:{part.__qualname__}"


@functools.cache
def _subclass(part):
    return type(f"My{part.__name__}", (part,), {"__module__": "mine"})


def _mine(part):
    return _subclass(type(part)).model_construct(**dict(part))
