"""Every registered rule over rows, with the arguments that it declares to need, and
compositions.
"""

from __future__ import annotations

import math

import torch
from contracts.registered import examples

from defenses.before.nnm import NearestNeighbourMixing
from defenses.on_rows.median import Median
from defenses.types import RowRule
from defenses.weighing import Composed


class Given:
    """A rule that is called with rows alone: all other arguments that it `needs` are provided."""

    def __init__(self, rule):
        self.part = rule
        self.rule = rule if isinstance(rule, RowRule) else Composed(before=(), rule=rule)

    def __getattr__(self, name):
        return getattr(self.rule, name)

    @property
    def claims(self):
        """Whether it declares that its aggregate stays near the honest rows."""
        last = getattr(self.part, "rule", self.part)
        return last.bounded and not last.tolerance

    def __call__(self, rows, byzantine, **given):
        d = rows.shape[1]
        provided = {
            "generator": lambda: torch.Generator().manual_seed(0),
            "root": lambda: Median()(rows, 0),
            "center": lambda: rows.new_zeros(d),
            "model": lambda: torch.linspace(-1, 1, d).to(rows),
            "layers": lambda: torch.tensor(self._layers(d)),
        }
        needs = self.rule.needs() - {"histories"}  # in a first round there are none
        return self.rule(rows, byzantine, **{key: provided[key]() for key in needs} | given)

    def _layers(self, d):
        """Returns the layer sizes of a model with d parameters that suits the rule."""
        layouts = [[d], [d - 5, 2, 2, 1], [d - 1, 1]]
        return next(sizes for sizes in layouts if min(sizes) >= 0 and not self.rule.unfit(sizes))


NNM = NearestNeighbourMixing()
RULES = {name: Given(rule) for name, rule in examples("rule").items()}
FOLLOWING = {name: RULES[name].part for name in ("trimmed_mean", "geometric_median", "norm_bound")}
"""One rule of each form, with which pre-aggregators are composed."""
MIXED = {
    f"{before}, {name}": Given(Composed(before=(part,), rule=rule))
    for before, part in examples("before").items()
    for name, rule in FOLLOWING.items()
}
ROWS = {**RULES, **MIXED}
ROBUST = {name: rule for name, rule in ROWS.items() if rule.claims}
"""Rules that declare that their aggregate stays near the honest rows."""
PUBLISHED = {name: rule for name, rule in RULES.items() if math.isfinite(rule.robustness(11, 1))}
"""Rules that claim a robustness coefficient."""
