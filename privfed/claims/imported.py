"""Claims about runs of other frameworks, from a TOML file that states releases and sampling."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from accounting import chain, regular
from accounting.documents import from_toml
from accounting.errors import AccountingError
from accounting.events import ADD_REMOVE, CHANGE, REPLACE_ONE, Event
from accounting.guarantee import TIGHTEST, refuse_unaccountable
from accounting.ledger import FORMAT
from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled, Release, WithoutReplacement
from privfed.claims.compact import LARGEST, compacted
from privfed.claims.derived import derived_claim
from privfed.claims.schema import Claim, ClaimEvidence
from privfed.core.errors import Refused, public_text


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OtherRelease(_Table):
    """Releases of one kind in a run of another framework.

    `sampling_rate`, `cohort` and `separation` determine the participation; if none is stated, every
    client takes part in each release.
    """

    purpose: str = "training"
    count: int = Field(ge=1, le=LARGEST)
    """Number of releases, such as optimizer steps or rounds."""
    noise_multiplier: float = Field(gt=0)
    """Standard deviation of the noise, divided by the clipping norm."""
    sampling_rate: float | None = Field(None, gt=0, le=1)
    """Rate of Poisson sampling."""
    cohort: int | None = Field(None, ge=1)
    """Size of a uniform sample without replacement from `population`."""
    separation: int | None = Field(None, ge=1)
    """Number of successive releases in which a client (or record) takes part at most once, as for
    banded noise. `noise_multiplier` is then that of the equivalent single release."""

    @model_validator(mode="after")
    def _one_sampling(self) -> Self:
        if sum(each is not None for each in (self.sampling_rate, self.cohort, self.separation)) > 1:
            raise ValueError("state at most one of sampling_rate, cohort and separation")
        return self


class OtherRun(_Table):
    """The description of a run of another framework, in a TOML file that its user writes."""

    framework: str = Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")
    name: str = Field(min_length=1)
    unit: Literal["client", "record"]
    adjacency: Literal["add/remove", "replace-one", "zero-out"]
    delta: float = Field(gt=0, lt=1)
    population: int | None = Field(None, ge=1)
    """Number of clients or records."""
    clip: float | None = Field(None, gt=0)
    trust: str | None = None
    """Who adds the noise, and sees what."""
    arithmetic: str | None = None
    """How noise is sampled, and in which arithmetic."""
    randomness: str | None = None
    """The generator of the noise."""
    releases: list[OtherRelease] = Field(min_length=1)

    @field_validator("framework")
    @classmethod
    def _another(cls, name: str) -> str:
        if name.lower().startswith("privfed"):
            raise ValueError("a run of privfed has a ledger: use privfed report RUN_DIR --claim")
        return name


def import_claim(path: Path) -> Claim:
    """Returns the claim about the run that the TOML file at `path` describes.

    Raises:
      Refused: if the file cannot be read; if a key is missing, unknown or invalid; or if no
        accountant bounds a release.
    """
    try:
        text = regular.read_text(path)
        other = OtherRun.model_validate(from_toml(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise Refused(f"{path}: {place}: {first['msg']}", key=place) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {public_text(error)}; name a TOML file") from None
    try:
        return derived_claim(_evidence(other, hashlib.sha256(text.encode()).hexdigest()[:16]))
    except (AccountingError, ArithmeticError, ValueError) as error:
        raise Refused(f"{path}: no accountant bounds this: {public_text(error)}") from None


def _evidence(other: OtherRun, name: str) -> ClaimEvidence:
    """Returns the evidence of a claim about `other`: a ledger made from its releases, and facts.

    `name` becomes the id of the run.
    """
    events = [(_event(other, release), release) for release in other.releases]
    for event, _ in events:
        refuse_unaccountable(event, TIGHTEST)
    optional = {key: getattr(other, key) for key in ("arithmetic", "randomness")}
    terms = {
        "id": name,
        "unit": other.unit,
        "relation": other.adjacency,
        "sampler": ", ".join(sorted({event.sampler for event, _ in events})),
        "mechanism": "gaussian",
        "delta": other.delta,
        "accountant": TIGHTEST,
        **({"clients": other.population} if other.population else {}),
        **{key: value for key, value in optional.items() if value},
        "purposes": [[event.to_json(), release.purpose] for event, release in events],
    }
    bodies: list[dict[str, Any]] = [{"type": "open", "format": FORMAT, "terms": terms}]
    distinct = dict.fromkeys(event for event, _ in events)
    numbers = {event: number for number, event in enumerate(distinct)}
    bodies += [
        {"type": "define", "id": number, "event": event.to_json()}
        for event, number in numbers.items()
    ]
    charges = [numbers[event] for event, release in events for _ in range(release.count)]
    bodies += [
        {"type": "charge", "round": round, "event": number}
        for round, number in enumerate(charges, 1)
    ]
    links, head = [], chain.START
    for body in bodies:
        links.append(chain.sealed(head, body)[1])
        head = links[-1]["hash"]
    stated = {
        "framework": other.framework,
        "name": other.name,
        "clip": other.clip,
        "trust": other.trust,
    }
    return ClaimEvidence(ledger=compacted(links), configuration={}, stated=stated)


def _event(other: OtherRun, release: OtherRelease) -> Event:
    """Returns the event of one release, with noise in units of the L2 sensitivity."""
    noise = Gaussian(release.noise_multiplier / CHANGE[other.adjacency])
    sampled, sampler = _sampled(other, release, noise)
    return Event(sampled, sampler, other.adjacency, other.unit)


def _sampled(other: OtherRun, release: OtherRelease, noise: Gaussian) -> tuple[Release, str]:
    """Returns the release with `noise` on its sample of clients, and the sampler's name.

    Raises `Refused` if the sampling has no proof under the stated adjacency relation.
    """
    if release.sampling_rate is not None:
        if other.adjacency != ADD_REMOVE:
            raise Refused(
                f"adjacency is {other.adjacency!r}, but amplification by Poisson sampling is "
                f"proved under {ADD_REMOVE!r} only; state that, or leave out sampling_rate"
            )
        return PoissonSampled(release.sampling_rate, noise), "poisson"
    if release.cohort is not None:
        if other.adjacency != REPLACE_ONE or other.population is None:
            raise Refused(
                "cohort is stated, but sampling without replacement needs population, and "
                f"adjacency = {REPLACE_ONE!r}; state both, or leave out cohort"
            )
        return WithoutReplacement(release.cohort, other.population, noise), "without replacement"
    if release.separation is not None:
        return Separated(release.separation, noise), "separated"
    return noise, "full participation"
