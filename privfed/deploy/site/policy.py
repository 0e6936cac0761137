"""`policy.toml`: what a site permits runs to do; the site itself enforces it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.reading import read_toml
from privfed.core.errors import Refused
from privfed.core.parts import Part, expected
from privfed.core.registry import BUILT_IN


class Code(StrEnum):
    """The word that a site sends to the coordinator as the only reason for a refusal."""

    PART = "part"
    """The run names an external part, whose code would run here."""
    PROOF = "proof"
    """The run or its file is refused, for example because its combination has no proof."""
    SIMULATION = "simulation"
    PROTOCOL = "protocol"
    MECHANISM = "mechanism"
    THREAT = "threat"
    SITES = "sites"
    BUDGET = "budget"
    DELTA = "delta"
    OBJECTIVE = "objective"
    MODEL = "model"
    PARAMETERS = "parameters"
    RELEASE = "release"
    """The policy lists no such release, or a run of statistics is not that of its source."""
    RUN = "run"
    """The run differs from its first round, or from the first line of its ledger."""
    ROUND = "round"
    """The round or exchange does not exist, is not charged, or precedes the last answered one."""
    QUESTION = "question"
    """The site answered another question in the same exchange."""
    LEDGER = "ledger"
    """The coordinator's ledger does not continue the site's copy, or does not charge the round."""
    RECEIPTS = "receipts"
    """The site's receipts lack an exchange that the coordinator has its answer to."""
    BUSY = "busy"
    """The site trains for a later round, which other work would slow (`data.site_delays`)."""
    STORAGE = "storage"
    """The site's disk is full, or an earlier receipt could not be written."""
    SOURCE = "source"
    """The run's data source is not a table."""
    TABLE = "table"
    """The site's table does not exist, or lacks a column that the run declares."""
    CLIENT = "client"
    """A client may have rows at more sites than the run takes into account."""
    APPROVAL = "approval"
    """The policy requires approval by hand, but the run is not approved, or was declined."""
    DEADLINE = "deadline"
    """The run's deadline is not set, exceeds the policy's, or is too short for this machine."""


@dataclass(frozen=True)
class Refusal:
    """A public `code`, and the full `reason`, which only the site's own operator may see."""

    code: Code
    reason: str


class Declined(Refused):
    """A site's refusal: the message is only the code, and the reason is private."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"declined: {refusal.code}", refusal.reason)
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[Declined], tuple[Refusal]]:
        return type(self), (self.refusal,)

    @property
    def code(self) -> Code:
        """The public code."""
        return self.refusal.code


DIGEST = "sha256:"
"""Prefix of a file's digest, by which an external module is allowed."""
RELEASES = ("training", "evaluation", "statistics")
"""The releases that a run may request from sites."""


def _names(known: tuple[str, ...], digests: bool = False) -> AfterValidator:
    """Returns a validator of nonempty lists of unique names from `known`.

    If `digests` is true, a list may also contain digests of files.
    """

    def check(names: list[str]) -> list[str]:
        wrong = [name for name in names if not (name in known or (digests and _is_digest(name)))]
        if wrong:
            also = f", or {DIGEST!r} and 64 digits" if digests else ""
            raise ValueError(f"{wrong[0]!r}: {expected(wrong[0], list(known))}{also}")
        if not names or len({*names}) < len(names):
            raise ValueError("expected at least one name, and each name only once")
        return names

    return AfterValidator(check)


def _is_digest(name: str) -> bool:
    return bool(re.fullmatch(f"{DIGEST}[0-9a-f]{{64}}", name))


def _built_in(kind: str, *without: str) -> tuple[str, ...]:
    return tuple(name for name in BUILT_IN[kind] if name not in without)


class SpendingLimit(Part):
    """The budget (ε at δ) of each client in this site's table, over all runs that it answers."""

    epsilon: float = Field(2.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)


class Requirements(Part):
    """The requirements of a site's policy on every run."""

    protocols: Annotated[list[str], _names(_built_in("protocol"))] = ["masks"]
    mechanisms: Annotated[list[str], _names(_built_in("mechanism", "none"))] = [
        "discrete_gaussian",
        "skellam",
    ]
    threat: Literal["curious", "malicious"] = "malicious"
    """"malicious": the run must protect sums even if the server misreports dropouts."""
    sites: int = Field(3, ge=1, le=10_000)
    """The smallest number of surviving sites of a sum that is opened."""
    approve: Literal["automatic", "by_hand"] = "automatic"
    """"by_hand": a run that the policy permits also waits until a person approves it (`privfed site
    approve`). An approval permits nothing that the policy does not."""


class Allowances(Part):
    """The parts, sizes, releases and features of simulations that a site allows in a run."""

    objectives: Annotated[list[str], _names(_built_in("objective"))] = ["sgd", "fedprox"]
    models: Annotated[list[str], _names(_built_in("model"), digests=True)] = ["logistic", "mlp"]
    """Names of built-in models, and digests of the files of external models."""
    parameters: int = Field(10_000_000, ge=1)
    """The largest number of model parameters."""
    deadline: float = Field(3600.0, gt=0, le=86_400)
    """Largest `secure.deadline` in seconds. An agent answers nothing else while it trains."""
    releases: Annotated[list[str], _names(RELEASES)] = ["training"]
    """Lists of models and objectives concern training: other releases state their own."""
    simulation: bool = False
    """Whether runs may use features of simulations: seeded noise, sums without cryptography or
    measures released without an ε, which void every client's guarantee; also attackers, canaries,
    simulated dropouts, and the test set data.holdout = "examples".
    """


class LocalPolicy(Part):
    """A site's policy; runs that exceed it are declined (`privfed.deploy.site.policy_check`)."""

    budget: SpendingLimit = SpendingLimit()
    require: Requirements = Requirements()
    allow: Allowances = Allowances()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the policy in the file at `path`.

        Raises:
          Refused: if the file is invalid; the message lists all mistakes.
        """
        document = read_toml(path, "policy")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            wrong = mistakes(error, "", document, cls)
            raise Refused(listed_mistakes(wrong, f"{path}: "), key=wrong[0].key) from error


TEXT = """\
# The runs that this site accepts. Any other run is declined with a fixed word; the full reason is
# written to this site's own log only. The values below are the defaults.
format = 1

[budget]                    # for each client in this site's table, over all runs that it answers
epsilon = 2.0
delta = 1e-5

[require]
protocols = ["masks"]
mechanisms = ["discrete_gaussian", "skellam"]  # with central noise ("gaussian") the server sees
                                               # this site's sum; add it only to permit this
threat = "malicious"            # the server may deviate from the protocol; "curious": it does not
sites = 3                   # smallest number of surviving sites of a sum that is opened
approve = "automatic"       # "by_hand": each run also waits for privfed site approve

[allow]
objectives = ["sgd", "fedprox"]
models = ["logistic", "mlp"]  # or "sha256:…", the digest of a module's file that you have read
parameters = 10_000_000     # largest number of parameters of a model
deadline = 3600.0           # largest secure.deadline: seconds to train for each sum
releases = ["training"]     # also "evaluation", "statistics"
simulation = false          # true also accepts simulations, which have no privacy guarantee
"""
"""The template of a policy file: the defaults with explanations."""
