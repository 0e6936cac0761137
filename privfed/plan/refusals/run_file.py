"""Refusals about the run's files, evaluation, early stopping, and candidates of private tuning."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.client.objective import Objective
from privfed.config.config import Config
from privfed.core.parts import built_in_names
from privfed.sampling.evaluation_rounds import independent_draw


def ledger_heads_that_can_be_remade(config: Config) -> Iterator[str]:
    """Yields a refusal of `run.heads`, a file that receives each ledger head, in a seeded run.

    It protects a ledger against truncation, but a seeded run can reproduce a shorter ledger.
    """
    if config.run.heads and config.run.randomness == "seeded":
        yield (
            f"run.heads is {config.run.heads}, which protects a ledger against truncation, but the "
            "ledger of a seeded run can be reproduced with fewer charges; leave run.heads out, or "
            'set run.randomness = "secret"'
        )


def measured_precision_of_a_seeded_run(config: Config) -> Iterator[str]:
    """Yields a refusal of a precision chosen by measured times if the run is seeded."""
    if config.run.precision == "fast" and config.run.randomness == "seeded":
        yield (
            'run.precision is "fast", which depends on measurements of this machine, but the '
            'results of a seeded run must depend only on its run file; use "mixed" or "full"'
        )


def measures_lost_on_resume(config: Config) -> Iterator[str]:
    """Yields a refusal of simulation metrics, which add up work between evaluations, unless
    `run.checkpoint_every` is a multiple of `run.evaluate_every`.

    Otherwise a resume from a checkpoint would lose part of the sum.
    """
    run = config.run
    if run.simulation_metrics and run.checkpoint_every % run.evaluate_every:
        yield (
            "run.simulation_metrics is true, which adds up work between evaluations (every "
            f"{run.evaluate_every} rounds), but a resume from a checkpoint (every "
            f"{run.checkpoint_every} rounds) would lose part of that sum; make "
            "run.checkpoint_every a multiple of run.evaluate_every"
        )


def evaluation_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why clients cannot evaluate, or a metric cannot stop the run early."""
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
    """Yields a refusal of runs that only evaluate, or whose last round does not evaluate."""
    every, rounds = config.evaluation_rounds.every, config.run.rounds
    if rounds % every or every == 1:
        yield (
            f"evaluation.every (or run.evaluate_every) is {every} and run.rounds is {rounds}, but "
            "some rounds have to train and the last round has to evaluate; set evaluation.every "
            "to 2 or more, and run.rounds to a multiple of evaluation.every"
        )


def _chosen_size(config: Config) -> Iterator[str]:
    """Yields a refusal of `evaluation.size` if the sampler derives the size (`derives_size`)."""
    drawn = independent_draw(config.sampler, 0, config.data.clients)
    if config.evaluation.size and drawn.derives_size:
        yield (
            f"evaluation.size is {config.evaluation.size}, but with cohort.sampler = "
            f"{config.names['sampler']!r} all clients evaluate; set evaluation.size to 0"
        )


def _single_examples(config: Config) -> Iterator[str]:
    """Yields a refusal if silos protect single examples, since no noise protects their metrics."""
    if config.client_mechanism.private:
        yield (
            'evaluation.by is "clients", but client.privacy protects single examples of a silo, '
            "and no noise protects single examples in the silo's metrics; use evaluation.by = "
            '"test"'
        )


def _untested_canaries(config: Config) -> Iterator[str]:
    """Yields a refusal of canaries, which cannot test the charges of evaluation rounds."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, but canaries are only inserted into "
            "training rounds, so the part of epsilon for evaluation by clients would remain "
            'untested; use evaluation.by = "test", or remove audit.canaries'
        )


def _charged_in_advance(config: Config) -> Iterator[str]:
    """Yields a refusal of evaluation rounds, which the caller has found, if sites share clients.

    Such a site charges all rounds in advance, as training rounds.
    """
    if config.at_remote_sites and config.data.sites_per_client > 1:
        yield (
            f"data.sites_per_client is {config.data.sites_per_client}, so with data.site_partition "
            '= "elsewhere" a site charges all rounds at once as training rounds, but some are '
            'evaluation rounds; use evaluation.by = "test"'
        )


def _scores_personal_models(objective: Objective) -> bool:
    """Whether clients can score their personal models in evaluation rounds.

    True if the objective has personal models (`personalises`), and training them needs no further
    measurement (`measures` is empty).
    """
    return objective.personalises and not objective.measures


def _no_personal_models(config: Config) -> Iterator[str]:
    """Yields a refusal of `evaluation.personal` unless clients evaluate and have personal models.

    Personal models must not depend on values that evaluation rounds neither measure nor send.
    """
    key, name = "evaluation.personal is true", config.names["objective"]
    objective, local = config.objective, config.start.local
    if config.evaluation.by != "clients":
        yield f'{key}, but only clients can evaluate personal models; set evaluation.by = "clients"'
    elif not (local or objective.personalises):
        yield (
            f"{key}, but clients have no personal models; set model.local, or client.objective = "
            f"{built_in_names('objective', _scores_personal_models)}, or remove evaluation.personal"
        )
    elif objective.measures or (local and objective.keeps):
        yield (
            f"{key}, but with client.objective = {name!r} a client's personal model also depends "
            "on values that evaluation rounds neither measure nor send; remove evaluation.personal "
            "and score personal models with `privfed evaluate RUN --personalise 0`"
        )


def _nothing_measured(config: Config) -> Iterator[str]:
    """Yields a refusal of early stopping if neither a test set nor clients measure a metric."""
    if config.nothing_public and config.evaluation.by == "test":
        yield (
            f'stop.patience is {config.stop.patience}, but with data.holdout = "none" no metric '
            'is measured; use evaluation.by = "clients", which is charged, or a public test set'
        )


def _uncharged_stop(config: Config) -> Iterator[str]:
    """Yields a refusal of early stopping by an uncharged metric on training clients' examples."""
    protected = config.mechanism.private or config.client_mechanism.private
    by_test = config.evaluation.by == "test"
    if protected and by_test and config.data.holdout == "examples":
        yield (
            f'stop.patience is {config.stop.patience}, but with data.holdout = "examples" the run '
            "is scored on examples of clients that train, so the number of rounds would reveal "
            'information about these clients without a charge; use evaluation.by = "clients", '
            "which is charged, or a public test set"
        )


def _unknown_measure(config: Config) -> Iterator[str]:
    """Yields a refusal of early stopping by a metric that is not measured."""
    by, loss = config.stop.by, config.loss
    known = (
        config.evaluation.measures if config.evaluation.by == "clients" else [loss.measure, "loss"]
    )
    if by and by not in known:
        yield f"stop.by is {by!r}; expected one of {', '.join(known)}"


def _never_reached(config: Config) -> Iterator[str]:
    """Yields a refusal of a `stop.patience` that is not below the run's number of evaluations."""
    by_clients = config.evaluation_rounds.every
    count = -(-config.run.rounds // (by_clients or config.run.evaluate_every))
    if config.stop.patience >= count:
        yield (
            f"stop.patience is {config.stop.patience}, but the run has only {count} evaluations, "
            "so it can never stop early; lower stop.patience, or evaluate more often"
        )


_PRIVATE = "tune.private is true"


def choice_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why private tuning has no proof for these candidates."""
    if config.chosen:
        yield from _nothing_promised(config)
        yield from _other_guarantees(config)
        yield from _uncharged_score(config)
        yield from _reveals_the_number(config)


def _nothing_promised(config: Config) -> Iterator[str]:
    """Yields a refusal of candidates without a guarantee, or with canaries."""
    if not config.mechanism.private or config.privacy.epsilon == float("inf"):
        yield (
            f"{_PRIVATE}, but candidates have no noise; set privacy.epsilon, or remove tune.private"
        )
    if config.attackers_see_rows:
        yield (
            f"{_PRIVATE}, but simulated attackers read raw updates, so there is no guarantee; "
            "remove the attack"
        )
    if config.audit.canaries:
        yield (
            f"{_PRIVATE}, but audit.canaries is {config.audit.canaries}, which tests single runs, "
            "of which all except the best stay secret; remove audit.canaries"
        )


def _other_guarantees(config: Config) -> Iterator[str]:
    """Yields a refusal of distributed noise, noise that clients add, and DP-SGD in silos.

    Their guarantees have no proof under a private choice among candidates.
    """
    if config.shared_noise is not None:
        yield (
            f"{_PRIVATE}, but distributed noise has a second guarantee, for which a private choice "
            'has no proof; use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.mechanism.private and config.mechanism.trust == "client":
        yield (
            f"{_PRIVATE}, but under privacy.mechanism = {config.names['mechanism']!r} epsilon "
            "holds against readers of clients' messages, who would also see the messages of all "
            'other candidates; use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.example_privacy is not None:
        yield (
            f"{_PRIVATE}, but with [client.privacy] examples of silos have a second guarantee, for "
            "which a private choice has no proof; remove [client.privacy], or tune on public data"
        )


def _uncharged_score(config: Config) -> Iterator[str]:
    """Yields a refusal of a score on examples of training clients, which is not charged."""
    if config.data.holdout == "examples":
        yield (
            f'{_PRIVATE}, but with data.holdout = "examples" candidates are scored on examples of '
            'clients that train, which is not charged; use data.holdout = "test" or "clients"'
        )


def _reveals_the_number(config: Config) -> Iterator[str]:
    """Yields a refusal of remote sites, `run.heads` and `run.watch`.

    Each of them would reveal the number of candidates.
    """
    if config.at_remote_sites:
        yield (
            f"{_PRIVATE}, but sites on machines of their own see the number of candidates, which "
            "invalidates the bound; tune on the machine that holds the data, or on public data"
        )
    for key, value in (("run.heads", config.run.heads), ("run.watch", config.run.watch)):
        if value:
            yield (
                f"{_PRIVATE}, but {key} would report every candidate, and so the number of "
                f"candidates, which has to remain secret; leave {key} out"
            )
