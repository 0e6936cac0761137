"""The flags of `privfed calibrate --advise`, as the question that they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privfed.errors import Refused
from privfed.plan.advice.assumptions import PROMISES
from privfed.plan.advice.question import AdviceQuestion
from privfed.suggestions import nearest

_ASKED = ("epsilon", "delta", "rounds", "accountant", "population", "cohort", "rate")
_COMPARED = {"sampler": "poisson", "mechanism": "gaussian"}
"""Flags of what is compared, by their defaults."""
_SPACINGS = ("separation", "slots")


def advice_question(flags: Mapping[str, Any], promises: str) -> AdviceQuestion:
    """What `flags` ask for, with `promises` that commas are between.

    Raises `Refused` for flags that advice does not go by, and for numbers that are missing.
    """
    used = {*_ASKED, *_SPACINGS}
    left = [name for name, value in flags.items() if value is not None and name not in used]
    ignored = [name for name in left if flags[name] != _COMPARED.get(name)]
    if ignored:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise Refused(
            f"{named}: --advise compares draws and mechanisms at one epsilon, and solves for the "
            "noise of each; leave it out"
        )
    missing = [f"--{name}" for name in ("epsilon", "rounds") if flags[name] is None]
    if missing:
        raise Refused(
            f"--advise compares what one epsilon takes over all rounds: give {missing[0]}"
        )
    spacings = [flags[name] for name in _SPACINGS if flags[name] is not None]
    if len(spacings) > 1:
        raise Refused("--separation and --slots are both how often a client takes part: give one")
    given = {name: flags[name] for name in _ASKED}
    return AdviceQuestion(**given, period=(spacings or [None])[0], promises=promised(promises))


def promised(words: str) -> tuple[str, ...]:
    """The promises in `words`, which have commas between them, or are "none". Raises `Refused`."""
    promises = tuple(each.strip() for each in words.split(",") if each.strip() not in ("", "none"))
    for promise in promises:
        if promise not in PROMISES:
            close = nearest(promise, list(PROMISES))
            hint = f" (did you mean {close!r}?)" if close else ""
            raise Refused(
                f"--promises has {promise!r}; expected some of {', '.join(PROMISES)}{hint}, with "
                "commas between them, or none"
            )
    return promises
