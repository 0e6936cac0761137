"""Checks a run against a site's policy. A refusal has a public code and a private reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import catalogue_name
from privfed.core.registry import BUILT_IN, CLIENT_MODELS, GIVEN, LISTS
from privfed.deploy.files.federation_file import FederationFile, Threat
from privfed.deploy.site.policy import Code, LocalPolicy, Refusal
from privfed.deploy.site.release_check import StatesRelease, other_keys, purpose_of
from privfed.deploy.site.user_modules import unlisted_model_refusal
from privfed.plan.refusals import refusals
from privfed.plan.sum_limits import configured_limits

Reasons = Iterator[tuple[Code, str]]


@runtime_checkable
class _NamesThreat(Protocol):
    """A protocol with secret sharing that states its threat model."""

    threat: Threat


@dataclass(frozen=True)
class _Request:
    """A run, and the policy of the site that is asked to take part."""

    policy: LocalPolicy
    config: Config
    federation: FederationFile
    parameters: int

    def name(self, kind: str) -> str:
        """Returns the catalogue's name of the part of `kind`, even if the run file uses another."""
        return catalogue_name(kind, type(self.config.parts[kind]))

    @property
    def stated(self) -> bool:
        """Whether the data source is a `StatesRelease`, which fixes the model and the objective."""
        return isinstance(self.config.source, StatesRelease)


def refusal(
    policy: LocalPolicy,
    config: Config,
    federation: FederationFile,
    parameters: int,
) -> Refusal | None:
    """Returns the site's refusal of the run `config`, or None if the policy allows the run.

    The refusal depends only on the policy and on public facts of the run, so it reveals no client
    data. Two checks are elsewhere: `user_modules.outside_part` examines a run file before it is
    built, and `privfed.deploy.files.receipts` compares the cost of rounds with the budget.

    Args:
      policy: the site's policy.
      config: the run.
      federation: the federation of the site.
      parameters: number of trained parameters.

    Returns:
      The code of the first reason, with all reasons as the private text; None if there is none.
    """
    request = _Request(policy, config, federation, parameters)
    reasons = [reason for check in _IN_ORDER for reason in check(request)]
    if not reasons:
        return None
    return Refusal(reasons[0][0], "\n".join(text for _, text in reasons))


def _parts(request: _Request) -> Reasons:
    """Yields a reason for each external part, except the model, whose digest is checked."""
    for kind in request.config.parts:
        if kind != "model" and request.name(kind) not in {**BUILT_IN[kind], **GIVEN.get(kind, {})}:
            yield (
                Code.PART,
                f"{kind} is {request.name(kind)}, which is an external part, but this site allows "
                "only built-in parts; the run has to use those",
            )
    config = request.config
    listed = {
        "before": config.aggregation.before,
        "measure": config.evaluation.measures,
        "watcher": config.run.watch,
    }
    for kind, key in LISTS.items():
        for name in listed[kind]:
            if name not in BUILT_IN[kind]:
                yield (
                    Code.PART,
                    f"{key} names {name}, which is an external part, but this site allows only "
                    "built-in parts; the run has to use those",
                )


def _proof(request: _Request) -> Reasons:
    for reason in refusals(request.config):
        yield Code.PROOF, reason


def _simulation(request: _Request) -> Reasons:
    if request.policy.allow.simulation:
        return
    config = request.config
    simulated = {
        'run.randomness = "seeded"': config.run.randomness == "seeded",
        "run.simulation_metrics": config.run.simulation_metrics,
        "run.client_measures": config.run.client_measures,
        'secure.simulate = "arithmetic"': config.secure.simulate == "arithmetic",
        "[attack]": config.attack.acts or config.attackers.fraction > 0,
        "audit.canaries": config.audit.canaries > 0,
        "cohort.dropout": config.cohort.dropout > 0,
        'data.holdout = "examples"': config.data.holdout == "examples",
    }
    for key, requested in simulated.items():
        if requested:
            yield (
                Code.SIMULATION,
                f"{key} is for simulations, but allow.simulation is false; the run has to omit it",
            )


def _protocol(request: _Request) -> Reasons:
    allowed, name = request.policy.require.protocols, request.name("protocol")
    if name not in allowed:
        yield Code.PROTOCOL, _not_listed("secure.protocol", name, "require.protocols", allowed)


def _mechanism(request: _Request) -> Reasons:
    """Yields a reason if the policy does not list the mechanism.

    With central noise the reason adds that the server sees sums.
    """
    allowed, name = request.policy.require.mechanisms, request.name("mechanism")
    if name not in allowed:
        text = _not_listed("privacy.mechanism", name, "require.mechanisms", allowed)
        shown = "; with it the server sees sums before it adds noise"
        central = request.config.mechanism.private and request.config.mechanism.trust == "server"
        yield Code.MECHANISM, text + (shown if central else "")


def _threat(request: _Request) -> Reasons:
    protocol = request.config.protocol
    threat = protocol.threat if isinstance(protocol, _NamesThreat) else "curious"
    if request.policy.require.threat == "malicious" and threat != "malicious":
        yield (
            Code.THREAT,
            f"the run's sums are protected only against a {threat} server, but require.threat "
            'is "malicious"; the run has to set secure.threat = "malicious"',
        )


def _sites(request: _Request) -> Reasons:
    config, pinned = request.config, len(request.federation.sites)
    least = request.policy.require.sites
    if config.data.sites != pinned:
        yield (
            Code.SITES,
            f"data.sites is {config.data.sites}, but the federation has {pinned} sites; the run "
            f"has to set data.sites = {pinned}",
        )
    elif not config.secured:  # the server sees the sum of each site
        if pinned < least:
            yield Code.SITES, f"the federation has {pinned} sites, but require.sites is {least}"
    elif not config.by_sites:
        yield (
            Code.SITES,
            'secure.parties is "clients", but the parties of sums are sites here; the run has to '
            'set secure.parties = "sites"',
        )
    else:
        yield from _shares(request)


def _shares(request: _Request) -> Reasons:
    """Yields a reason if the run opens sums of fewer surviving sites than the policy requires.

    Also yields one if fewer shares open a secret than the federation file requires, or if that file
    permits no such run.
    """
    config, least = request.config, request.policy.require.sites
    limits, protocol = configured_limits(config), config.row_hiding
    if protocol is None:
        return
    if reason := request.federation.other_parties(config):
        yield Code.SITES, reason
        return
    try:
        session = protocol.over(limits).of_sites
    except Refused as error:
        yield Code.PROOF, str(error)
        return
    limits, protocol = session.limits, session.protocol
    if limits.minimum < least:
        yield (
            Code.SITES,
            f"the run opens sums of {limits.minimum} sites, but require.sites is {least}; "
            f"the run has to set secure.minimum = {least}",
        )
    if not isinstance(protocol, _NamesThreat):
        return
    try:
        pinned = request.federation.least_shares(limits.colluders, protocol.threat)
    except Refused as error:
        yield Code.SITES, str(error)
        return
    if protocol.least_sites(limits.sites) < pinned:
        yield (
            Code.SITES,
            f"{protocol.least_sites(limits.sites)} shares would open a secret, but the "
            f"federation file requires {pinned}; the run has to raise secure.threshold",
        )


def _budget(request: _Request) -> Reasons:
    """Yields a reason for a run without noise, or with larger epsilon or delta than `budget`.

    The charges of rounds are compared with the budget round by round.
    """
    privacy, limit = request.config.privacy, request.policy.budget
    noise = request.config.noise_multiplier
    fixed = privacy.noise_multiplier if privacy.noise_multiplier is not None else noise
    if not request.config.mechanism.private or fixed == 0.0 or privacy.epsilon == math.inf:
        yield (
            Code.BUDGET,
            f"the run adds no noise, but budget.epsilon is {limit.epsilon:g}; the run has to set a "
            "privacy.mechanism with noise and a finite privacy.epsilon",
        )
    elif privacy.epsilon is not None and privacy.epsilon > limit.epsilon:
        yield (
            Code.BUDGET,
            f"privacy.epsilon is {privacy.epsilon:g}, but budget.epsilon is {limit.epsilon:g}; the "
            "run has to lower privacy.epsilon",
        )
    if privacy.delta > limit.delta:
        yield (
            Code.DELTA,
            f"privacy.delta is {privacy.delta:g}, but budget.delta is {limit.delta:g}; the run has "
            "to lower privacy.delta",
        )


def _objective(request: _Request) -> Reasons:
    if request.stated:
        return
    allowed, name = request.policy.allow.objectives, request.name("objective")
    if name not in allowed:
        yield Code.OBJECTIVE, _not_listed("client.objective", name, "allow.objectives", allowed)


def _model(request: _Request) -> Reasons:
    """Yields a reason for a model that is too large, or that `allow.models` does not list.

    An external model is listed by the digest of its file.
    """
    allowed, name = request.policy.allow.models, request.name("model")
    if request.stated:
        pass  # `_releases` compares the model with that of the source
    elif name in BUILT_IN["model"]:
        if name not in allowed:
            yield Code.MODEL, _not_listed("model.name", name, "allow.models", allowed)
    else:
        for spelt in dict.fromkeys([request.config.names["model"], name]):
            if unlisted := unlisted_model_refusal(request.policy, spelt):
                yield unlisted.code, unlisted.reason
    most = request.policy.allow.parameters
    if request.parameters > most:
        yield (
            Code.PARAMETERS,
            f"the model has {request.parameters} parameters, but allow.parameters is {most}; the "
            "run has to use a smaller model",
        )


def unlisted_architecture(policy: LocalPolicy, config: Config) -> Refusal | None:
    """Returns a refusal of a client model that `allow.models` does not list; None if all are."""
    allowed = policy.allow.models
    for name in config.compression.architectures:
        if name not in allowed:
            reason = _not_listed(CLIENT_MODELS, name, "allow.models", allowed)
            return Refusal(Code.MODEL, reason)
    return None


def _deadline(request: _Request) -> Reasons:
    requested, most = request.config.secure.deadline, request.policy.allow.deadline
    if requested > most:
        yield Code.DEADLINE, f"secure.deadline is {requested:g} s, but allow.deadline is {most:g} s"


def _releases(request: _Request) -> Reasons:
    """Yields a reason for each of the run's releases that the policy does not list.

    Also yields the texts of `other_keys` if the run's source states its release.
    """
    allowed, config = request.policy.allow.releases, request.config
    requested = [purpose_of(config), *(["evaluation"] if config.evaluation_rounds.every else [])]
    if request.stated:
        yield from ((Code.RELEASE, reason) for reason in other_keys(config))
    for release in requested:
        if release not in allowed:
            yield Code.RELEASE, _not_listed("the release", release, "allow.releases", allowed)


def _not_listed(what: str, name: str, key: str, allowed: Collection[str]) -> str:
    return f"{what} is {name}, but {key} of the policy allows {', '.join(allowed)}"


_IN_ORDER: tuple[Callable[[_Request], Reasons], ...] = (
    _parts,
    _simulation,
    _protocol,
    _mechanism,
    _threat,
    _sites,
    _budget,
    _objective,
    _model,
    _deadline,
    _releases,
    _proof,
)
