"""Refusals about clients: objective, state, steps, local model parts, and simulated attackers."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled
from attacks.types import Knowledge, undeclared_hooks
from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import built_in_names
from privfed.plan.rule import rule_of, sends_weights
from privfed.sampling.cohort import draws_of


def client_state_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why clients cannot keep state between rounds (`config.keeping`)."""
    if config.keeping and not config.by_sites:  # sites keep none
        yield from _state_that_reveals_others(config)
        yield from _clients_that_do_not_return(config)
        if config.objective.sums_states:
            yield from _clients_that_are_absent(config)
            yield from _states_weighed_by_examples(config)


def _instead(config: Config) -> str:
    fed_back = config.compression.keeps and not config.objective.keeps
    return f"compression.{config.compression.keeping} = false" if fed_back else "another objective"


def _state_that_reveals_others(config: Config) -> Iterator[str]:
    """Yields a refusal of state that reveals participation, if a proof needs that to be secret."""
    mechanism = config.mechanism
    release = config.sampler.witness(0, config.data.clients).release
    if not mechanism.private or mechanism.trust == "client" or release is None:
        return
    if not isinstance(release, Gaussian | PoissonSampled | Separated):
        yield (
            f"{config.keeping} has clients store values that reveal when they took part, but under "
            f"cohort.sampler = {config.names['sampler']!r} no privacy amplification is proved for "
            f"clients that do so; use {draws_of(Gaussian, PoissonSampled, Separated)}"
        )


def _clients_that_do_not_return(config: Config) -> Iterator[str]:
    count = config.messages().keeps
    numbers = ("d " if count == 1 else f"{count} d ") if count else ""
    if config.data.setting == "cross_device":
        yield (
            f"{config.keeping} has each client store {numbers}numbers between rounds, so the "
            "same clients have to return, but cross-device clients do not; use data.setting = "
            f'"cross_silo" if your clients return, or {_instead(config)}'
        )


def _clients_that_are_absent(config: Config) -> Iterator[str]:
    """Yields a refusal if sampled clients may be absent, as the server would count these too."""
    if config.availability.varies or config.client.drop_stragglers or config.cohort.dropout:
        yield (
            f"client.objective = {config.names['objective']!r} assumes that every sampled client "
            "takes part, but sampled clients may be unavailable, drop out or be dropped; set "
            'cohort.availability = "always", cohort.dropout = 0 and client.drop_stragglers = false'
        )


def _states_weighed_by_examples(config: Config) -> Iterator[str]:
    """Yields a refusal of weights by examples; for use if the server sums clients' states."""
    if config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but with client.objective = '
            f"{config.names['objective']!r} the server sums clients' states with equal weights; "
            'use "uniform" or "auto"'
        )


def most_steps(config: Config) -> int:
    """Returns the largest number of local steps in a round; 0 if it depends on clients' data."""
    if config.example_privacy:
        return config.example_privacy.steps(config.client.epochs)
    return config.client.steps


def adds_updates(config: Config) -> bool:
    """Whether the model after every round is the model before it plus the aggregate."""
    schedule, rounds = config.server_schedule, range(1, config.run.rounds + 1)
    plain = config.optimizer.plain and not config.optimizer.in_client_rates
    return plain and all(schedule.factor(round) == 1.0 for round in rounds)


def objective_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why the objective would not have its effect."""
    yield from _models_not_at_the_server(config)
    yield from _logits_of_no_classes(config)
    yield from _steps_for_nothing(config)


def _models_not_at_the_server(config: Config) -> Iterator[str]:
    """Yields a refusal of an objective that needs `adds_updates`, if the server step differs."""
    if config.objective.server_step == "only_plain" and not adds_updates(config):
        rate = getattr(config.optimizer, "lr", None)
        at_rate = "" if rate is None else f"server.lr = {rate!r}, "
        yield (
            f"client.objective = {config.names['objective']!r} updates each broadcast model by the "
            f"mean update of its clients, but server.optimizer = {config.names['optimizer']!r} "
            f"({at_rate}server.schedule = {config.names['server_schedule']!r}) would update the "
            "run's model differently, so this model would equal none of the broadcast models; "
            'set server.optimizer = "fedavg" and server.lr = 1.0, and remove server.schedule'
        )


def _logits_of_no_classes(config: Config) -> Iterator[str]:
    """Yields refusals of objectives and compressions that need logits if the loss has none."""
    for key, kind in (("client.objective", "objective"), ("compression.name", "compression")):
        if getattr(config, kind).needs_classes and not config.loss.softmax:
            yield (
                f"{key} = {config.names[kind]!r} needs the logits of classes, but model.loss = "
                f'{config.names["loss"]!r} has none; use another {kind}, or "cross_entropy"'
            )


def _steps_for_nothing(config: Config) -> Iterator[str]:
    """Yields a refusal of too few local steps for the objective's effect (`least_steps`)."""
    most, least = most_steps(config), config.objective.least_steps
    if most and most < least:
        key = "client.epochs" if config.example_privacy else "client.steps"
        yield (
            f"client.objective = {config.names['objective']!r} has an effect after {least} local "
            f"steps with these keys, but a client takes at most {most}, so every client would send "
            f"a plain update; raise {key} to {least} steps or more, lower the keys of the "
            'objective that determine this number, or use client.objective = "sgd"'
        )


def partial_model_refusals(config: Config) -> Iterator[str]:
    """Yields every reason against a local part of the model, local epochs, or steering attacks."""
    if config.start.local:
        yield from _objectives_of_whole_models(config)
    yield from _attackers_on_their_own_way(config)
    yield from _epochs_of_what_stays(config)


def _objectives_of_whole_models(config: Config) -> Iterator[str]:
    """Yields a refusal of `model.local` with an objective that needs complete models."""
    objective = config.objective
    where = (
        "model.local keeps a part of the model on each client, but client.objective = "
        f"{config.names['objective']!r}"
    )
    if objective.personalises:
        yield f"{where} also gives each client its own model; use only one of the two"
    elif _reads_sent_models(objective):
        yield (
            f"{where} evaluates examples at broadcast models, which lack the local part; use an "
            "objective that uses examples only in its local steps: "
            f"{built_in_names('objective', _trains_parts)}"
        )


def _reads_sent_models(objective: Objective) -> bool:
    """Whether the objective evaluates examples at broadcast models, not only in local steps."""
    return bool(objective.anchored or objective.measures) or objective.exchanges > 1


def _trains_parts(objective: Objective) -> bool:
    """Whether the objective neither evaluates broadcast models on examples nor personalises any."""
    return not (_reads_sent_models(objective) or objective.personalises)


def averages_statistics(objective: Objective) -> bool:
    """Whether batch statistics may be averaged: under `_trains_parts`, if the loss is unchanged."""
    return _trains_parts(objective) and not objective.changes_loss


def _attackers_on_their_own_way(config: Config) -> Iterator[str]:
    """Yields a refusal of attacks that steer local steps, if a part is local or models several."""
    if not (config.has_attackers and config.attack.steers):
        return
    attack = f"attack.name is {config.names['attack']!r}, which steers the broadcast model"
    if config.start.local:
        yield f"{attack}, but model.local leaves parameters out of it; use another attack"
    elif dict(config.objective.layout(1).parts).get("delta", 1) > 1:
        name = config.names["objective"]
        yield f"{attack}, but client.objective = {name!r} has several; use another attack"


def _epochs_of_what_stays(config: Config) -> Iterator[str]:
    """Yields a refusal of local epochs without a local part, a later epoch, or a plain step."""
    count, client = config.client.local_epochs, config.client
    if not count:
        return
    if not config.start.local:
        yield (
            f"client.local_epochs is {count}, but the model has no local part; set model.local, or "
            "remove client.local_epochs"
        )
    elif count >= client.epochs or client.steps:
        yield (
            f"client.local_epochs is {count}, but client.epochs is {client.epochs} and "
            f"client.steps is {client.steps}, so no epochs remain for the shared part; raise "
            "client.epochs, and set client.steps = 0"
        )
    elif not config.objective.plain:
        yield (
            f"client.local_epochs is {count}, but client.objective = {config.names['objective']!r} "
            'changes all local steps, including those of the local part; use "sgd", or '
            "client.local_epochs = 0"
        )


def nothing_to_shorten(config: Config) -> Iterator[str]:
    """Yields a refusal of stragglers if clients train one epoch, which cannot be shortened."""
    if config.client.stragglers and config.client.epochs == 1:
        yield (
            f"client.stragglers is {config.client.stragglers}, but client.epochs is 1, so "
            "stragglers have no epoch to skip; raise client.epochs, or remove client.stragglers"
        )


def no_stragglers_to_drop(config: Config) -> Iterator[str]:
    """Yields a refusal to drop stragglers if no client, or every client, is a straggler."""
    if config.client.drop_stragglers and not 0.0 < config.client.stragglers < 1.0:
        yield (
            f"client.drop_stragglers is true, but client.stragglers is {config.client.stragglers}, "
            "so no client, or every client, would be dropped; set client.stragglers above 0 and "
            "below 1"
        )


def rates_of_zero(config: Config) -> Iterator[str]:
    """Yields a refusal of schedules with rate 0 in the last round; their errors pass through."""
    schedules = {"client": config.client_schedule, "server": config.server_schedule}
    for section, schedule in schedules.items():
        if [schedule.factor(round) for round in range(1, config.run.rounds + 1)][-1] == 0.0:
            yield (
                f"{section}.schedule has a learning rate of 0 in the last round, "
                f"{config.run.rounds}, but rounds at this rate are charged without changing the "
                "model; make the schedule longer, or lower run.rounds"
            )


def attack_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why these attackers cannot be simulated."""
    yield from _attackers_without_attack(config)
    yield from _details_without_attack(config)
    yield from _all_clients_pool(config)
    yield from _labels_changed_twice(config)
    yield from _weights_not_requested(config)
    yield from _counts_not_requested(config)


def _attackers_without_attack(config: Config) -> Iterator[str]:
    """Yields a refusal of undeclared hooks, and of an attack that contradicts `attack.fraction`."""
    name, attackers = config.names["attack"], config.attackers
    fraction, given = attackers.fraction, "fraction" in attackers.model_fields_set
    acts = config.attack.acts or attackers.false_claims
    if hooks := undeclared_hooks(config.attack):
        yield (
            f"attack.name is {name!r}, which overrides {' and '.join(hooks)}, but declares neither "
            f"`poisons` nor `corrupts`; write {'s = True and '.join(hooks)}s = True in the class, "
            "without an annotation"
        )
    elif acts != (fraction > 0.0) and not (acts and given):
        what = "".join(f", {claim}" for claim in _false_claims(config))
        what += "" if acts else ", which changes neither examples nor rows,"
        yield (
            f"attack.name is {name!r}{what} and attack.fraction is {fraction:g}; expected both an "
            "attack and the fraction of clients that attack, or neither: set attack."
            f"{'fraction' if acts else 'name'}, or remove the other keys of the attack"
        )
    elif 0.0 < fraction * config.data.clients < 0.5:
        yield (
            f"attack.fraction is {fraction:g}, but that rounds to none of {config.data.clients} "
            "clients; raise attack.fraction"
        )


def _false_claims(config: Config) -> Iterator[str]:
    """Yields the key and value of each false claim by attackers: of their weight or clip count."""
    if config.attackers.weight != 1.0:
        yield f"attack.weight {config.attackers.weight:g}"
    if config.attackers.clip_count != "true":
        yield f"attack.clip_count {config.attackers.clip_count!r}"


def _details_without_attack(config: Config) -> Iterator[str]:
    """Yields a refusal of further keys of [attack] if there is no attack and no false claim."""
    given = config.attackers
    details = (given.selection, given.stage, given.replaces, given.first_round, given.last_round)
    usual = ("once", "auto", "messages", 1, 0)
    if not (config.attack.acts or given.false_claims) and details != usual:
        yield (
            "attack.selection, attack.stage, attack.replaces, attack.first_round or "
            "attack.last_round is set, but there is no attack; set attack.name, or remove the key"
        )


def _all_clients_pool(config: Config) -> Iterator[str]:
    """Yields a refusal of attackers that pool examples if any client may become an attacker."""
    pools = Knowledge.ATTACKERS_DATA in config.attack.knows
    if pools and config.attackers.selection == "round":
        yield (
            f"attack.name = {config.names['attack']!r} pools the attackers' examples before the "
            'first round, but with attack.selection = "round" any client may attack in some round, '
            'so the attackers would know all clients\' data; use attack.selection = "once", '
            "or another attack"
        )


def _labels_changed_twice(config: Config) -> Iterator[str]:
    """Yields a refusal of an attack that changes labels if the data shift changes them too."""
    if config.attack.poisons and config.shift.changes_labels:
        yield (
            f"attack.name = {config.names['attack']!r} and data.shift = "
            f"{config.names['shift']!r} both change labels; use only one of them"
        )


def _weights_not_requested(config: Config) -> Iterator[str]:
    """Yields a refusal of overstated weights of attackers if clients send no weights."""
    if config.attackers.weight == 1.0:
        return
    try:
        requested = sends_weights(config, rule_of(config))
    except Refused:  # the rule is refused elsewhere
        return
    if not requested:
        yield (
            f"attack.weight is {config.attackers.weight:g}, but no client reports a weight, since "
            'weights are equal or declared; set aggregation.weights = "examples", or remove '
            "attack.weight"
        )


def _counts_not_requested(config: Config) -> Iterator[str]:
    """Yields a refusal of false counts for adaptive clipping unless such counts are simulated."""
    count = config.attackers.clip_count
    if count != "true" and not config.mechanism.adaptive:
        yield (
            f"attack.clip_count is {count!r}, but clients report whether they are within the clip "
            "only if privacy.adaptive_clip is true; set privacy.adaptive_clip = true, or remove "
            "attack.clip_count"
        )
    elif count != "true" and config.mechanism.trust == "sum":
        yield (
            f"attack.clip_count is {count!r}, but false counts are not simulated for distributed "
            'noise; use "true", or privacy.mechanism = "gaussian"'
        )
