"""Budgets in ledgers, as strict JSON: an infinite one is a word, since JSON has no such number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_INFINITE = "inf"


def written(stated: Mapping[str, Any]) -> dict[str, Any]:
    """`stated` with the word for each infinite budget."""
    return {key: _INFINITE if value == math.inf else value for key, value in stated.items()}


def budget_value(budget: Any) -> Any:
    """A budget as a number; earlier versions wrote infinity as Python does, which `json` reads."""
    return math.inf if budget == _INFINITE else budget
