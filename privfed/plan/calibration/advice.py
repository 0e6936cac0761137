"""Compares samplers and mechanisms by the noise that they leave on the model."""

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
from privfed.privacy.noise_on_model import InBands, noise_on_model, remembered_rows
from privfed.sampling.cohort import InGroups, Witness

SECRET, ATTENDANCE, SEPARATION = "secret", "attendance", "separation"
PROMISES: Mapping[str, str] = MappingProxyType(
    {
        SECRET: "no reader of the releases learns which clients take part when, or how many do",
        ATTENDANCE: "clients answer in the round for which they are sampled and in no other; a "
        "client that cannot drops out, for reasons that do not depend on any "
        "client's data",
        SEPARATION: "clients keep their numbers, and it is enforced that none takes part more "
        "often than its slots allow",
    }
)
"""The operational assumptions, in general words."""
_AWAY = (
    "a client answers in the round for which it is sampled and in no other; a client that "
    "cannot drops out, for reasons that do not depend on any client's data"
)


def assumptions(witness: Witness) -> dict[str, str]:
    """Returns the operational assumptions of a sampler's proof: name -> meaning for this sampler.

    Without privacy amplification the schedule and the dropouts may be public; only the number of
    participations of a client is limited.
    """
    return _of_release(witness.release)


def _of_release(release: Release | None) -> dict[str, str]:
    match release:
        case PoissonSampled() | TruncatedPoisson() | SeveralSites():
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY}
        case WithoutReplacement():
            who = (
                "no reader of the releases learns which clients take part when; their number is "
                "public"
            )
            return {SECRET: who, ATTENDANCE: _AWAY}
        case RandomAllocation(slots=b):
            once = (
                "clients keep their numbers, and it is enforced that each takes part once at most "
                f"in an epoch of {b} rounds, in its slot"
            )
            return {SECRET: PROMISES[SECRET], ATTENDANCE: _AWAY, SEPARATION: once}
        case Separated(separation=b) if b > 1:
            often = (
                "clients keep their numbers, and it is enforced that each takes part once at most "
                f"in any {b} rounds in a row; when may be public"
            )
            return {SEPARATION: often}
    return {}


def membership(relation: str, clients: int) -> str:
    """Describes whether the set of clients may be public under this adjacency relation."""
    if relation == ADD_REMOVE:
        return "the set of clients is secret"
    public = f"the set of clients may be public; there are exactly {clients}"
    if relation == REPLACE_ONE:
        return f"{public}; a client's data are replaced, which takes noise for two clips"
    return f"{public}; all contributions of a client are hidden"


@dataclass(frozen=True)
class Alternative(Encoded):
    """Figures of the plan of a run with these `keys`.

    Attributes:
      noise_on_model: root mean square over rounds of the standard deviation of the sums of
        releases, in clipping norms.
      remembers: number of stored rows of past noise, each as long as a message.
      assumes: operational assumptions by name, with their meaning here.
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
        """Whether its adjacency relation, add/remove or zero-out, makes its epsilon comparable."""
        return self.relation != REPLACE_ONE


@dataclass(frozen=True)
class Unavailable(Encoded):
    """A sampler with a mechanism for which no noise was computed.

    `lacks` names the missing assumptions; otherwise `reason` explains why.
    """

    sampler: str
    mechanism: str
    reason: str
    lacks: tuple[str, ...] = ()


def alternative_of(plan: Plan, keys: Mapping[str, Any]) -> Alternative | None:
    """Returns the numbers of a plan with these `keys`; None if its noise is not known."""
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
        remembers=remembered_rows(mechanism),
        assumes=assumptions(plan.cost.witness),
        membership=membership(plan.event.relation, config.data.clients),
    )


def _solved_keys(config: Config, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the solved numbers of groups and bands to `keys`, if these were left open."""
    solved = dict(keys)
    if isinstance(config.sampler, InGroups) and "cohort.groups" in keys:
        solved["cohort.groups"] = config.sampler.possible_groups()[0]
    if isinstance(config.mechanism, InBands) and "privacy.bands" in keys:
        solved["privacy.bands"] = config.mechanism.bands
    return solved


Keys = dict[str, Any]

_MOST_BANDS = 10_000
_WORK = 20_000_000
"""Limit on bands times rounds for solving: some tenths of a second."""


def uneven(clients: int, size: int) -> tuple[Unavailable, ...]:
    """Returns the samplers with fixed periods, if a cohort of `size` does not divide `clients`."""
    if clients % size == 0:
        return ()
    period = max(1, round(clients / size))
    why = (
        f"a client takes part once in an integer number of rounds, but {clients} clients are "
        f"not a multiple of the cohort size {size}; once in {period} would be cohorts of "
        f"{clients / period:.4g}"
    )
    return (Unavailable("cyclic and allocation", "any noise", why),)


def keys_to_compare(clients: int, size: int, rounds: int) -> Iterator[Keys]:
    """Yields the keys of each alternative, for an expected cohort of `size` among `clients`.

    Samplers by slots are included if the cohort size divides the number of clients: a client then
    takes part once in clients / size rounds. Cyclic sampling has the largest allowed number of
    bands, or fewer if solving for that number over `rounds` takes long.
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
      ranked: comparable alternatives, least noise first.
      apart: alternatives whose guarantees are not comparable.
      unavailable: alternatives without a computed noise.
      yours: the run as it is configured; None if there is none.
      reference: the basis of comparison: `yours`, or else the first alternative.
    """

    ranked: tuple[Alternative, ...]
    apart: tuple[Alternative, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    yours: Alternative | None = None
    reference: Alternative | None = None

    def of(self, sampler: str, mechanism: str) -> Alternative | None:
        """Returns the alternative of these names; None if there is none."""
        every = (*self.ranked, *self.apart)
        return next((a for a in every if (a.sampler, a.mechanism) == (sampler, mechanism)), None)

    def beyond(self, alternative: Alternative) -> tuple[str, ...]:
        """Returns the assumptions that `alternative` needs in addition to those of `yours`."""
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
    """Ratio of the noise on the model to that of `reference`; None if they are not comparable."""
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
    """Compares the plans of a configuration with different keys.

    Args:
      base: the keys of the configuration.
      tried: the keys of each alternative.
      promises: the operational assumptions that hold.
      before: the earlier runs that count.
      yours: the run as it is configured, if there is one.
      adaptive: whether mechanisms without an adaptive clipping norm are unavailable.
      uneven: alternatives that are unavailable for this cohort size.
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
    """Returns figures of the plan of `base` with these `keys`, or why there are none."""
    names = keys["cohort.sampler"], keys["privacy.mechanism"]
    try:
        config = assembled(_with_keys(base, keys))
        needed = assumptions(config.sampler.witness(0, config.data.clients))
        if lacks := tuple(name for name in needed if name not in promises):
            return Unavailable(*names, f"not promised: {', '.join(lacks)}", lacks)
        if adaptive and not config.mechanism.adaptive:
            return Unavailable(*names, "its clipping norm does not adapt to clients' norms")
        alternative = alternative_of(plan(config, before), keys)
    except Refused as refused:
        return Unavailable(*names, str(refused))
    return alternative or Unavailable(*names, "its noise on the model is unknown")


def _with_keys(base: Raw, keys: Mapping[str, Any]) -> Raw:
    """Sets `keys` in `base`, and resets a cohort size that other keys determine."""
    raw = copy.deepcopy(base)
    for key, value in keys.items():
        assign(raw, key, value)
    if named(raw, "sampler").derives_size:
        raw["cohort"]["size"] = 0
    return raw
