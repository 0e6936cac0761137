"""Combinations of parts that have no proof, or cannot be: each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterator

from accounting.events import CHANGE, ZERO_OUT
from accounting.releases import Gaussian, PoissonSampled, Separated
from defenses.types import SumRule
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.plan.rule import rule_of, rules_by_sums, tolerates
from privfed.plan.sum_limits import limits


def refusals(config: Config) -> Iterator[str]:
    """Why this combination of parts has no proof, or cannot be: one reason each."""
    mechanism = config.mechanism
    objective, weights = config.objective, config.aggregation.weights
    try:
        config.sampler.witness(0, config.data.clients)
    except Refused as refused:
        yield str(refused)
    if config.run.heads and config.run.randomness == "seeded":
        yield (
            "run.heads keeps what nobody may cut off a ledger, but a seeded run's is made again at "
            'will; leave run.heads out, or set run.randomness = "secret"'
        )
    yield from _rule_refusals(config)
    yield from _attack_refusals(config)
    yield from _state_refusals(config)
    yield from _silo_refusals(config)
    for part, schedule in (
        ("client", config.client_schedule),
        ("server", config.server_schedule),
    ):
        if schedule.factor(config.run.rounds) == 0.0:
            yield (
                f"{part}.schedule has reached a rate of 0 by round {config.run.rounds}: rounds "
                "that learn nothing would be run, and paid for; let it last longer, or lower "
                "run.rounds"
            )
    if mechanism.private and objective.unproven:
        yield (
            f"client.objective = {config.names['objective']!r} has no proof under privacy: "
            f'{objective.unproven}; use another objective, or privacy.mechanism = "none"'
        )
    if config.run.simulation_metrics and config.run.checkpoint_every % config.run.evaluate_every:
        yield (
            f"run.simulation_metrics adds up work between evaluations, every "
            f"{config.run.evaluate_every} rounds, which a resume from a checkpoint, every "
            f"{config.run.checkpoint_every}, would lose in part; make run.checkpoint_every a "
            "multiple of run.evaluate_every"
        )
    if config.client.stragglers and config.client.epochs == 1:
        yield (
            f"client.stragglers is {config.client.stragglers}, but client.epochs is 1, which "
            "leaves nothing to shorten; raise client.epochs or remove the key"
        )
    absent = config.availability.varies or config.client.drop_stragglers
    absent = absent or config.dropout > 0
    if mechanism.adaptive and absent:
        yield (
            "privacy.adaptive_clip takes who does not answer for one half within the clip, so that "
            'it would grow without end; set cohort.availability = "always", cohort.dropout = 0 and '
            "client.drop_stragglers = false, or a fixed clip"
        )
    if config.client.drop_stragglers and not 0.0 < config.client.stragglers < 1.0:
        yield (
            f"client.drop_stragglers is true, but client.stragglers is {config.client.stragglers}, "
            "which leaves nobody to drop, or nobody else; set it between 0 and 1"
        )
    sampler = f"cohort.sampler is {config.names['sampler']!r}"
    if config.sampler.reads_sizes:
        if mechanism.private:
            yield (
                f"{sampler}, but how many examples a client has is private data; "
                'use "poisson", or privacy.mechanism = "none"'
            )
        elif objective.keeps:
            yield (
                f"{sampler}, by size, but with client.objective = "
                f"{config.names['objective']!r} each client's state counts alike, at one sampling "
                'rate; use "poisson"'
            )
        elif weights != "uniform" and not config.rule.robust:
            yield (
                f"{sampler}, by size, and aggregation.weights {weights!r}, which counts "
                'examples twice; use aggregation.weights = "uniform"'
            )
    if mechanism.private and weights == "examples":
        yield (
            'aggregation.weights is "examples", but under privacy example counts are private data '
            'and would leave unprotected; use "uniform" or "auto"'
        )
    yield from _secure_refusals(config)
    yield from _canary_refusals(config)


def _canary_refusals(config: Config) -> Iterator[str]:
    """Of canaries among the clients."""
    mechanism, count = config.mechanism, config.audit.canaries
    if not count:
        return
    named = f"audit.canaries is {count}"
    if not mechanism.private:
        yield (
            f'{named}, but with privacy.mechanism = "none" nothing is claimed that they could '
            "test; configure one, or remove the key"
        )
    if count > config.data.clients:
        yield (
            f"{named}, more than the {config.data.clients} clients that learn something; expected "
            "at most as many, better a tenth"
        )
    if count < 20:
        yield f"{named}, too few to say anything; expected at least 20, better 1000"
    if mechanism.private and mechanism.trust == "client":
        yield (
            f"{named}, but with privacy.mechanism = {config.names['mechanism']!r} it is public who "
            "takes part, and what is claimed is about somebody's data, not about being there; test "
            "the mechanism alone: privfed audit --mechanism"
        )
    if mechanism.adaptive:
        yield (
            f"{named}, and privacy.adaptive_clip would follow their norms, which are long; set it "
            "to false, or test the mechanism alone: privfed audit --mechanism"
        )
    sampler = config.sampler
    if sampler.shares_places or sampler.witness(0, config.data.clients).shares_places:
        yield (
            f"{named}, but under cohort.sampler = {config.names['sampler']!r} they would take "
            'places of real clients, and change the sampling rate; use "poisson", "full" or '
            '"cyclic"'
        )
    if config.secured:
        yield (
            f"{named}, and under secure.protocol = {config.names['protocol']!r} how often a sum "
            "aborts is charged for cohorts of real clients, and the noise that made-up ones add "
            'is known to who made them up; use secure.protocol = "none", or test the mechanism '
            "alone: privfed audit --mechanism"
        )
    if config.attacked:
        yield f"{named}, and there are attackers, whose runs claim nothing; use one of the two"


def _rule_refusals(config: Config) -> Iterator[str]:
    """Of the aggregation rule: what it needs to see, and what its terms are proved for."""
    mechanism, objective = config.mechanism, config.objective
    asked, name = config.aggregation, f"aggregation.rule = {config.names['rule']!r}"
    try:
        rule = rule_of(config)
    except Refused as refused:
        yield str(refused)
        return
    sums, plain = isinstance(rule, SumRule), isinstance(rule, SumRule) and not rule.robust
    needs = frozenset[str]() if isinstance(rule, SumRule) else rule.needs()
    if asked.before:
        name = f"{name} after aggregation.before = {asked.before!r}"
    if mechanism.private and not sums and mechanism.trust != "client":
        yield (
            f"{name} needs to see every client's row, and a function of rows has no proven "
            "sensitivity to calibrate central noise to; use a rule that sums suffice for "
            f"({_by_sums()}) and no aggregation.before, or noise on each client: "
            'privacy.mechanism = "local_gaussian"'
        )
    if not sums and config.secured:
        yield (
            f"{name} needs rows, which a secure sum never shows; use a rule that sums suffice for "
            f'({_by_sums()}) and no aggregation.before, or secure.protocol = "none"'
        )
    if not plain and (not objective.sends_updates_alone or objective.keeps):
        yield (
            f"client.objective = {config.names['objective']!r} has the server sum more than an "
            f'update, and {name} is for rows of updates; use aggregation.rule = "mean", or an '
            'objective that sends an update alone, as "sgd"'
        )
    elif objective.exchanges > 1 and not plain and (sums or needs & {"root", "center"}):
        yield (
            f"client.objective = {config.names['objective']!r} has the server average gradients "
            f"before updates, and {name} is for updates; use another of the two"
        )
    if not plain and (asked.weights == "examples" or asked.silo_weights):
        yield (
            f"{name} weighs all rows alike, as a hostile client may lie about its size; use "
            'aggregation.weights = "uniform" or "auto", and no aggregation.silo_weights'
        )
    if sums and not plain and mechanism.adaptive:
        yield (
            f"privacy.adaptive_clip moves the clip between rounds, and the terms of {name} are "
            'bounded by a fixed one; set it to false, or use aggregation.rule = "mean"'
        )
    buckets = any("bucket_size" in type(part).model_fields for part in config.before)
    if asked.bucket_size != 2 and not buckets:
        yield (
            f"aggregation.bucket_size is {asked.bucket_size}, but nothing is put into buckets; add "
            '"bucketing" to aggregation.before, or remove the key'
        )
    if asked.root and config.data.holdout == "examples":
        yield (
            'aggregation.root is the server\'s own, and with data.holdout = "examples" it would be '
            'examples of clients that train; use data.holdout = "test" or "clients"'
        )
    if config.row_hiding and not mechanism.private and isinstance(rule, SumRule) and rule.robust:
        most, range = rule.sensitivity(CHANGE[ZERO_OUT]), config.row_hiding.range
        if range < most < math.inf:
            yield (
                f"secure.range is {range:g}, but the terms of {name} may be as long as {most:g}; "
                "raise secure.range (and secure.bits), or lower the rule's bound"
            )
    size = config.sampler.size
    if asked.byzantine > tolerates(rule, size):
        yield (
            f"aggregation.byzantine is {asked.byzantine}, but {name} tolerates at most "
            f"{tolerates(rule, size)} hostile clients in a cohort of {size}; lower it, choose a "
            "rule that tolerates more, or raise cohort.size"
        )
    if ("root" in needs) != (asked.root > 0):
        yield (
            f"{name} needs a root set: set aggregation.root to how many of the public test "
            "examples the server shall train on (they are not scored)"
            if asked.root == 0
            else f"aggregation.root is {asked.root}, but {name} uses no root set; remove the key"
        )


def _by_sums() -> str:
    return ", ".join(f'"{rule}"' for rule in rules_by_sums())


def _attack_refusals(config: Config) -> Iterator[str]:
    """Of simulated attackers."""
    attack, name = config.attack, config.names["attack"]
    fraction, given = config.attackers.fraction, "fraction" in config.attackers.model_fields_set
    if attack.acts != (fraction > 0.0) and not (attack.acts and given):
        yield (
            f"attack.name is {name!r} and attack.fraction {fraction:g}; expected an attack and the "
            "part of clients that carry it out (0.0 for nobody), or neither"
        )
    elif 0.0 < fraction * config.data.clients < 0.5:
        yield (
            f"attack.fraction is {fraction:g} of {config.data.clients} clients, and so nobody; "
            "raise it"
        )
    if not attack.acts and (config.attackers.selection, config.attackers.stage) != ("once", "auto"):
        yield "attack.selection and attack.stage say how an attack goes, and none is configured"
    if attack.poisons and config.shift.changes_labels:
        yield (
            f"attack.name = {name!r} and data.shift = {config.names['shift']!r} both change "
            "labels; use one of them"
        )
    if attack.corrupts and not config.objective.sends_updates_alone:
        yield (
            f"attack.name = {name!r} replaces updates, and client.objective = "
            f"{config.names['objective']!r} sends more than these; use an attack on data, or an "
            'objective as "sgd"'
        )


def _secure_refusals(config: Config) -> Iterator[str]:
    """Of secure sums."""
    secure, mechanism = config.secure, config.mechanism
    if config.privacy.against != "server" and mechanism.trust != "sum":
        yield (
            "privacy.against is for distributed noise (skellam, discrete_gaussian), which has two "
            "guarantees; remove the key"
        )
    if not config.secured:
        if mechanism.trust == "sum":
            yield (
                f"privacy.mechanism = {config.names['mechanism']!r} makes up its noise in a secure "
                'sum, and none is configured; set secure.protocol = "masks" or "bfv"'
            )
        for key, unset in (("capacity", 0), ("minimum", 0), ("simulate", "messages")):
            if getattr(secure, key) != unset:
                yield f"secure.{key} needs a secure.protocol; choose one, or remove the key"
        return
    try:
        config.protocol.over(limits(config))
    except Refused as refused:
        yield str(refused)
    if mechanism.trust == "sum" and mechanism.layered and not config.protocol.layers:
        yield (
            'privacy.sizing = "layers" takes noise off with secrets that masked sums share; use '
            'secure.protocol = "masks", or privacy.sizing = "minimum"'
        )
    if secure.capacity and secure.minimum > secure.capacity:
        yield f"secure.minimum is {secure.minimum}, above secure.capacity = {secure.capacity}"
    if config.protocol.approximate and mechanism.trust != "server":
        yield (
            f"secure.protocol = {config.names['protocol']!r} decrypts to approximate sums, which "
            "may be shown to key holders only, or an eavesdropper recovers the key; use central "
            'noise, which the key holder adds (privacy.mechanism = "gaussian"), or '
            'secure.protocol = "bfv"'
        )
    if config.client.drop_stragglers or config.availability.varies:
        yield (
            "client.drop_stragglers and cohort.availability leave it open how many send to a "
            "secure sum, and so how often it aborts; use cohort.dropout, client.drop_stragglers = "
            'false and cohort.availability = "always"'
        )


def _silo_refusals(config: Config) -> Iterator[str]:
    """Of privacy inside silos, and of constants declared for each."""
    objective, name = config.objective, config.names["objective"]
    given = config.aggregation.silo_weights
    if given and (config.mechanism.private or objective.keeps):
        yield (
            "aggregation.silo_weights are set, but under user-level privacy, and where clients "
            "keep a state, everybody weighs one; remove the key"
        )
    elif given and (len(given) != config.data.clients or not any(given)):
        yield (
            f"aggregation.silo_weights has {len(given)} numbers for data.clients = "
            f"{config.data.clients}; expected one for each, not all 0"
        )
    elif given and (config.aggregation.weights != "auto" or config.data.setting != "cross_silo"):
        yield (
            'aggregation.silo_weights go with data.setting = "cross_silo" and '
            "aggregation.weights left out"
        )
    if not config.client_mechanism.private:
        return
    if config.data.setting != "cross_silo":
        yield (
            'client.privacy.mechanism is "dp_sgd", which protects single examples of a silo; set '
            'data.setting = "cross_silo", or protect whole clients by privacy.mechanism'
        )
    if config.run.precision == "mixed":
        yield (
            'run.precision is "mixed", but client.privacy.mechanism = "dp_sgd" takes gradients of '
            'single examples, which stay in full precision; use "full"'
        )
    if objective.anchored or objective.measures or objective.exchanges > 1:
        yield (
            f"client.objective = {name!r} reads a silo's examples beside its local steps, and "
            'client.privacy.mechanism = "dp_sgd" adds noise to these alone; use "sgd", "fedprox", '
            '"fedfor", "scaffold" or "feddyn"'
        )
    if config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but how many examples a silo has is what '
            'client.privacy.mechanism = "dp_sgd" protects; declare aggregation.silo_weights as '
            'public constants, or use "uniform"'
        )
    if config.sampler.reads_sizes:
        yield (
            f"cohort.sampler is {config.names['sampler']!r}, but how many examples a silo has is "
            "what "
            'client.privacy.mechanism = "dp_sgd" protects; use "full" or "poisson"'
        )


def _state_refusals(config: Config) -> Iterator[str]:
    """Of objectives whose clients remember something between rounds."""
    objective, name = config.objective, config.names["objective"]
    if not objective.keeps:
        return
    if _told_by_others(config):
        yield (
            f"client.objective = {name!r} has each client remember when it took part, which under "
            f"cohort.sampler = {config.names['sampler']!r} depends on who else did, and no "
            'amplification is proved; use "poisson", "full" or "cyclic"'
        )
    kept = "d" if objective.keeps == 1 else f"{objective.keeps} d"
    if config.data.setting == "cross_device":
        yield (
            f"client.objective = {name!r} has each client remember {kept} numbers from round "
            "to round, so the same clients have to return, which phones do not; use "
            'data.setting = "cross_silo" if yours do, or another objective'
        )
    if config.availability.varies or config.client.drop_stragglers or config.dropout:
        yield (
            f"client.objective = {name!r} counts who has taken part by the sampler alone; set "
            'cohort.availability = "always", cohort.dropout = 0 and client.drop_stragglers = false'
        )
    if config.aggregation.weights == "examples":
        yield (
            f'aggregation.weights is "examples", but with client.objective = {name!r} the server '
            'sums what clients remember, each alike; use "uniform" or "auto"'
        )


def _told_by_others(config: Config) -> bool:
    """Whether central noise is amplified by a draw in which who takes part depends on others."""
    mechanism = config.mechanism
    release = config.sampler.witness(0, config.data.clients).release
    if not mechanism.private or mechanism.trust == "client" or release is None:
        return False
    return not isinstance(release, Gaussian | PoissonSampled | Separated)
