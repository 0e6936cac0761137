"""Draws and mechanisms beside each other, by the noise that they leave on the model."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privfed.config.assembly import assembled, named
from privfed.config.config import Raw
from privfed.config.overrides import assign
from privfed.errors import Refused
from privfed.plan.advice.alternative import Alternative, Unavailable, alternative_of
from privfed.plan.advice.assumptions import PROMISES, assumptions
from privfed.plan.advice.candidates import Keys
from privfed.plan.plan import plan
from privfed.plan.prior_spending import NOTHING, Priors


@dataclass(frozen=True)
class Advice:
    """`ranked` alternatives, least noise first; those `apart` promise what is not comparable.

    `yours` is the run as it is configured, which is among neither; None where there is none.
    """

    ranked: tuple[Alternative, ...]
    apart: tuple[Alternative, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    yours: Alternative | None = None

    @property
    def reference(self) -> Alternative | None:
        """What others are measured by: yours; else independent noise under Poisson's draw, which
        is the first that is tried, or without that what needs the most noise.
        """
        if self.yours or not self.ranked:
            return self.yours
        poisson = (each for each in self.ranked if each.sampler == "poisson")
        return next(poisson, self.ranked[-1])

    def of(self, sampler: str, mechanism: str) -> Alternative | None:
        """The alternative of these names; None where there is none."""
        every = (*self.ranked, *self.apart)
        return next((a for a in every if (a.sampler, a.mechanism) == (sampler, mechanism)), None)

    def beyond(self, alternative: Alternative) -> tuple[str, ...]:
        """The promises that `alternative` needs and yours does not."""
        given = self.yours.assumes if self.yours else {}
        return tuple(name for name in alternative.assumes if name not in given)

    def to_json(self) -> dict[str, Any]:
        """The object under "advice" that `--json` prints."""
        reference = self.reference
        return {
            "yours": self.yours.to_json() if self.yours else None,
            "alternatives": [
                {**each.to_json(), "relative": relative(each, reference), "ranked": each.ranked}
                for each in (*self.ranked, *self.apart)
            ],
            "unavailable": [each.to_json() for each in self.unavailable],
        }


def relative(alternative: Alternative, reference: Alternative | None) -> float | None:
    """The noise on the model over that of `reference`; None where they promise other things."""
    if reference is None or alternative.ranked != reference.ranked:
        return None
    return alternative.noise_on_model / reference.noise_on_model


def compared(
    base: Raw,
    tried: Iterable[Keys],
    promises: Collection[str] = tuple(PROMISES),
    before: Priors = NOTHING,
    yours: Alternative | None = None,
    adaptive: bool = False,
    uneven: Sequence[Unavailable] = (),
) -> Advice:
    """What becomes of `base` with each of the keys `tried`, after the runs `before`.

    What needs more than the `promises` that are given has no number. With `adaptive`, so has a
    mechanism whose clip does not follow clients' norms, and what the cohort is `uneven` for.
    """
    every = [_tried(base, keys, promises, before, adaptive) for keys in tried]
    every += uneven
    there = [each for each in every if isinstance(each, Alternative)]
    same = not yours or yours.ranked
    ranked = sorted((a for a in there if a.ranked == same), key=lambda a: a.noise_on_model)
    return Advice(
        ranked=tuple(ranked),
        apart=tuple(a for a in there if a.ranked != same),
        unavailable=tuple(each for each in every if isinstance(each, Unavailable)),
        yours=yours,
    )


def _tried(
    base: Raw, keys: Mapping[str, Any], promises: Collection[str], before: Priors, adaptive: bool
) -> Alternative | Unavailable:
    """The plan of `base` with these `keys` in numbers, or why it has none."""
    names = keys["cohort.sampler"], keys["privacy.mechanism"]
    try:
        config = assembled(_with_keys(base, keys))
        needed = assumptions(config.sampler.witness(0, config.data.clients))
        if lacks := tuple(name for name in needed if name not in promises):
            return Unavailable(*names, f"not promised: {', '.join(lacks)}", lacks)
        if adaptive and not config.mechanism.adaptive:
            return Unavailable(*names, "its clip does not follow clients' norms")
        alternative = alternative_of(plan(config, before), keys)
    except Refused as refused:
        return Unavailable(*names, str(refused))
    return alternative or Unavailable(*names, "its noise on the model is not known")


def _with_keys(base: Raw, keys: Mapping[str, Any]) -> Raw:
    """`base` with these `keys`; a cohort's size that follows from others is left to do so."""
    raw = copy.deepcopy(base)
    for key, value in keys.items():
        assign(raw, key, value)
    if named(raw, "sampler").derives_size:
        raw["cohort"]["size"] = 0
    return raw
