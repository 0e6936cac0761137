"""What is refused of evaluation by clients, and of runs that end early."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.local.personal import personalises
from privfed.sampling.independent import independent_draw


def evaluation_refusals(config: Config) -> Iterator[str]:
    """Every reason why clients cannot evaluate this run, or what is measured may not stop it."""
    if config.evaluation.by == "clients":
        yield from _end_without_evaluation(config)
        yield from _chosen_size(config)
        yield from _single_examples(config)
        yield from _untested_canaries(config)
        yield from _charged_at_once(config)
    if config.evaluation.personal:
        yield from _no_personal_models(config)
    if config.stop.patience:
        yield from _nothing_measured(config)
        yield from _uncharged_stop(config)
        yield from _unknown_measure(config)
        yield from _never_reached(config)


def _end_without_evaluation(config: Config) -> Iterator[str]:
    """The last round trains, and nobody learns how good its model is."""
    every, rounds = config.evaluation_rounds.every, config.run.rounds
    if rounds % every or every == 1:
        yield (
            f"every {every} rounds one evaluates (evaluation.every, or else run.evaluate_every), "
            f"and run.rounds is {rounds}; expected a multiple of a number above 1, so that some "
            "rounds train and the last one evaluates"
        )


def _chosen_size(config: Config) -> Iterator[str]:
    """All clients evaluate (`derives_size`)."""
    drawn = independent_draw(config.sampler, 0, config.data.clients)
    if config.evaluation.size and drawn.derives_size:
        yield (
            f"evaluation.size is {config.evaluation.size}, but where cohort.sampler = "
            f"{config.names['sampler']!r}, all clients evaluate; set it to 0"
        )


def _single_examples(config: Config) -> Iterator[str]:
    """A silo's row of measures is no release that protects single examples of it."""
    if config.client_mechanism.private:
        yield (
            'evaluation.by = "clients" protects whole clients, and client.privacy promises '
            "something about single examples, which a silo's measures are not noised for; use "
            'evaluation.by = "test"'
        )


def _untested_canaries(config: Config) -> Iterator[str]:
    """Canaries test what training releases, and not what evaluations release."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, who send directions of the model and have "
            'nothing to measure: part of the claim would stay untested; use evaluation.by = "test"'
        )


def _charged_at_once(config: Config) -> Iterator[str]:
    """Where clients are at several sites elsewhere, each charges a run at once, by one event."""
    if config.apart and config.data.sites_per_client > 1:
        yield (
            f"data.sites_per_client is {config.data.sites_per_client}, so that a site charges all "
            "rounds at once, as rounds of one kind; with "
            'data.site_partition = "elsewhere" use evaluation.by = "test"'
        )


def _no_personal_models(config: Config) -> Iterator[str]:
    """Clients score the model that is sent: they have no other, or need more than it for theirs."""
    key, name = "evaluation.personal is true", config.names["objective"]
    objective, local = config.objective, config.start.local
    if config.evaluation.by != "clients":
        yield f'{key}, and nobody but clients has their models; set evaluation.by = "clients"'
    elif not (local or personalises(objective)):
        yield (
            f"{key}, and clients have no models of their own: set model.local, or "
            'client.objective = "ditto" or "apfl", or remove the key'
        )
    elif objective.measures or (local and objective.keeps):
        yield (
            f"{key}, and client.objective = {name!r} makes them of more than the model that is "
            "sent to be scored; remove the key, and see privfed evaluate --personalise 0"
        )


def _nothing_measured(config: Config) -> Iterator[str]:
    """There is no test set, and no client is asked."""
    if config.nothing_public and config.evaluation.by == "test":
        yield (
            f'stop.patience is {config.stop.patience}, and with data.holdout = "none" nothing is '
            'measured; use evaluation.by = "clients", which is charged, or a public test set'
        )


def _uncharged_stop(config: Config) -> Iterator[str]:
    """The test set is of clients that train, and nothing charges what is concluded from it."""
    protected = config.mechanism.private or config.client_mechanism.private
    by_test = config.evaluation.by == "test"
    if protected and by_test and config.data.holdout == "examples":
        yield (
            f"stop.patience is {config.stop.patience}, and the test set is of clients that train "
            '(data.holdout = "examples"): when a run stops would tell of them, uncharged; use '
            'evaluation.by = "clients", which is charged, or a public test set'
        )


def _unknown_measure(config: Config) -> Iterator[str]:
    """Nothing of that name is measured."""
    by, loss = config.stop.by, config.loss
    known = (
        config.evaluation.measures if config.evaluation.by == "clients" else [loss.measure, "loss"]
    )
    if by and by not in known:
        yield f"stop.by is {by!r}; expected one of {', '.join(known)}"


def _never_reached(config: Config) -> Iterator[str]:
    """So many evaluations without a better one, after a first one, are more than there are."""
    by_clients = config.evaluation_rounds.every
    count = -(-config.run.rounds // (by_clients or config.run.evaluate_every))
    if config.stop.patience >= count:
        yield (
            f"stop.patience is {config.stop.patience}, and the run has {count} evaluations, which "
            "could never end it early; lower it, or evaluate more often"
        )
