"""Compares samplers and mechanisms by the noise on the model at the same epsilon."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from accounting.documents import Encoded, encoded
from accounting.events import ADD_REMOVE, REPLACE_ONE
from accounting.over_rounds import RandomAllocation, Separated
from accounting.releases import (
    PoissonSampled,
    Release,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)
from privfed.config.assembly import assembled, named
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign
from privfed.core.errors import Refused
from privfed.plan.plan import Plan, plan
from privfed.plan.prior_spending import NOTHING, Priors
from privfed.privacy.noise_on_model import InBands, noise_on_model, stored_noise_rows
from privfed.sampling.cohort import InGroups, Witness

SECRET, ATTENDANCE, SEPARATION = "secret", "attendance", "separation"
PROMISES: Mapping[str, str] = MappingProxyType(
    {
        SECRET: "no reader of the releases learns which clients take part in which round, or how "
        "many take part",
        ATTENDANCE: "a client answers only in the rounds for which it is sampled; a client that "
        "cannot answer drops out, for reasons that do not depend on any client's data",
        SEPARATION: "each client keeps its number, and it is enforced that no client takes part "
        "more often than its slots allow",
    }
)
"""The meaning of each operational assumption, by name, for any sampler."""
_AWAY = PROMISES[ATTENDANCE]


def assumptions(witness: Witness) -> dict[str, str]:
    """Returns the meaning of each operational assumption of a sampler's proof, by name.

    Without privacy amplification, schedule and dropouts may be public. The proof then assumes only
    a minimum separation of each client's rounds, or nothing if the sampler keeps none.
    """
    return _of_release(witness.release)


def _of_release(release: Release | None) -> dict[str, str]:
    match release:
        case PoissonSampled() | TruncatedPoisson() | SeveralSites():
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY}
        case WithoutReplacement():
            who = (
                "no reader of the releases learns which clients take part in which round; their "
                "number is public"
            )
            return {SECRET: who, ATTENDANCE: _AWAY}
        case RandomAllocation(slots=b):
            once = (
                "each client keeps its number, and it is enforced that it takes part at most once "
                f"in an epoch of {b} rounds, in its slot"
            )
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY, SEPARATION: once}
        case Separated(separation=b) if b > 1:
            often = (
                "each client keeps its number, and it is enforced that it takes part at most once "
                f"in any {b} rounds in a row; the schedule may be public"
            )
            return {SEPARATION: often}
    return {}


def membership(relation: str, clients: int) -> str:
    """Describes whether the set of clients, `clients` in number, may be public under `relation`."""
    if relation == ADD_REMOVE:
        return "the set of clients is secret"
    public = f"the set of clients may be public; there are exactly {clients}"
    if relation == REPLACE_ONE:
        return f"{public}; a client's data are replaced, so the sensitivity is two clipping norms"
    return f"{public}; a client's rows are replaced by zeros"


@dataclass(frozen=True)
class Alternative(Encoded):
    """A sampler and a mechanism, with figures of the plan of a run that uses them.

    Attributes:
      sampler: name of the sampler.
      mechanism: name of the mechanism.
      keys: the keys that select both, with solved numbers of groups and bands.
      noise_multiplier: the noise multiplier that the budget needs.
      noise_on_model: standard deviation of the noise in the sum of all releases up to a round, in
        clipping norms; root mean square over rounds.
      epsilon: the epsilon of the run.
      relation: the adjacency relation of epsilon.
      remembers: number of stored rows of earlier noise, each as long as a message.
      assumes: meaning of the operational assumptions, by name.
      membership: text on whether the set of clients may be public.
    """

    sampler: str
    mechanism: str
    keys: Mapping[str, Any]
    noise_multiplier: float
    noise_on_model: float
    epsilon: float
    relation: str
    remembers: int
    assumes: Mapping[str, str]
    membership: str

    @property
    def ranked(self) -> bool:
        """Whether the relation is add/remove or zero-out; replace-one has incomparable epsilons."""
        return self.relation != REPLACE_ONE


@dataclass(frozen=True)
class Unavailable(Encoded):
    """A sampler and a mechanism for which no noise was computed, with the `reason`.

    `lacks` names the assumptions that do not hold, if these are the reason.
    """

    sampler: str
    mechanism: str
    reason: str
    lacks: tuple[str, ...] = ()


def alternative_of(plan: Plan, keys: Mapping[str, Any]) -> Alternative | None:
    """Returns the figures of the plan that `keys` select; None if noise is absent or unknown."""
    config, mechanism = plan.config, plan.mechanism
    noise = noise_on_model(mechanism, max(plan.training_rounds, 1), config.sampler.size)
    if noise is None or plan.noise_multiplier is None:
        return None
    return Alternative(
        sampler=config.names["sampler"],
        mechanism=config.names["mechanism"],
        keys=_solved_keys(config, keys),
        noise_multiplier=plan.noise_multiplier,
        noise_on_model=noise,
        epsilon=plan.guarantee.epsilon,
        relation=plan.event.relation,
        remembers=stored_noise_rows(mechanism),
        assumes=assumptions(plan.cost.witness),
        membership=membership(plan.event.relation, config.data.clients),
    )


def _solved_keys(config: Config, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `keys`, with "cohort.groups" and "privacy.bands", if present, as they were solved."""
    solved = dict(keys)
    if isinstance(config.sampler, InGroups) and "cohort.groups" in keys:
        solved["cohort.groups"] = config.sampler.possible_groups()[0]
    if isinstance(config.mechanism, InBands) and "privacy.bands" in keys:
        solved["privacy.bands"] = config.mechanism.bands
    return solved


Keys = dict[str, Any]

_MOST_BANDS = 10_000
_WORK = 20_000_000
"""Limit on bands times rounds, which keeps solving below about a second."""


def uneven(clients: int, size: int) -> tuple[Unavailable, ...]:
    """Returns one entry, "cyclic and allocation", if `size` does not divide `clients`; else none.

    The entry states why both samplers are unavailable.
    """
    if clients % size == 0:
        return ()
    period = max(1, round(clients / size))
    why = (
        f"a client takes part once in an integer number of rounds, but {clients} clients are "
        f"not a multiple of the cohort size {size}; once in {period} rounds would give cohorts of "
        f"{clients / period:.4g} clients"
    )
    return (Unavailable("cyclic and allocation", "any noise", why),)


def keys_to_compare(clients: int, size: int, rounds: int) -> Iterator[Keys]:
    """Yields the keys of each alternative, for an expected cohort of `size` among `clients`.

    Cyclic sampling and random allocation are included if `size` divides `clients`: a client then
    takes part once in clients / size rounds. The number of bands for cyclic sampling is the smaller
    of clients / size and `rounds`, or less if solving for that number would take long.
    """
    for sampler in ("poisson", "fixed_size"):
        yield {"cohort.sampler": sampler, "cohort.size": size, "privacy.mechanism": "gaussian"}
    period, left = divmod(clients, size)
    if left:
        return
    bands = max(1, min(period, rounds, _MOST_BANDS, _WORK // rounds))
    cyclic = {"cohort.sampler": "cyclic", "cohort.separation": period}
    yield {**cyclic, "privacy.mechanism": "gaussian"}
    yield {**cyclic, "privacy.mechanism": "banded", "privacy.bands": bands}
    yield {**cyclic, "privacy.mechanism": "blt"}
    slots = {"cohort.sampler": "allocation", "cohort.slots": period}
    yield {**slots, "cohort.groups": 1, "privacy.mechanism": "gaussian"}
    yield {**slots, "cohort.groups": 0, "privacy.mechanism": "banded", "privacy.bands": 0}


@dataclass(frozen=True)
class Advice:
    """Alternatives to a run, compared by noise.

    Attributes:
      ranked: comparable alternatives, the smallest noise first.
      apart: alternatives whose guarantees are not comparable.
      unavailable: alternatives without a computed noise.
      yours: the run as it is configured; None if there is none.
      reference: the basis of comparison: `yours`, or else the first comparable alternative tried;
        None if there is neither.
    """

    ranked: tuple[Alternative, ...]
    apart: tuple[Alternative, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    yours: Alternative | None = None
    reference: Alternative | None = None

    def of(self, sampler: str, mechanism: str) -> Alternative | None:
        """Returns the alternative with this sampler and mechanism; None if there is none."""
        every = (*self.ranked, *self.apart)
        return next((a for a in every if (a.sampler, a.mechanism) == (sampler, mechanism)), None)

    def beyond(self, alternative: Alternative) -> tuple[str, ...]:
        """Returns the assumptions of `alternative` that `yours`, if given, does not need."""
        given = self.yours.assumes if self.yours else {}
        return tuple(name for name in alternative.assumes if name not in given)

    def to_json(self) -> dict[str, Any]:
        """Returns the object under "advice" that `--json` prints."""
        reference = self.reference
        return {
            "yours": encoded(self.yours),
            "alternatives": [
                {**each.to_json(), "relative": relative(each, reference), "ranked": each.ranked}
                for each in (*self.ranked, *self.apart)
            ],
            "unavailable": encoded(self.unavailable),
        }


def relative(alternative: Alternative, reference: Alternative | None) -> float | None:
    """Returns the ratio of the noise on the model to that of `reference`.

    None without a reference, or if only one of the two is `ranked`.
    """
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
    """Returns a comparison of a configuration's plans with different keys.

    Args:
      base: the keys of the configuration.
      tried: the keys of each alternative.
      promises: the operational assumptions that hold.
      before: the earlier runs that count.
      yours: the run as it is configured, if there is one.
      adaptive: whether mechanisms without an adaptive clipping norm are unavailable.
      uneven: further unavailable alternatives, from the function `uneven`.
    """
    every = [_tried(base, keys, promises, before, adaptive) for keys in tried]
    every += uneven
    there = [each for each in every if isinstance(each, Alternative)]
    same = not yours or yours.ranked
    comparable = [a for a in there if a.ranked == same]
    return Advice(
        ranked=tuple(sorted(comparable, key=lambda a: a.noise_on_model)),
        apart=tuple(a for a in there if a.ranked != same),
        unavailable=tuple(each for each in every if isinstance(each, Unavailable)),
        yours=yours,
        reference=yours or next(iter(comparable), None),
    )


def _tried(
    base: Raw, keys: Mapping[str, Any], promises: Collection[str], before: Priors, adaptive: bool
) -> Alternative | Unavailable:
    """Returns figures of the plan of `base` with these `keys`, or the reason why there are none."""
    names = keys["cohort.sampler"], keys["privacy.mechanism"]
    try:
        config = assembled(_with_keys(base, keys))
        needed = assumptions(config.sampler.witness(0, config.data.clients))
        if lacks := tuple(name for name in needed if name not in promises):
            return Unavailable(*names, f"not promised: {', '.join(lacks)}", lacks)
        if adaptive and not config.mechanism.adaptive:
            return Unavailable(*names, "it has no adaptive clipping norm, unlike this run")
        alternative = alternative_of(plan(config, before), keys)
    except Refused as refused:
        return Unavailable(*names, str(refused))
    return alternative or Unavailable(*names, "its noise on the model is unknown")


def _with_keys(base: Raw, keys: Mapping[str, Any]) -> Raw:
    """Returns `base` with `keys` set; a cohort size that other keys determine becomes 0."""
    raw = copy.deepcopy(base)
    for key, value in keys.items():
        assign(raw, key, value)
    if named(raw, "sampler").derives_size:
        raw["cohort"]["size"] = 0
    return raw
