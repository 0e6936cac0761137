"""Refusals about evaluation, resuming, and candidates of private tuning."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.parts import offered
from privfed.sampling.evaluation_rounds import independent_draw


def ledger_heads_that_can_be_remade(config: Config) -> Iterator[str]:
    """The ledger's heads are recorded, although the seed can reproduce the whole ledger."""
    if config.run.heads and config.run.randomness == "seeded":
        yield (
            "run.heads protects a ledger against truncation, but the ledger of a seeded run can "
            'be reproduced at will; leave run.heads out, or set run.randomness = "secret"'
        )


def measured_precision_of_a_seeded_run(config: Config) -> Iterator[str]:
    """The results of a seeded run depend on its file, and not on the load of a machine."""
    if config.run.precision == "fast" and config.run.randomness == "seeded":
        yield (
            'run.precision = "fast" depends on measurements of this machine, but the results of '
            'a seeded run have to follow from its run file; use "mixed" or "full"'
        )


def measures_lost_on_resume(config: Config) -> Iterator[str]:
    """A resume from a checkpoint between two evaluations would lose counts of work."""
    run = config.run
    if run.simulation_metrics and run.checkpoint_every % run.evaluate_every:
        yield (
            f"run.simulation_metrics adds up work between evaluations, every {run.evaluate_every} "
            f"rounds, but a resume from a checkpoint, every {run.checkpoint_every} rounds, would "
            "lose part of that sum; make run.checkpoint_every a multiple of run.evaluate_every"
        )


def evaluation_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why clients cannot evaluate this run, or a metric may not stop it."""
    if config.evaluation.by == "clients":
        yield from _end_without_evaluation(config)
        yield from _chosen_size(config)
        yield from _single_examples(config)
        yield from _untested_canaries(config)
        yield from _charged_in_advance(config)
    if config.evaluation.personal:
        yield from _no_personal_models(config)
    if config.stop.patience:
        yield from _nothing_measured(config)
        yield from _uncharged_stop(config)
        yield from _unknown_measure(config)
        yield from _never_reached(config)


def _end_without_evaluation(config: Config) -> Iterator[str]:
    """The last round trains, and its model is not evaluated."""
    every, rounds = config.evaluation_rounds.every, config.run.rounds
    if rounds % every or every == 1:
        yield (
            f"evaluation.every (or run.evaluate_every) is {every}, but run.rounds is {rounds}; set "
            "the former above 1 and run.rounds to a multiple of it, so that some rounds train and "
            "the last one evaluates"
        )


def _chosen_size(config: Config) -> Iterator[str]:
    """All clients evaluate (`derives_size`)."""
    drawn = independent_draw(config.sampler, 0, config.data.clients)
    if config.evaluation.size and drawn.derives_size:
        yield (
            f"evaluation.size is {config.evaluation.size}, but with cohort.sampler = "
            f"{config.names['sampler']!r} all clients evaluate; set evaluation.size to 0"
        )


def _single_examples(config: Config) -> Iterator[str]:
    """A silo's row of metrics is not protected for single examples."""
    if config.client_mechanism.private:
        yield (
            'evaluation.by = "clients" protects whole clients, but client.privacy protects single '
            "examples, and a silo's metrics have no noise that protects these; use evaluation.by = "
            '"test"'
        )


def _untested_canaries(config: Config) -> Iterator[str]:
    """Canaries test the releases of training, and not those of evaluations."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but canaries send directions of the model "
            "and have no metrics, so that part of the claim would remain untested; use "
            'evaluation.by = "test"'
        )


def _charged_in_advance(config: Config) -> Iterator[str]:
    """Sites that share clients, on machines of their own, charge a run at once, by one event."""
    if config.apart and config.data.sites_per_client > 1:
        yield (
            f"data.sites_per_client is {config.data.sites_per_client}, so that a site charges all "
            "rounds at once, as rounds of one kind, but evaluation rounds are of another kind; "
            'with data.site_partition = "elsewhere" use evaluation.by = "test"'
        )


def _scores_personal_models(objective: Objective) -> bool:
    """Whether clients have personal models that need no further measurements."""
    return objective.personalises and not objective.measures


def _no_personal_models(config: Config) -> Iterator[str]:
    """Clients evaluate the broadcast model: they have no other, or theirs needs more than it."""
    key, name = "evaluation.personal is true", config.names["objective"]
    objective, local = config.objective, config.start.local
    if config.evaluation.by != "clients":
        yield f'{key}, but only clients can evaluate personal models; set evaluation.by = "clients"'
    elif not (local or objective.personalises):
        yield (
            f"{key}, but clients have no personal models; set model.local, or client.objective = "
            f"{offered('objective', _scores_personal_models)}, or remove the key"
        )
    elif objective.measures or (local and objective.keeps):
        yield (
            f"{key}, but with client.objective = {name!r} a client's personal model also depends "
            "on values that evaluation rounds neither measure nor send; remove the key, and score "
            "personal models with `privfed evaluate RUN --personalise 0`"
        )


def _nothing_measured(config: Config) -> Iterator[str]:
    """There is no test set, and clients do not evaluate."""
    if config.nothing_public and config.evaluation.by == "test":
        yield (
            f'stop.patience is {config.stop.patience}, but with data.holdout = "none" no metric '
            'is measured; use evaluation.by = "clients", which is charged, or a public test set'
        )


def _uncharged_stop(config: Config) -> Iterator[str]:
    """The test set belongs to training clients, and conclusions from it are not charged."""
    protected = config.mechanism.private or config.client_mechanism.private
    by_test = config.evaluation.by == "test"
    if protected and by_test and config.data.holdout == "examples":
        yield (
            f'stop.patience is {config.stop.patience}, but data.holdout = "examples" scores on '
            "examples of clients that train, so that the last round would reveal information about "
            'these clients, uncharged; use evaluation.by = "clients", which is charged, or a '
            "public test set"
        )


def _unknown_measure(config: Config) -> Iterator[str]:
    """No metric of that name is measured."""
    by, loss = config.stop.by, config.loss
    known = (
        config.evaluation.measures if config.evaluation.by == "clients" else [loss.measure, "loss"]
    )
    if by and by not in known:
        yield f"stop.by is {by!r}; expected one of {', '.join(known)}"


def _never_reached(config: Config) -> Iterator[str]:
    """The patience exceeds the number of evaluations after the first."""
    by_clients = config.evaluation_rounds.every
    count = -(-config.run.rounds // (by_clients or config.run.evaluate_every))
    if config.stop.patience >= count:
        yield (
            f"stop.patience is {config.stop.patience}, but the run has {count} evaluations, too "
            "few to stop it early; lower stop.patience, or evaluate more often"
        )


_PRIVATE = "[tune] private = true"


def choice_refusals(config: Config) -> Iterator[str]:
    """Yields the reasons why the best of a random number of runs is not one proved release."""
    if config.chosen:
        yield from _nothing_promised(config)
        yield from _other_guarantees(config)
        yield from _uncharged_score(config)
        yield from _tells_the_number(config)


def _nothing_promised(config: Config) -> Iterator[str]:
    """A choice among runs without a guarantee has none."""
    if not config.mechanism.private or config.privacy.epsilon == float("inf"):
        yield (
            f"{_PRIVATE}, but candidates have no noise; set privacy.epsilon, or tune without "
            "tune.private"
        )
    if config.void:
        yield (
            f"{_PRIVATE}, but simulated attackers read raw updates, so that there is no guarantee; "
            "remove the attack"
        )
    if config.audit.canaries:
        yield (
            f"{_PRIVATE}, but audit.canaries test single runs and losing runs stay secret; remove "
            "audit.canaries"
        )


def _other_guarantees(config: Config) -> Iterator[str]:
    """Only the headline is charged as a choice."""
    if config.shared_noise is not None:
        yield (
            f"{_PRIVATE}, but distributed noise has a second guarantee, for which a private choice "
            'has no proof; use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.mechanism.private and config.mechanism.trust == "client":
        yield (
            f"{_PRIVATE}, but under privacy.mechanism = {config.names['mechanism']!r} epsilon "
            "holds against readers of clients' messages, who also see the messages of losing "
            'candidates; use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.example_privacy is not None:
        yield (
            f"{_PRIVATE}, but examples of silos ([client.privacy]) have a second guarantee, for "
            "which a private choice has no proof; remove [client.privacy], or tune on public data"
        )


def _uncharged_score(config: Config) -> Iterator[str]:
    """The score must be post-processing of a run's releases, or be charged."""
    if config.data.holdout == "examples":
        yield (
            f'{_PRIVATE}, but data.holdout = "examples" scores candidates on examples of '
            'clients that train, which is not charged; use "test" or "clients"'
        )


def _tells_the_number(config: Config) -> Iterator[str]:
    """The number of candidates has to stay secret."""
    if config.apart:
        yield (
            f"{_PRIVATE}, but sites on machines of their own see the number of candidates, which "
            "invalidates the bound; tune on the machine that holds the data, or on public data"
        )
    for key, value in (("run.heads", config.run.heads), ("run.watch", config.run.watch)):
        if value:
            yield (
                f"{_PRIVATE}, but {key} reports every candidate, whose number has to remain "
                f"secret; leave {key} out"
            )
