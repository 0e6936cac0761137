"""Every registered rule over rows, with the arguments that it declares to need, and
compositions.
"""

from __future__ import annotations

import math

from contracts.registered import examples

from defenses.before.nnm import NearestNeighbourMixing
from defenses.testing import RuleOnRows
from defenses.weighing import Composed

NNM = NearestNeighbourMixing()
RULES = {name: RuleOnRows(rule) for name, rule in examples("rule").items()}
FOLLOWING = {name: RULES[name].part for name in ("trimmed_mean", "geometric_median", "norm_bound")}
"""One rule of each form, with which pre-aggregators are composed."""
MIXED = {
    f"{before}, {name}": RuleOnRows(Composed(before=(part,), rule=rule))
    for before, part in examples("before").items()
    for name, rule in FOLLOWING.items()
}
ROWS = {**RULES, **MIXED}
ROBUST = {name: rule for name, rule in ROWS.items() if rule.claims}
"""Rules that declare that their aggregate stays near the honest rows."""
PUBLISHED = {name: rule for name, rule in RULES.items() if math.isfinite(rule.robustness(11, 1))}
"""Rules that claim a robustness coefficient."""
