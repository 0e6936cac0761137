"""The form of a claim, version 1; `docs/reference/claim_schema.json` is its JSON schema.

Every section except `evidence` and `written_by` is a function of the evidence
(`privfed.claims.derived`), so that another party can compute it again.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

VERSION = 1
"""Version of the form; a claim of another version is refused."""


class ClaimSection(BaseModel):
    """The base class of all parts of a claim; immutable, and undeclared keys are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Unknown(ClaimSection):
    """A fact that does not follow from the evidence, with the reason."""

    unknown: str
    """The reason."""


class Point(ClaimSection):
    """A point of the privacy profile: the mechanism is (`epsilon`, `delta`)-DP."""

    epsilon: float
    delta: float


class Rates(ClaimSection):
    """A bound on membership inference by any test of the releases."""

    false_positive_rate: float
    """Probability that the test takes a non-member for a member."""
    true_positive_rate: float
    """Upper bound on the probability that such a test recognises a member."""


class MembershipBounds(ClaimSection):
    """Bounds on every attack that infers membership from the releases."""

    correct_guess: float
    """Largest probability of a correct guess if membership is as likely as non-membership."""
    rates: list[Rates]
    """The largest true positive rate, by false positive rate."""


class Bound(ClaimSection):
    """One (ε, δ)-DP guarantee, for one unit of privacy and against one adversary."""

    unit: str
    adjacency: str
    against: str
    """The adversary whose view epsilon bounds; empty if the run has one guarantee for all."""
    epsilon: float
    """Epsilon; infinite, written "inf", without a bound."""
    delta: float
    accountant: str
    accountants: dict[str, float | None]
    """Epsilon by accountant; null if an accountant has no bound."""
    meaning: str
    """The guarantee in one sentence."""
    caveat: str
    """What epsilon covers in addition to the charges; empty if nothing."""


class GuaranteeSection(ClaimSection):
    """The guarantee of the run, and what follows from it."""

    holds: bool
    """Whether the guarantee protects clients: false for simulations and void guarantees."""
    reason: str
    """Why it does not hold; empty if it holds."""
    unit: str
    """The unit of privacy: "client" (all data of one client), "example" or "record"."""
    adjacency: str
    """The adjacency relation of neighbouring datasets."""
    reported: Bound
    """The guarantee to report."""
    charged: Bound
    """The guarantee of the charged releases alone. It differs from `reported` if a run stopped
    early or was extended: it is then an odometer."""
    further: list[Bound]
    """Guarantees against other adversaries, or for other units."""
    mu: float | Unknown
    """The parameter of Gaussian DP, if the releases compose to a Gaussian mechanism."""
    profile: list[Point] | Unknown
    """The privacy profile at fixed values of epsilon; each delta is an upper bound."""
    membership: MembershipBounds | Unknown
    quotations: list[str]
    """Sentences that a paper or a consent form may quote."""


class TrustSection(ClaimSection):
    """The trusted parties, the assumptions on other parties, and what each party sees."""

    model: str
    """Who adds the noise, and who is therefore trusted."""
    trusts: list[str] | Unknown
    """Parties that see less processed data than the releases."""
    relies_on: list[str] | Unknown
    """Required behaviour of parties of secure sums."""
    colluders: float | Unknown | None
    """Largest number (or, below 1, fraction of each cohort) of colluding parties; null: any."""
    byzantine: float | Unknown | None
    """Largest number of Byzantine clients in a cohort; null: any."""
    messages: str
    """What each party sees."""
    malicious_server: str
    """What a server that deviates from the protocol could learn."""


class ReleaseSection(ClaimSection):
    """Releases of one kind about the population."""

    run: str
    """Id of the run that made them."""
    purpose: str
    """training, evaluation, statistics, tuning, or a further release."""
    event: dict[str, Any]
    """The event as which each of these releases is charged."""
    count: int


class CompositionSection(ClaimSection):
    """The composition of the releases."""

    rule: str
    budget: float | None
    """The largest epsilon that the run may spend; null without a budget."""
    budget_changes: list[dict[str, Any]]
    epsilon_of_this_run: float
    earlier_runs: list[str]
    """Ids of the counted earlier runs over the same population."""
    disjoint_runs: list[str]
    """Ids of runs that are declared to share no client with this one."""


class MechanismSection(ClaimSection):
    """The private mechanism of a release."""

    name: str
    noise_multiplier: float | None
    """Standard deviation of the noise over the clipping norm; null if releases differ in it."""
    clip: float | Unknown
    """Clipping norm of a client's row; at first, if it is adaptive."""
    adaptive_clip: bool | Unknown
    sensitivity: float | Unknown
    """L2 sensitivity of the sum under the adjacency relation."""
    arithmetic: str | Unknown
    randomness: str | Unknown
    """"secret" for the operating system's generator, "seeded" in simulations."""
    proof: str | Unknown


class SamplingSection(ClaimSection):
    """The sampling of clients for a release, and their examples that are protected together."""

    sampler: str
    rate: float | None
    """Sampling rate; null if releases differ in it, or there is none."""
    clients: int | Unknown
    """Declared number of clients."""
    participation: str
    """How often a client takes part."""
    examples: str | Unknown
    """Which examples of a client are protected together."""
    simulated: bool | Unknown
    """Whether a partition assigned the examples to clients, so that no client is a real one."""


class SecureSumsSection(ClaimSection):
    """The protocol that sums clients' rows."""

    protocol: str
    cryptography: bool
    """Whether its cryptography ran."""
    keys: dict[str, Any]
    """The keys of [secure] in the run file, such as thresholds."""
    sites: dict[str, Any] | None
    """The declared sites and the survivors that a sum needs; null without sites."""


class AuditSection(ClaimSection):
    """An empirical test of the guarantee."""

    by: str
    result: dict[str, Any]
    power: dict[str, Any] | Unknown
    """The faults of the mechanism that the test would have detected, with probabilities."""


class SubjectSection(ClaimSection):
    """The run that the claim is about."""

    framework: str
    run: str
    """Id of the run."""
    releases: int
    """Number of charged releases of this run."""
    planned_rounds: int | Unknown
    ended: bool | Unknown
    ledger_head: str | Unknown
    """Hash of the ledger's last line."""
    configuration_sha256: str | Unknown
    model_sha256: str | Unknown
    """Hash of the file of the model."""
    parameters: int | Unknown
    """Number of parameters of the model."""


class ClaimEvidence(ClaimSection):
    """The facts from which all other sections follow."""

    ledger: dict[str, Any]
    """The ledger: its terms, its lines and its head (`privfed.claims.compact`)."""
    configuration: dict[str, Any]
    """The tables of the run's config.toml, whose digest the ledger's terms state under "config";
    without privacy.epsilon, which the ledger states. Empty for claims about other frameworks."""
    stated: dict[str, Any]
    """Facts that follow from neither, such as the model's hash and results of audits. They are
    compared with the run if it is available, and are otherwise statements of the issuer."""


class Claim(ClaimSection):
    """A claim about the privacy of one run.

    `digest` is the SHA-256 of the claim's canonical JSON without the entry `digest`.
    """

    form: Literal["privfed claim"] = "privfed claim"
    version: Literal[1] = 1
    subject: SubjectSection
    guarantee: GuaranteeSection
    trust: TrustSection
    releases: list[ReleaseSection]
    composition: CompositionSection
    mechanism: MechanismSection
    sampling: SamplingSection
    secure_sums: SecureSumsSection | Unknown
    not_covered: list[str]
    """What the guarantee does not cover."""
    audits: list[AuditSection] | Unknown
    evidence: ClaimEvidence
    written_by: dict[str, str]
    """Versions of the programs that wrote the claim."""
    digest: str = ""
